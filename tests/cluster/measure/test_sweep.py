"""distlab.sweep on real ranks: what is measured, what fails, and what a person sees."""

import math
import os
import re
import signal
import threading
import time

import torch.distributed as dist

import distlab
from tests.cluster.conftest import plain
from tests.processes import until
from tests.refused import raised


def fails(tensor, group=None):
    """A function of a module that no rank can import; it fails with 16 floats on rank 1."""
    if dist.get_rank() == 1 and tensor.numel() >= 16:
        raise ValueError("one chunk is missing")
    dist.all_reduce(tensor, group=group)


def test_every_function_size_and_number_of_ranks_is_measured(usable):
    """In order, with as many repetitions as were asked for and times above 0."""
    result = distlab.sweep(
        usable, {"gloo": dist.all_reduce, "mine": fails}, [8, 60], ranks=[4, 2, 1], repeat=4
    )
    assert [*result.timings] == [
        (n, size, name) for n in (4, 2, 1) for size in (8, 60) for name in ("gloo", "mine")
    ]
    for timing in result.timings.values():
        assert len(timing.repetitions) == 4
        assert all(0 < seconds < math.inf for seconds in timing.repetitions)


def test_functions_take_turns_in_the_right_group(usable):
    """Each turn calls every function once, on all ranks in the same order.

    Each call has a tensor of zeros of the size, and as many ranks in its group as were asked for.
    """

    def first(tensor, group=None):
        calls.append((0, tensor.numel(), tensor.sum().item(), dist.get_world_size(group)))  # noqa: F821

    def second(tensor, group=None):
        calls.append((1, tensor.numel(), tensor.sum().item(), dist.get_world_size(group)))  # noqa: F821

    usable.push({"calls": []})
    distlab.sweep(
        usable, {"first": first, "second": second}, [24], ranks=[3, 4], repeat=10, warmup=1
    )
    calls_of_ranks = usable.pull("calls")
    *three, others = calls_of_ranks
    four = calls_of_ranks[0]
    assert three == [four] * 3
    assert others == four[24:]
    assert {call[1:] for call in four[:24]} == {(6, 0, 3)}
    assert {call[1:] for call in others} == {(6, 0, 4)}
    turns = []
    for one, other in zip(others[::2], others[1::2], strict=True):
        turns.append((one[0], other[0]))
    assert turns[:2] == [(0, 1)] * 2  # the first call, and the warm-up
    assert {*turns[2:]} == {(0, 1), (1, 0)}


def test_a_function_that_raises_is_shown_and_what_was_measured_is_kept(usable):
    """The error names size, rank and line; `partial` has what was measured before."""
    groups = "len(dist.distributed_c10d._world.pg_map)"
    before = usable.client[:].apply_sync(eval, groups)
    functions = {"gloo": dist.all_reduce, "mine": fails}
    error = raised(
        distlab.errors.SweepError,
        distlab.sweep,
        usable,
        functions,
        [8, 64, 512],
        ranks=[2],
        repeat=2,
    )
    lines = str(error).splitlines()
    assert lines[0] == "gloo or mine failed at 64 B on 2 ranks."
    assert lines[1] == "RankError: rank 1 raised ValueError: one chunk is missing"
    assert 'raise ValueError("one chunk is missing")' in str(error)
    assert (
        lines[-1] == "2 times measured before that: `import sys; sys.last_value.partial` has them."
    )
    assert [*error.partial.timings] == [(2, 8, "gloo"), (2, 8, "mine")]
    assert (error.failures[0].rank, type(error.__cause__)) == (1, distlab.RankError)
    # none of the sweep's is left; what a failure frees may be groups of earlier tests as well
    after = usable.client[:].apply_sync(eval, groups)
    assert all(now <= then for now, then in zip(after, before, strict=True))


SWEEP = """
import torch.distributed as dist
swept = distlab.sweep(cluster, {'gloo': dist.all_reduce}, [256, 1024], repeat=2)
"""


def test_a_person_sees_progress_that_is_gone_afterwards(notebook):
    """A person sees progress in one line that ends empty; a program sees nothing."""
    messages = notebook.run(SWEEP, someone_watches=True)
    assert {message.get("name") for message in messages} == {"stdout"}
    lines = [line.strip() for line in "".join(map(plain, messages)).split("\r")]
    assert any(re.fullmatch(r"1 of 2 .*, 1 KiB on 2 ranks", line) for line in lines)
    assert lines[-2:] == ["", ""]
    assert notebook.run(SWEEP) == []


def test_an_interrupted_sweep_keeps_what_it_has(usable, python_handles_sigint, tmp_path):
    """The error has what was measured, and says how a notebook gets it."""
    begun = tmp_path / "begun"

    def slow(tensor):
        if tensor.numel() > 64:
            begun.touch()
            time.sleep(60)

    def interrupt():
        until(begun.exists)
        time.sleep(0.5)  # every rank has what it is to do
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Thread(target=interrupt)
    timer.start()
    error = raised(KeyboardInterrupt, distlab.sweep, usable, {"slow": slow}, [256, 1024], repeat=2)
    timer.join()
    assert "1 time measured before that: `import sys; sys.last_value.partial` has them." in str(
        error
    )
    assert len(error.partial.timings) == 1
