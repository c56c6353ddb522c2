"""Waits of a learner's own, by distlab.waiting: reported, proven, freed."""

import signal
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import distlab
from tests.processes import python
from tests.refused import raised


def never(rank, world_size):
    if rank == 0:
        with distlab.waiting("through a file", [1]) as wait:
            while True:
                wait.check()
                time.sleep(0.005)


def each_other(rank, world_size):
    with distlab.waiting("through a file", [1 - rank]) as wait:
        while True:
            wait.check()
            time.sleep(0.005)


def ends(rank, world_size):
    flag = torch.zeros(1)
    with distlab.waiting("through a file", [1 - rank]):
        dist.all_reduce(flag)
    return True


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (never, "Rank 0 waits through a file for rank 1, which has finished."),
        (
            each_other,
            (
                "2 of 2 ranks wait for each other: rank 0 through a file for rank 1, "
                "rank 1 through a file for"
            ),
        ),
    ],
)
def test_a_wait_of_ones_own_that_cannot_end(pair, program, words):
    """The report says by what means a rank waits and for whom, and the rank is freed."""
    error = raised(distlab.DeadlockError, pair.run, program)
    assert str(error).startswith(words)
    assert "waits through a file for rank 1" in str(error)
    assert pair.run(ends) == [True] * 2


def sleep_on(rank, world_size, fails):
    """Rank 1 never looks whether it was freed; where `fails`, rank 0 raises meanwhile."""
    if rank == 1:
        with distlab.waiting("through a file", [0]):
            time.sleep(600)
    elif fails:
        raise ValueError("not I")


def sleep_on_without_signals(rank, world_size):
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    sleep_on(rank, world_size, fails=True)


def late_or_computing(rank, world_size):
    """Rank 1 computes for longer than a rank is given that waits."""
    if rank == 0:
        raise ValueError("not I")
    end = time.monotonic() + 5
    while time.monotonic() < end:
        sum(range(1000))
    sys.modules["__main__"].computed = True


def test_a_wait_that_never_looks_is_interrupted(pair):
    pair.push({"kept": 3})
    error = raised(distlab.DeadlockError, pair.run, sleep_on, fails=False)
    assert str(error).startswith("Rank 1 waits through a file for rank 0, which has finished.")
    assert pair.pull("kept") == [3, 3]


def test_a_rank_that_raises_ends_a_wait_that_never_looks(pair):
    """The wait would go on for ever: it is no deadlock, because a rank has failed."""
    pair.push({"kept": 3})
    error = raised(distlab.RankError, pair.run, sleep_on, fails=True)
    assert str(error).startswith("rank 0 raised ValueError: not I\n")
    assert pair.pull("kept") == [3, 3]


def test_a_rank_that_cannot_be_freed_of_its_wait_is_replaced(pair):
    error = raised(distlab.RankError, pair.run, sleep_on_without_signals)
    words = str(error)
    assert words.startswith("rank 0 raised ValueError: not I\n")
    assert "Rank 1 had not finished." in words
    assert "Rank 1 could not be freed: a new process took its place" in words
    assert error.finished == ()
    assert pair.run(ends) == [True] * 2


def compute_on(rank, world_size):
    if rank == 0:
        raise ValueError("not I")
    while True:
        sum(range(1000))


def test_a_rank_that_computed_until_the_limit_did_not_wait(pair):
    error = raised(distlab.RankError, pair.run, compute_on, timeout=2)
    assert str(error).startswith("rank 0 raised ValueError: not I\n")
    assert "waited" not in str(error)


def give_up_while_the_other_sleeps(rank, world_size):
    """Rank 0 fails in a wait of its own, which has a limit, while rank 1 never looks."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    if rank == 0:
        dist.recv(torch.ones(1), src=1, group=group)
    sleep_on(rank, world_size, fails=False)


@pytest.mark.parametrize("timeout", [None, 200])
def test_an_error_after_a_limit_of_its_own_is_the_reason(pair, timeout):
    """The error is no RankTimeout, and says nothing of a limit that was not reached."""
    error = raised(distlab.RankError, pair.run, sleep_on_without_signals, timeout=timeout)
    assert "within" not in str(error)
    error = raised(distlab.RankError, pair.run, give_up_while_the_other_sleeps, timeout=timeout)
    assert "imed out" in str(error)
    assert error.failures[0].rank == 0


def test_a_rank_that_computes_is_not_ended_because_another_one_raised(pair):
    error = raised(distlab.RankError, pair.run, late_or_computing)
    assert error.finished == (1,)
    assert pair.client[1].pull("computed", block=True)


@pytest.fixture(scope="module")
def pair(nothing_left):
    with distlab.Cluster(2, timeout=30) as cluster:
        yield cluster


def test_without_a_cluster_it_does_nothing():
    """A script under torchrun may use it."""
    code = (
        "import distlab\n"
        "with distlab.waiting('through a file', [1]) as wait:\n"
        "    wait.check()\n"
        "print('done')"
    )
    assert python("-c", code).stdout == "done\n"
