"""Published steps that are bound by launches, and what binds them.

A processor is not described by its GPU, so a factor of 1.5 is what can be expected; these two
differ by less. Where they were published, see launch_bound.py.
"""

import functools

import distlab
from distlab import Device, Network
from tests.cluster.predict.launch_bound import steps, tokens

ONE = Network("5 us", "1 GB/s")
# lerobot has products of float32 go to tensor cores, as convolutions do
B200 = Device.named("B200", formats={"bfloat16": "2250 TFLOP/s", "float32": "1100 TFLOP/s"})


def seconds_of_token(device, compiled=False):
    """Of a word after others."""
    found = []
    for number in (2, 3):
        program = functools.partial(tokens, number=number)
        found.append(distlab.predict(program, 1, ONE, device, compiled=compiled).seconds)
    return found[1] - found[0]


def test_llama_makes_25_tokens_a_second_as_it_is_written_and_107_in_a_graph():
    device = Device.named("A100", efficiency=0.9)  # limited to 330 of 400 W
    assert 25.5 / 1.2 < 1 / seconds_of_token(device) < 25.5 * 1.2
    captured = Device.named("A100", efficiency=0.9, host=0)
    assert 107 / 1.1 < 1 / seconds_of_token(captured, compiled=True) < 107 * 1.1
    # what would be predicted of a program that is always ahead
    assert 1 / seconds_of_token(captured) > 3 * 25.5


def test_a_step_of_a_policy_is_bound_by_launches_and_says_so():
    """28.0 and 31.5 ms were measured, and about 30 % of them with something to do."""
    step = distlab.predict(steps, 8, Network.named("B200 hosts", hosts=[8]), B200)
    assert 28.0e-3 / 1.2 < step.seconds < 31.5e-3 * 1.2
    assert 0.2 < step.computing / step.seconds < 0.4
    assert step.launches / step.seconds > 0.6
    assert "launches, by the processor" in repr(step.rests_on())
    assert "and waits 4 times for a value of the device" in repr(step)
    lowest, highest = step.interval
    assert lowest < 28.0e-3 < highest


def test_a_compiled_policy_needs_fewer_launches():
    machines = Network.named("B200 hosts", hosts=[8])
    written = distlab.predict(steps, 8, machines, B200)
    compiled = distlab.predict(steps, 8, machines, B200, compiled=True)
    assert compiled.launches < written.launches / 2
    assert compiled.seconds < written.seconds / 2
