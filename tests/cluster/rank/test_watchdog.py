"""What goes wrong on the thread that watches a rank is a line, and everything goes on."""

import gc
import os
import socket
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import distlab
from distlab.rank import status, watchdog
from tests.cluster.conftest import pid_on_rank, stuck, sum_of_ranks
from tests.refused import raised

CLUSTER = {"n": 2, "timeout": 60}
pytestmark = pytest.mark.usefixtures("quick_watch")


def fails(*_, **__):
    raise ZeroDivisionError("of a test,\nin two lines")


# --- an exception on the thread ---


def with_a_fault(owner, name, instead=fails):
    """Replace the owner's function on rank 1 until the rank was asked a few times."""
    original, calls = getattr(owner, name), []

    def noted(*args):
        calls.append(args)
        return instead(*args)

    if os.environ["RANK"] == "1":
        setattr(owner, name, noted)
        while len(calls) < 6:
            time.sleep(0.001)
        setattr(owner, name, original)


def summary_fails(rank, world_size):
    with_a_fault(status, "summary")


def a_field_is_not_plain(rank, world_size):
    original = status.summary

    def with_numpys_rank(*args):
        return replace(original(*args), rank=np.int64(rank))

    with_a_fault(status, "summary", with_numpys_rank)


def decoding_fails(rank, world_size):
    with_a_fault(watchdog, "from_json")


def health(rank, world_size):
    """Whether garbage is collected on this rank, and its watchdogs."""
    return gc.isenabled(), [
        thread.name for thread in threading.enumerate() if isinstance(thread, watchdog.Watchdog)
    ]


RAISED = (
    "ZeroDivisionError: of a test, in two lines (test_watchdog.py, line "
    f"{fails.__code__.co_firstlineno + 1})"
)
UNSEEN = "distlab cannot see what rank 1 is doing, so it finds no deadlocks"
NOT_PLAIN = (
    f"ArgumentTypeError: RankStatus.rank must be a value of type int, got {np.int64(1)!r}. "
    "(arguments.py, line "
)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (summary_fails, f"{UNSEEN}: {RAISED}"),
        (a_field_is_not_plain, f"{UNSEEN}: {NOT_PLAIN}"),
        (decoding_fails, f"distlab itself failed on rank 1: {RAISED}"),
    ],
)
def test_an_exception_is_shown_in_a_line_and_the_thread_goes_on(usable, capfd, program, words):
    """No traceback; garbage is collected as before; the next deadlock is proven."""
    usable.ranks._troubles.shown = False
    pids = usable.run(pid_on_rank)
    usable.run(program)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(words)
    assert usable.run(health) == [(True, ["distlab-watchdog"])] * 2
    raised(distlab.DeadlockError, usable.run, stuck)
    assert usable.run(pid_on_rank) == pids


# --- a thread that is gone ---


def connection_ends(rank, world_size):
    if rank == 1:
        watchdog.running()._channel.shutdown(socket.SHUT_RDWR)
        wait_for_its_end()


def thread_ends(rank, world_size):
    """It cannot even receive: what is left is to close the connection."""
    if rank == 1:
        watchdog.running()._act = fails
        wait_for_its_end()


def report_fails_too(rank, world_size):
    """Python prints the traceback then, which is not what this is about."""
    if rank == 1:
        threading.excepthook = lambda *_: None
        watchdog.running().on_error = fails
    thread_ends(rank, world_size)


def wait_for_its_end():
    while watchdog.running() is not None:
        time.sleep(0.001)


LOST = (
    "Since the last cell, rank 1 was cut off from the notebook. "
    "A new process starts without variables.\n"
)


@pytest.mark.parametrize("program", [connection_ends, thread_ends, report_fails_too])
@pytest.mark.parametrize("call", [sum_of_ranks, stuck], ids=["a cell", "a deadlock"])
def test_a_rank_without_its_watchdog_is_replaced(usable, capfd, program, call):
    """As a dead one is; the other rank keeps its variables, and deadlocks are proven."""
    usable.ranks._troubles.shown = True
    usable.push({"kept": 5})
    before = usable.run(pid_on_rank)
    usable.run(program)
    if call is stuck:
        raised(distlab.DeadlockError, usable.run, stuck)
    else:
        assert usable.run(sum_of_ranks) == [1.0] * 2
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == (LOST, "")
    after = usable.run(pid_on_rank)
    assert (after[0], after[1] == before[1]) == (before[0], False)
    assert usable.pull("kept", ranks=[0]) == [5]
    assert usable.run(health) == [(True, ["distlab-watchdog"])] * 2


def cut_off_and_computing(rank, world_size):
    connection_ends(rank, world_size)
    while rank == 1:
        time.sleep(0.01)


def test_a_rank_that_is_cut_off_in_a_cell_can_still_be_ended(usable):
    """No interrupt reaches it: a new process takes its place."""
    usable.push({"kept": 5})
    text = str(raised(distlab.RankTimeout, usable.run, cut_off_and_computing, timeout=1))
    assert "Rank 1 could not be freed: a new process took its place" in text
    assert usable.pull("kept", ranks=[0]) == [5]


@pytest.mark.parametrize(
    "act", [lambda c: c.heal(), lambda c: c.interrupt()], ids=["heal", "interrupt"]
)
def test_heal_and_interrupt_replace_it_too(usable, capfd, act):
    """Whatever is called next."""
    pid = usable.run(pid_on_rank)[1]
    usable.run(connection_ends)
    act(usable)
    assert usable.run(sum_of_ranks) == [1.0] * 2
    assert capfd.readouterr().out == LOST
    assert usable.run(pid_on_rank)[1] != pid
