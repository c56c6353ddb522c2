"""distlab.sweep on real ranks: what is measured, on which ranks, what becomes of errors, and what a person sees."""

import math
import os
import re
import signal
import threading
import time

import torch
import torch.distributed as dist

import distlab
from tests.cluster.conftest import plain
from tests.processes import until
from tests.refused import raised


def my_sum(tensor, group=None):
    """A function of the test's own module, which no rank can import."""
    dist.all_reduce(tensor, group=group)


def fails(tensor, group=None):
    """A function that sums, but not on rank 1 when its tensor has 16 floats or more."""
    if dist.get_rank() == 1 and tensor.numel() >= 16:
        raise ValueError("one chunk is missing")
    dist.all_reduce(tensor, group=group)


def test_every_function_size_and_number_of_ranks_is_measured(usable):
    """A point for each, in order, with as many repetitions as were asked for and times above 0."""
    result = distlab.sweep(usable, {"gloo": dist.all_reduce, "mine": my_sum}, [8, 4096], ranks=[4, 2, 1], repeat=4)
    assert [*result.timings] == [(n, size, name) for n in (4, 2, 1) for size in (8, 4096) for name in ("gloo", "mine")]
    for timing in result.timings.values():
        assert len(timing.repetitions) == 4
        assert all(0 < seconds < math.inf for seconds in timing.repetitions)


def test_a_function_gets_the_right_tensor_in_the_right_group(usable):
    """Each call has a tensor of zeros of the size, and as many ranks in its group as were asked for."""

    def look(tensor, group=None):
        seen.append((tensor.shape, tensor.sum().item(), dist.get_world_size(group)))  # noqa: F821

    usable.push({"seen": []})
    distlab.sweep(usable, {"look": look}, [24], ranks=[3, 4], repeat=2, warmup=1)
    call = (torch.Size([6]), 0)
    assert usable.pull("seen") == [[(*call, 3)] * 4 + [(*call, 4)] * 4] * 3 + [[(*call, 4)] * 4]


def test_functions_take_turns(usable):
    """Each turn calls every function once, on all ranks in the same order, which is another in other turns."""

    def first(tensor):
        order.append("first")  # noqa: F821

    def second(tensor):
        order.append("second")  # noqa: F821

    usable.push({"order": []})
    distlab.sweep(usable, {"first": first, "second": second}, [4], repeat=20, warmup=1)
    called = usable.pull("order")
    assert called == [called[0]] * 4
    tried, warmed, *timed = zip(called[0][::2], called[0][1::2], strict=True)
    assert tried == warmed == ("first", "second")
    assert len(timed) == 20
    assert {*timed} == {("first", "second"), ("second", "first")}


def test_a_function_that_raises_is_named_and_what_was_measured_is_kept(usable):
    """The error names function, size, rank and line; `partial` has the sizes before; groups of fewer ranks are gone."""
    groups = "len(dist.distributed_c10d._world.pg_map)"
    before = usable.client[:].apply_sync(eval, groups)
    functions = {"gloo": dist.all_reduce, "mine": fails}
    error = raised(distlab.SweepError, distlab.sweep, usable, functions, [8, 64, 512], ranks=[2], repeat=2)
    lines = str(error).splitlines()
    assert lines[0] == "mine failed at 64 B on 2 ranks."
    assert lines[1] == "RankError: rank 1 raised ValueError: one chunk is missing"
    assert 'raise ValueError("one chunk is missing")' in str(error)
    assert lines[-1] == "2 of 6 times were measured before: `import sys; sys.last_value.partial` has them."
    assert [*error.partial.timings] == [(2, 8, "gloo"), (2, 8, "mine")]
    assert (error.failures[0].rank, type(error.__cause__)) == (1, distlab.RankError)
    assert usable.client[:].apply_sync(eval, groups) == before


def test_a_function_that_fails_later_is_one_of_those_that_took_turns(usable):
    """After the first call has passed, the error names all the functions of that size."""

    def third(tensor):
        counter.append(0)  # noqa: F821
        if len(counter) == 3:  # noqa: F821
            raise ValueError("the third time")

    usable.push({"counter": []})
    functions = {"gloo": dist.all_reduce, "third": third}
    error = raised(distlab.SweepError, distlab.sweep, usable, functions, [8], repeat=2)
    assert str(error).splitlines()[0] == "one of gloo, third failed at 8 B on 4 ranks."
    assert error.partial.timings == {}


SWEEP = """
import torch.distributed as dist
swept = distlab.sweep(cluster, {'gloo': dist.all_reduce}, [256, 1024], repeat=2)
"""


def test_a_person_sees_progress_that_is_gone_afterwards(notebook):
    """A person sees how far it is, in one line that ends empty; a program that runs the notebook sees nothing."""
    messages = notebook.run(SWEEP, someone_watches=True)
    assert {message.get("name") for message in messages} == {"stdout"}
    lines = [line.strip() for line in "".join(map(plain, messages)).split("\r")]
    assert any(re.fullmatch(r"0 of 2 .*, 256 B on 2 ranks", line) for line in lines)
    assert any(re.fullmatch(r"1 of 2 .*, 1 KiB on 2 ranks", line) for line in lines)
    assert lines[-2:] == ["", ""]
    assert notebook.run(SWEEP) == []


def test_an_interrupted_sweep_keeps_what_it_has(usable, python_handles_sigint, tmp_path):
    """Interrupted in the middle, the error has what was measured, and says how a notebook gets it."""
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
    assert "1 of 2 times were measured before: `import sys; sys.last_value.partial` has them." in str(error)
    assert len(error.partial.timings) == 1
