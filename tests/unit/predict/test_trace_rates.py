"""Predictions from a trace: durations that follow from known rates show these rates."""

from dataclasses import replace

import pytest

from distlab.errors import ArgumentError
from distlab.simulated.devices import Device
from distlab.simulated.measured import Measured
from distlab.simulated.network import Network
from distlab_predict.costs import Costs
from distlab_predict.nodes import Kernel, Recording
from distlab_predict.prediction import Prediction
from distlab_predict.streams import NodeLog
from tests.unit.predict.kineto_events import gloo, operator, write

LATENCY, PER_BYTE = 3e-3, 4e-6  # of the real network, in seconds; it is described otherwise
OVERHEAD, PER_FLOP, PER_MOVED = 1e-3, 1e-6, 5e-7  # of the real device
STEPS = 3


def recording(n, width=64, batch=32):
    """A step: two products, two sums over other sizes, and all-reduces of two sizes at its end."""
    log = NodeLog()
    for rows in (batch, width):
        flops = 2 * rows * width * width
        shape = (1, rows, width, width)
        log.compute("mm", flops, 4 * width, kind="product", shape=shape, dtype="float32")
        log.compute("sum", 0, 4 * rows * width, kind="bytes", dtype="float32")
    for num_bytes in (4 * width * width, 4 * width):
        place = log.call("world", "all_reduce", tuple(range(n)), (num_bytes, 4))
        log.wait(0, {place})
    return Recording(0, log.nodes, [(0, len(log.nodes))], {"parameters": 1}, "")


def prediction(n, device=None, **sizes):
    """Of this step, on machines that nobody knows well."""
    guessed = Network("1 ms", "1 MB/s", algorithms={"all_reduce": "ring"})
    device = device or Device("1 TFLOP/s", memory_bandwidth="1 GB/s")
    return Prediction(n, guessed, device, [recording(n, **sizes)])


def real_seconds(node):
    """What a node of a recording really takes."""
    if isinstance(node, Kernel):
        work = node.flops * PER_FLOP if node.flops else node.num_bytes * PER_MOVED
        return OVERHEAD + work
    n = len(node.members)
    return 2 * (n - 1) * (LATENCY + node.sent[0] / n * PER_BYTE)


def events(step):
    """Kineto's events of a few steps on the real device, one after another."""
    found = []
    now = 0.0
    for _ in range(STEPS):
        for node in step.recordings[0].nodes:
            microseconds = 1e6 * real_seconds(node)
            if not isinstance(node, Kernel):
                found.append(gloo(now, microseconds, node.sent[0] // 4))
            elif node.name == "mm":
                _, m, n, k = node.shape
                found.append(operator("aten::linear", now, microseconds + 1))
                factors = [(m, k), (k, n)]
                found.append(operator("aten::mm", now, microseconds, factors, ["float"] * 2))
            else:
                rows = node.num_bytes // 4
                found.append(operator("aten::sum", now, microseconds, [(rows,)], ["float"]))
            now += microseconds + 10
    return found


def test_other_sizes_and_ranks_follow_from_a_trace(tmp_path):
    traced = prediction(2)
    device = traced.calibrated(trace=write(tmp_path / "trace.json.gz", events(traced)))
    for n, width in ((2, 64), (4, 64), (4, 128), (3, 32)):
        step = prediction(n, device, width=width)
        real = sum(real_seconds(node) for node in step.recordings[0].nodes)
        assert step.seconds == pytest.approx(real, rel=1e-3), (n, width)
    same = prediction(2, device)
    assert same.longer.keys() == {"measured"}
    far = prediction(4, device, width=512)
    assert "extrapolated" in far.longer
    assert far.interval[1] / far.seconds > same.interval[1] / same.seconds
    assert "100% of the kernels in trace.json.gz, by their time, are predicted" in repr(
        same.rests_on()
    )


def test_time_that_nothing_in_a_trace_explains_is_in_the_interval(tmp_path):
    step = prediction(2)
    apart = []
    waited = 0.0
    for event in events(step):
        apart.append(event | {"ts": event["ts"] + waited})
        if event["name"] != "aten::linear":  # which the next one is inside of
            waited += event["dur"]  # for Python
    device = step.calibrated(trace=write(tmp_path / "trace.json", apart))
    measured = device.measured
    assert measured.explained == pytest.approx(prediction(2, device).seconds)
    assert 1.8 < measured.step / measured.explained < 2.5
    shortest, longest = prediction(2, device).interval
    assert shortest > 0.95 * measured.explained
    assert longest == pytest.approx(measured.step, rel=0.01)
    assert "a step in trace.json took " in repr(prediction(2, device).rests_on())


def test_an_operator_that_had_to_wait_for_a_core_counts_as_others_like_it(tmp_path):
    step = prediction(2)
    end = 2 * max(event["ts"] for event in events(step))
    shares = []
    for last in (1e5, 1e9):
        took = (1e5, 1e5, last)
        roots = [
            operator("aten::sqrt", end * (i + 1), t, [(8,)], ["float"]) for i, t in enumerate(took)
        ]
        trace = write(tmp_path / "trace.json", [*events(step), *roots])
        shares.append(step.calibrated(trace=trace).measured.share)
    assert shares[0] == pytest.approx(shares[1])
    assert 0.5 < shares[0] < 0.99


def test_a_trace_of_a_shorter_step_moves_only_the_lower_limit():
    measured = Measured(source="trace.json", step=1.0, explained=2.0)
    step = prediction(2, Device("1 TFLOP/s", measured=measured))
    usual = prediction(2, Device("1 TFLOP/s"))
    assert step.interval[0] < 0.5 * step.seconds
    assert step.interval[1] == pytest.approx(usual.interval[1])


def test_kernels_measured_beside_calls_are_not_slowed_by_them_again(tmp_path):
    step = prediction(2, Device("1 TFLOP/s", memory_bandwidth="1 GB/s", contention=0.5))
    call = step.recordings[0].nodes[-1]
    assert Costs(step.network, step.device, 2).of(call, 0).contention == 0.5
    device = step.calibrated(trace=write(tmp_path / "trace.json", events(step)))
    assert Costs(step.network, device, 2).of(call, 0).contention == 0.0


def test_a_program_with_other_operators_keeps_what_is_described(tmp_path):
    traced = prediction(2)
    device = traced.calibrated(trace=write(tmp_path / "trace.json", events(traced)))
    log = NodeLog()
    log.compute("mm", 10**12, 0, kind="product", shape=(1, 1, 1, 1), dtype="bfloat16")
    other = replace(traced, recordings=[Recording(0, log.nodes, [(0, 1)], {}, "")], device=device)
    assert other.seconds == pytest.approx(1.0)
    assert other.longer.keys() == {"peak"}


def test_calls_that_were_under_way_together_have_shared_the_link(tmp_path):
    step = prediction(2)
    large, small = (node.sent[0] // 4 for node in step.recordings[0].nodes[-2:])
    together = [gloo(0, 100e3, large), gloo(60e3, 20e3, small)]
    trace = write(tmp_path / "trace.json", [*events(step)[:6], *together])
    device = step.calibrated(trace=trace)
    assert [call.seconds for call in device.measured.calls] == pytest.approx([90e-3, 10e-3])


def test_those_that_waited_for_other_ranks_do_not_count(tmp_path):
    step = prediction(2)
    elements = step.recordings[0].nodes[-1].sent[0] // 4
    calls = [gloo(1e6 * turn, took, elements) for turn, took in enumerate((900, 50, 40, 9000))]
    device = step.calibrated(trace=write(tmp_path / "trace.json", [*events(step)[:6], *calls]))
    assert device.measured.calls[0].seconds == pytest.approx(40e-6)


def test_a_trace_without_collectives_keeps_the_network(tmp_path):
    step = prediction(2)
    kernels = [event for event in events(step) if "gloo" not in event["name"]]
    device = step.calibrated(trace=write(tmp_path / "trace.json", kernels))
    assert device.measured.calls == ()
    assert prediction(2, device).longer.keys() == {"measured", "network"}


def test_operators_that_do_not_match_in_order_get_their_mean(tmp_path):
    step = prediction(2)
    sums = [event for event in events(step) if event["name"] == "aten::sum"]
    products = [event for event in events(step) if event["name"] == "aten::mm"]
    # half a step is missing, so nobody knows which one is which
    device = step.calibrated(trace=write(tmp_path / "trace.json", [*products, *sums[1:]]))
    (found,) = [kernel for kernel in device.measured.kernels if kernel.name == "sum"]
    mean = sum(event["dur"] for event in sums[1:]) / 5 / 1e6
    assert (found.seconds, found.count) == (pytest.approx(mean), 1)


def test_what_is_left_is_the_time_of_kernels_with_other_names(tmp_path):
    """As fused kernels have, whose bytes are those of the program."""
    step = prediction(2)
    renamed = []
    for event in events(step):
        fused = event["name"] == "aten::sum"
        renamed.append(event | {"name": "triton_poi_fused_sum_0"} if fused else event)
    device = step.calibrated(trace=write(tmp_path / "trace.json", renamed))
    assert device.measured.share < 1
    left = sum(event["dur"] for event in events(step) if event["name"] == "aten::sum")
    sums = [kernel for kernel in device.measured.kernels if kernel.name == "sum"]
    assert sum(kernel.seconds for kernel in sums) == pytest.approx(left / STEPS / 1e6)
    by_bytes = [kernel.seconds / kernel.num_bytes for kernel in sums]
    assert by_bytes[0] == pytest.approx(by_bytes[1])


def test_attention_is_found_under_the_name_of_its_device(tmp_path):
    log = NodeLog()
    shape = (1, 8, 8, 64, 64, 32, 1)
    name = "_scaled_dot_product_flash_attention_for_cpu"
    log.compute(name, 100, 1, kind="attention", shape=shape, dtype="bfloat16")
    step = replace(prediction(2), recordings=[Recording(0, log.nodes, [(0, 1)], {}, "")])
    sizes = [(1, 8, 64, 32)] * 3
    event = operator("aten::scaled_dot_product_attention", 0, 7, sizes, ["c10::BFloat16"] * 3)
    device = step.calibrated(trace=write(tmp_path / "trace.json", [event]))
    (found,) = device.measured.kernels
    assert (found.shape, found.seconds) == (shape, pytest.approx(7e-6))


def test_a_trace_of_another_program_is_refused(tmp_path):
    trace = write(tmp_path / "trace.json", events(prediction(2, width=48)))
    with pytest.raises(ArgumentError) as error:
        prediction(2, width=64).calibrated(trace=trace)
    assert str(error.value).startswith(
        "The trace trace.json is of another program: the predicted one has "
    )
    assert "and no mm. Predict the program that was traced" in str(error.value)


def test_a_trace_without_any_time_is_refused(tmp_path):
    nothing = [event | {"dur": 0} for event in events(prediction(2))]
    with pytest.raises(ArgumentError, match=r"The trace trace\.json has no kernel that took time"):
        prediction(2).calibrated(trace=write(tmp_path / "trace.json", nothing))


def test_one_of_seconds_and_trace_is_needed():
    with pytest.raises(ArgumentError, match="calibrated takes either seconds or a trace"):
        prediction(2).calibrated()
    with pytest.raises(ArgumentError, match="calibrated takes either seconds or a trace"):
        prediction(2).calibrated(1.0, trace="trace.json")
