"""What a cell replaces or leaves on its rank does not outlive it."""

import builtins
import gc
import logging
import multiprocessing
import os
import signal
import sys
import time

import ipyparallel
import psutil
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import distlab
from tests.refused import raised

CLUSTER = {"n": 2, "timeout": 20}
FORK = multiprocessing.get_context("fork")
pytestmark = pytest.mark.usefixtures("quick_watch")


def recv_from_the_other(rank, world_size):
    dist.recv(torch.ones(1), src=1 - rank)


def children(rank, world_size):
    return [
        child.pid for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE
    ]


# --- processes that a cell forks ---


def square_in_a_pool(rank, world_size):
    with FORK.Pool(2) as pool:
        return pool.map(abs, [-1, 2])


def load(rank, world_size):
    return [batch.tolist() for batch in DataLoader(torch.arange(4), batch_size=2, num_workers=2)]


def fork_a_child_that_returns(rank, world_size):
    child = os.fork()
    if child == 0:
        return signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def test_a_pool_of_processes_ends(usable):
    assert usable.run(square_in_a_pool, timeout=60) == [[1, 2]] * 2
    assert usable.run(load, timeout=60) == [[[0, 1], [2, 3]]] * 2
    assert usable.run(children) == [[], []]


def refuse(items):
    raise ValueError(f"cannot load {len(items)} items")


def load_what_cannot_be_loaded(rank, world_size):
    for _ in DataLoader(
        torch.arange(4), num_workers=2, collate_fn=refuse, multiprocessing_context="fork"
    ):
        pass


def fork_one_that_collects(rank, world_size):
    child = FORK.Process(target=gc.collect)
    child.start()
    child.join()


LOAD = """
from torch.utils.data import DataLoader
def refuse(items):
    raise ValueError("cannot load")
for _ in DataLoader(range(4), num_workers=2, collate_fn=refuse, multiprocessing_context="fork"):
    pass
"""


def test_workers_of_a_loader_that_failed_end_with_the_call_or_the_cell(usable, capsys):
    """Only a traceback holds their loader; a later child has none to complain of."""
    assert "cannot load 1 items" in str(
        raised(distlab.RankError, usable.run, load_what_cannot_be_loaded)
    )
    assert usable.run(children) == [[], []]
    usable.run(fork_one_that_collects)
    for _ in range(2):
        raised(ipyparallel.CompositeError, usable.client[:].execute, LOAD, block=True)
        assert usable.run(children) == [[], []]
    usable.run(fork_one_that_collects)
    assert "Exception ignored" not in capsys.readouterr().err


def leave_a_group_to_a_child(rank, world_size):
    """A process group that only the garbage collector can end, and a child that collects."""
    gc.disable()
    group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)
    dist.destroy_process_group(group)
    cycle = [group]
    cycle.append(cycle)
    del group, cycle
    child = FORK.Process(target=gc.collect)
    child.start()
    child.join(20)
    code = child.exitcode
    child.kill()
    gc.enable()
    return code, gc.collect() > 0


def collects_in_a_child(rank, world_size):
    with FORK.Pool(1) as pool:
        return pool.apply(gc.isenabled)


def test_a_child_collects_nothing_of_its_parents(usable):
    """A group's destructor waits for threads, which are not in the child: it would never return."""
    assert usable.run(leave_a_group_to_a_child) == [(0, True)] * 2


def test_a_child_collects_what_is_its_own(usable):
    """Though the collector was paused while it was forked, and perhaps by the watchdog as well."""
    assert usable.run(collects_in_a_child) == [True, True]


def test_a_child_ends_with_the_call_or_the_cell(usable):
    """Also where it raises."""
    assert usable.run(fork_a_child_that_returns, timeout=60) == [0, 0]
    for code, status in (("pass", 0), ("1 / 0", 1)):
        usable.client[:].execute(
            (
                "import os\n"
                "child = os.fork()\n"
                "if child == 0:\n"
                f"    {code}\n"
                "else:\n"
                "    left = os.waitpid(child, 0)[1]"
            ),
            block=True,
        )
        assert [os.waitstatus_to_exitcode(left) for left in usable.pull("left")] == [status] * 2
    assert usable.run(children) == [[], []]


class Shown(torch.utils.data.Dataset):
    """Prints what it is asked for, as a learner does who looks into a data set."""

    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 2

    def __getitem__(self, number):
        print(f"item {number} of rank {self.rank}")
        return number


def print_in_a_process(rank, world_size):
    child = FORK.Process(target=print, args=(f"process of rank {rank}",))
    child.start()
    child.join()


def print_in_a_grandchild(rank, world_size):
    child = FORK.Process(target=print_in_a_child, args=(rank,))
    child.start()
    child.join()


def print_in_a_child(rank):
    child = os.fork()
    if child == 0:
        print(f"grandchild of rank {rank}")
        os._exit(0)
    os.waitpid(child, 0)


def print_in_a_pool(rank, world_size):
    with FORK.Pool(2) as pool:
        pool.map(print, [f"pool of rank {rank}"] * 3)


def print_in_a_loader(rank, world_size):
    list(DataLoader(Shown(rank), num_workers=1, multiprocessing_context="fork"))


def print_by_a_handler(rank, world_size):
    handler = logging.StreamHandler(sys.stdout)  # made by the rank, and used by the child
    child = FORK.Process(
        target=handler.emit, args=(logging.makeLogRecord({"msg": f"log of rank {rank}"}),)
    )
    child.start()
    child.join()


def raise_in_a_process(rank, world_size):
    child = FORK.Process(target=int, args=(f"number of rank {rank}",))
    child.start()
    child.join()


PRINTED = {
    print_in_a_process: ["process of rank {}"],
    print_in_a_grandchild: ["grandchild of rank {}"],
    print_in_a_pool: ["pool of rank {}"] * 3,
    print_in_a_loader: ["item 0 of rank {}", "item 1 of rank {}"],
    print_by_a_handler: ["log of rank {}"],
}


@pytest.mark.parametrize(
    ("program", "lines"), PRINTED.items(), ids=[program.__name__ for program in PRINTED]
)
def test_what_a_forked_child_prints_is_shown_under_its_rank(usable, capsys, program, lines):
    """In the order of the ranks, as what the ranks print."""
    usable.run(program, timeout=60)
    expected = []
    for rank in range(2):
        first, *others = [line.format(rank) for line in lines]
        expected += [f"rank {rank}: {first}", *others]
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == expected


def test_what_a_forked_child_raises_is_shown(usable, capsys):
    """Python itself prints it, on stderr."""
    usable.run(raise_in_a_process, timeout=60)
    shown = capsys.readouterr().out
    for rank in range(2):
        assert (
            f"ValueError: invalid literal for int() with base 10: 'number of rank {rank}'" in shown
        )


def start_a_child_that_stays(rank, world_size):
    import __main__

    mine, its = FORK.Pipe()
    __main__.child = FORK.Process(target=lambda: print(f"{its.recv()} of rank {rank}"), daemon=True)
    __main__.child.start()
    __main__.end = mine


def let_it_print(rank, world_size):
    import __main__

    __main__.end.send("late words")
    __main__.child.join()
    return __main__.child.exitcode


def test_a_child_that_outlives_its_cell_prints_in_the_one_that_runs_then(usable, capsys):
    usable.run(start_a_child_that_stays, timeout=60)
    assert "late words" not in capsys.readouterr().out
    assert usable.run(let_it_print, timeout=60) == [0, 0]
    shown = capsys.readouterr().out
    for rank in range(2):
        assert f"late words of rank {rank}" in shown


def test_a_rank_formats_no_source_that_nobody_reads(usable):
    """IPython's form of a traceback would parse torch's files on every rank."""
    failed = raised(ipyparallel.error.CompositeError, usable.client[:].execute, "1 / 0", block=True)
    tracebacks = [traceback for _, _, traceback, _ in failed.elist]
    assert ["ZeroDivisionError" in text for text in tracebacks] == [True] * 2
    assert ["---->" in text for text in tracebacks] == [False] * 2


# --- what a cell replaces ---


def count_nothing(rank, world_size):
    builtins.len, builtins.open = lambda _: 7, None
    dist.recv(torch.ones(1), src=1 - rank)


def test_builtins_are_restored(usable):
    """A deadlock is found meanwhile; the code of a cell may replace them as well."""
    with pytest.raises(distlab.DeadlockError):
        usable.run(count_nothing)
    usable.client[:].execute(
        "import builtins\nbuiltins.len = builtins.isinstance = None", block=True
    )
    assert usable.run(lambda rank, world_size: len("ab")) == [2, 2]


def lose_the_interface(rank, world_size):
    os.environ.update(GLOO_SOCKET_IFNAME="nowhere", RANK="7")


def lose_the_group(rank, world_size):
    dist.group.WORLD = None


@pytest.mark.parametrize("lose", [lose_the_interface, lose_the_group])
def test_a_group_is_rebuilt_from_the_first_state(usable, lose):
    usable.push({"kept": 1})
    usable.run(lose)
    usable.heal()
    assert usable.pull("kept") == [1, 1]
    assert usable.run(lambda rank, world_size: os.environ["RANK"]) == ["0", "1"]


# --- the watchdog ---


def break_status(rank, world_size, broken):
    from distlab.rank import status

    status.summary, status.kept = (fail, status.summary) if broken else (status.kept, None)


def fail(*_):
    raise ZeroDivisionError("a fault of the watchdog")


def note_collection(rank, world_size):
    import __main__
    from distlab.rank import status

    summary, __main__.seen = status.summary, []

    def noting(*args):
        __main__.seen.append(gc.isenabled())
        return summary(*args)

    status.summary = noting
    time.sleep(0.6)
    status.summary = summary
    return __main__.seen, gc.isenabled()


def test_nothing_is_collected_while_the_watchdog_reads_frames(usable):
    """A collection would let the thread run whose frame is being read: SIGSEGV on 3.11."""
    for seen, enabled in usable.run(note_collection):
        assert set(seen) == {False}
        assert enabled


def test_a_watchdog_that_fails_is_reported_once(usable, capsys):
    usable.run(break_status, True)
    for _ in range(2):
        usable.run(lambda rank, world_size: time.sleep(0.5))
    usable.run(break_status, False)
    shown = capsys.readouterr().err
    assert shown.count("distlab cannot see what rank") == 1
    assert "ZeroDivisionError: a fault of the watchdog" in shown
    raised(distlab.DeadlockError, usable.run, recv_from_the_other)
