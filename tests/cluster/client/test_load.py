"""Ranks on a machine that has far more to do than it can: freed, and none of them lost."""

import subprocess
import sys

import pytest

import distlab
from tests.cluster.conftest import pid_on_rank, spin, stuck
from tests.refused import raised

CLUSTER = {"n": 4, "timeout": 60}
BUSY = 12  # processes that only compute


@pytest.fixture(scope="module")
def crowd(cluster):
    """A dozen processes that compute on the cores of this machine."""
    crowd = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    yield
    for process in crowd:
        process.kill()
        process.wait()


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("program", "timeout"), [(stuck, None), (spin, 1)], ids=["deadlock", "time limit"])
def test_ranks_that_wait_for_a_cpu_are_not_given_up(usable, crowd, program, timeout):
    """They are freed in the end, with the processes and the variables that they had."""
    usable.push({"model": 1})
    before = usable.run(pid_on_rank)
    said = str(raised((distlab.DeadlockError, distlab.RankTimeout), usable.run, program, timeout=timeout))
    assert "Variables are kept" in said
    assert "does not answer" not in said
    assert usable.pull("model") == [1] * 4
    assert usable.run(pid_on_rank) == before
