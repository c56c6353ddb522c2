"""What a rank says of itself to the notebook: whether it is idle, computes, or waits, and in which call."""

import sys
import sysconfig
import threading
from datetime import timedelta
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from distlab.rank import hooks, status, watchdog
from distlab.wire.messages import OTHER, CallRecord, MessageCount
from tests.unit.rank.conftest import LIMIT, Slow, noted


def as_a_cell(function):
    """Run it by a function of this name in this module of IPython's."""
    shell = {"__name__": "IPython.core.interactiveshell"}
    exec("def run_code(code, names):\n    exec(code, names)", shell)
    shell["run_code"](compile("function()", "<cell>", "exec"), {"function": function})


@pytest.fixture
def doing():
    """Runs something on a thread that plays the main thread; gives its summary while it does."""
    threads = []

    def summary_of(function, ready, end, run=as_a_cell):
        thread = threading.Thread(target=run, args=(function,))
        threads.append((thread, end))
        thread.start()
        assert ready.wait(10)
        return status.summary(thread.ident, set(), lambda: (0, False))

    yield summary_of
    for thread, end in threads:
        end.set()
        thread.join(10)


def test_a_rank_that_waits_says_in_which_call_and_where(four, doing):
    """The call with its arguments, the learner's lines outermost first, and how long."""
    work, _ = noted("send", [torch.ones(3)], 2, 7)
    wait = hooks.waiting("wait", Slow.wait)

    def cell():
        wait(work)

    said = doing(cell, work.entered, work.end)
    call = said.call
    assert said.doing == "communicating"
    assert (call.kind, call.is_send, call.peer, call.tag, call.sequence) == ("message", True, 2, 7, 1)
    assert call.tensors == (("float32", (3,)),)
    assert [line.place for line in said.lines][-2:] == ["cell", "wait"]  # the wait is one of the tests'
    assert said.traffic == (MessageCount(True, "0", 2, 7, 1),)
    assert said.groups == 1


@pytest.mark.parametrize(
    ("run", "words", "told"),
    [(as_a_cell, "computing", []), (lambda function: function(), "idle", ["all_reduce"])],
    ids=["a cell", "the engine"],
)
def test_a_rank_that_is_in_no_call(four, doing, run, words, told):
    """What the engine does by itself is not the learner's; a cell's collectives are left out, to answer at once."""
    dist.all_reduce(torch.ones(1))
    ready, end = threading.Event(), threading.Event()

    def code():
        ready.set()
        end.wait(10)

    said = doing(code, ready, end, run)
    assert (said.doing, said.call, said.quiet) == (words, None, False)
    assert [old.op for old in said.history] == told


# waits in C, as a call of a process group does: no frame of Python is deeper
GIVEN = "ranks=None, timeout=None, use_local_synchronization=False"
WAITS = f"def {{0}}(ready, end, {GIVEN}):\n    ready.put(1)\n    end.get()\n"


@pytest.fixture
def in_library(doing):
    """The summary of a rank that waits in a function of a library; a cell has called it."""

    def summary_of(module, function, **given):
        ready, end = SimpleQueue(), SimpleQueue()
        library = {"__name__": module}
        exec(compile(WAITS.format(function), f"{sysconfig.get_path('purelib')}/{module}.py", "exec"), library)
        return doing(
            lambda: library[function](ready, end, **given),
            SimpleNamespace(wait=lambda seconds: ready.get(timeout=seconds)),
            SimpleNamespace(set=lambda: end.put(1)),
        )

    return summary_of


@pytest.mark.parametrize(
    ("module", "function", "op", "own_limit"),
    [
        ("torch.autograd.graph", "_engine_run_backward", "backward", False),
        ("torch.nn.parallel.distributed", "_sync_module_states", "DistributedDataParallel", False),
        ("torch.distributed.distributed_c10d", "init_process_group", "init_process_group", True),
        ("torch.distributed.checkpoint", "save", "checkpoint", True),
    ],
)
def test_a_wait_without_a_note_is_told_by_where_it_is(four, in_library, module, function, op, own_limit):
    """Of backward() and of a model in training it is known that they wait for the others; the rest may end."""
    said = in_library(module, function)
    assert said.doing == "communicating"
    assert said.call == CallRecord(op, OTHER, (0, 1, 2, 3), own_limit)


def test_training_may_end_where_a_group_has_a_shorter_limit(alone, in_library):
    """Nobody knows in which group C++ waits: one with a limit of its own may be it."""
    assert not in_library("torch.autograd.graph", "run").call.own_limit
    dist.new_group([0], timeout=timedelta(seconds=5))
    assert in_library("torch.autograd.graph", "run").call.own_limit


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ({"ranks": [3, 1]}, {"members": (1, 3), "sequence": 1}),
        ({"ranks": None}, {"members": (0, 1, 2, 3), "sequence": 1}),
        ({"ranks": [1], "timeout": LIMIT}, {"members": (1,), "own_limit": True, "sequence": 1}),
        ({"ranks": [1, 2], "use_local_synchronization": True}, {"members": (1, 2)}),
    ],
    ids=["some", "all", "with a limit", "local"],
)
def test_a_wait_in_new_group_says_whom_it_needs(four, in_library, given, known):
    """The members, and how many groups were made; those that members make alone are not counted."""
    call = in_library("torch.distributed.distributed_c10d", "new_group", **given).call
    assert call == CallRecord("new_group", OTHER, **known)


def test_variables_are_the_learners(monkeypatch):
    """Names that a cell has defined: no modules, nothing private, nothing that distlab or IPython has put there."""
    defined = {"x": 1, "model": 2, "_private": 3, "torch": torch}
    given = {"rank": 0, "world_size": 2, "In": [], "get_ipython": len}
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(**defined, **given))
    assert watchdog.variables() == ("model", "x")
