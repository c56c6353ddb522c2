"""What a rank reports of a wait without a note: where, for whom, and whether it may end."""

import asyncio
import functools
import gc
import sys
import sysconfig
import threading
import weakref
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from distlab.rank import quiescence, status, watchdog
from distlab.rank import threads as rank_threads
from distlab.wire.messages import OTHER, CallRecord

# waits in C, as a call of a process group does: no frame of Python is deeper
GIVEN = "ranks=None, timeout=None, use_local_synchronization=False"
WAITS = f"def {{0}}(ready, end, {GIVEN}):\n    ready.put(1)\n    end.get()\n"


def as_a_cell(function):
    """Run it by a function of this name in this module of IPython's."""
    shell = {"__name__": "IPython.core.interactiveshell"}
    exec("def run_code(code, names):\n    exec(code, names)", shell)
    shell["run_code"](compile("function()", "<cell>", "exec"), {"function": function})


@pytest.fixture
def summary():
    """A rank's report while its main thread waits in a library, for a cell or the engine."""
    threads, end = [], SimpleQueue()

    def of(module, function, run=as_a_cell, **given):
        ready, library = SimpleQueue(), {"__name__": module}
        exec(
            compile(WAITS.format(function), f"{sysconfig.get_path('purelib')}/{module}.py", "exec"),
            library,
        )
        threads.append(
            threading.Thread(target=run, args=(lambda: library[function](ready, end, **given),))
        )
        threads[-1].start()
        ready.get(timeout=10)
        return status.summary(threads[-1].ident, set(), status.Traffic)

    yield of
    for thread in threads:
        end.put(1)
        thread.join(10)


C10D, ALL = "torch.distributed.distributed_c10d", (0, 1, 2, 3)
# of backward() and of a model in training it is known that they wait for the others; the rest may
# end
CALLS = [
    ("torch.autograd.graph", "_engine_run_backward", {}, CallRecord("backward", OTHER, ALL)),
    (
        "torch.nn.parallel.distributed",
        "_sync_module_states",
        {},
        CallRecord("DistributedDataParallel", OTHER, ALL),
    ),
    (
        "torch.distributed.checkpoint",
        "save",
        {},
        CallRecord("checkpoint", OTHER, ALL, own_limit=True),
    ),
]


@pytest.mark.parametrize(("module", "function", "given", "call"), CALLS)
def test_a_wait_without_a_note_is_told_by_where_it_is(four, summary, module, function, given, call):
    found = summary(module, function, **given)
    assert (found.doing, found.call) == ("communicating", call)


@pytest.mark.parametrize(
    ("run", "doing"), [(as_a_cell, "computing"), (lambda function: function(), "idle")]
)
def test_what_the_engine_does_by_itself_is_not_the_learners(four, summary, run, doing):
    """A cell's collectives are left out, to answer at once."""
    dist.all_reduce(torch.ones(1))
    found = summary("elsewhere", "work", run)
    assert (found.doing, found.call, found.is_quiescent) == (doing, None, False)
    assert [old.op for old in found.history] == (["all_reduce"] if doing == "idle" else [])


def in_a_loop(function):
    """Run it as the event loop runs a task's step or a callback."""
    loop = asyncio.new_event_loop()
    loop.call_soon(function)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()


def by_the_engine(function):
    """The same, where the engine has called it, for example to unpack a message."""
    engine = {"__name__": "ipykernel.kernelbase"}
    exec("def dispatch(function):\n    function()", engine)
    in_a_loop(functools.partial(engine["dispatch"], function))


@pytest.mark.parametrize(("run", "doing"), [(in_a_loop, "computing"), (by_the_engine, "idle")])
def test_what_the_event_loop_calls_is_the_learners_or_the_engines(four, summary, run, doing):
    """A task beside the cell counts as its code."""
    assert summary("elsewhere", "work", run).doing == doing


async def awaits(future):
    await future


async def awaits_below(future):
    await awaits(future)


def test_a_coroutine_that_waits_is_no_finished_rank(four, summary, monkeypatch):
    """Its lines are those of its coroutines, and it is not quiet."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(awaits_below(loop.create_future()))
    loop.call_soon(loop.stop)
    loop.run_forever()
    monkeypatch.setattr(status.around_cells, "_awaiting", [task])
    found = status.summary(threading.get_ident(), set(), status.Traffic, loop)
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    assert (found.doing, found.awaiting, found.idle, found.is_quiescent) == (
        "computing",
        True,
        False,
        False,
    )
    assert [line.function for line in found.lines] == ["awaits_below", "awaits"]


def test_what_a_loop_will_call_is_a_plan():
    """A task and a timer of the learner's; not those of a library."""
    loop = asyncio.new_event_loop()
    assert not quiescence.has_plans_of_learner(loop)
    library = loop.call_later(60, loop.stop)
    assert not quiescence.has_plans_of_learner(loop)
    library.cancel()
    for plan in (functools.partial(loop.call_later, 60), loop.call_soon):
        mine = plan(functools.partial(in_a_loop, None))
        assert quiescence.has_plans_of_learner(loop)
        mine.cancel()
        assert not quiescence.has_plans_of_learner(loop)
    task = loop.create_task(awaits(loop.create_future()))
    assert quiescence.has_plans_of_learner(loop)
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()


def test_variables_are_the_learners(monkeypatch):
    """Names that a cell has defined: no modules, nothing private, nothing of distlab's."""
    defined = {"x": 1, "model": 2, "_private": 3, "torch": torch}
    given = {"rank": 0, "world_size": 2, "In": [], "get_ipython": len}
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(**defined, **given))
    assert watchdog.variables() == ("model", "x")


def test_a_look_keeps_no_variable_alive():
    """What a function has held is freed although the threads were looked at."""

    def looked_at():
        held = torch.zeros(1)
        rank_threads.waiting_threads()
        return weakref.ref(held)

    gc.disable()  # a collection would free a circle
    try:
        assert looked_at()() is None
    finally:
        gc.enable()
