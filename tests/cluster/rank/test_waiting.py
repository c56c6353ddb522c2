"""Waits of a learner's own, by distlab.waiting: reported, proven, freed."""

import time

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
