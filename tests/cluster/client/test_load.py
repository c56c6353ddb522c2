"""Ranks on a machine that has far more to do than it can: freed, and none of them lost."""

import subprocess
import sys

import pytest

import distlab
from tests.cluster.conftest import pid_on_rank, sum_of_ranks

BUSY = 12  # processes that only compute


@pytest.fixture(scope="module")
def loaded(nothing_left):
    """Four ranks on the cores of this machine, and a dozen processes that compute there."""
    with distlab.Cluster(4, timeout=60) as cluster:
        crowd = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
        yield cluster
        for process in crowd:
            process.kill()
            process.wait()


def stuck(rank, world_size):
    import torch
    import torch.distributed as dist

    dist.recv(torch.zeros(1), src=(rank + 1) % world_size)


def spin(rank, world_size):
    while True:
        pass


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("program", "timeout"), [(stuck, None), (spin, 1)], ids=["deadlock", "time limit"])
def test_ranks_that_wait_for_a_cpu_are_not_given_up(loaded, program, timeout):
    """They are freed in the end, with the processes and the variables that they had."""
    loaded.push({"model": 1})
    before = loaded.run(pid_on_rank)
    with pytest.raises((distlab.DeadlockError, distlab.RankTimeout)) as caught:
        loaded.run(program, timeout=timeout)
    assert "Variables are kept" in str(caught.value)
    assert "does not answer" not in str(caught.value)
    assert loaded.pull("model") == [1] * 4
    assert loaded.run(pid_on_rank) == before
    assert loaded.run(sum_of_ranks) == [6.0] * 4
