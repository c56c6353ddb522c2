"""A learner's own backend, in a module that every rank imports, and waits of one's own: reported, proven, freed."""

import textwrap
import time

import pytest
import torch
import torch.distributed as dist

import distlab
from tests.cluster.conftest import sum_of_ranks
from tests.processes import python
from tests.refused import raised

BACKEND = """
    import time
    import torch
    import torch.distributed as dist
    import distlab

    NAME = "by_store"

    class Group(dist.ProcessGroup):
        def __init__(self, store, rank, size, timeout):
            super().__init__(rank, size)
            self.store, self.ranks, self.mine, self.calls = store, range(size), rank, 0

        def allreduce(self, tensors, opts):
            self.calls += 1
            keys = [f"{self.calls}/{rank}" for rank in self.ranks]
            self.store.set(keys[self.mine], str(tensors[0].item()))
            with distlab.waiting("through a table", [rank for rank in self.ranks if rank != self.mine]):
                while not self.store.check(keys):
                    time.sleep(0.01)
            tensors[0].fill_(sum(float(self.store.get(key)) for key in keys))
            done = torch.futures.Future()
            done.set_result(tensors)
            return torch._C._distributed_c10d._create_work_from_future(done)

    dist.Backend.register_backend(NAME, Group, devices=["cpu"])
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A notebook's folder with the learner's module."""
    (tmp_path / "my_backend.py").write_text(textwrap.dedent(BACKEND))
    (tmp_path / "no_backend.py").write_text("import math\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_module_of_ones_own_registers_the_backend(folder):
    """Its group is the default one; a deadlock in it is proven, and freed; a module that does not is refused."""

    def one_skips(rank, world_size):
        if rank != 1:
            dist.all_reduce(torch.ones(1))

    with distlab.Cluster(2, backend="my_backend", timeout=30) as cluster:
        assert cluster.run(lambda rank, n: dist.get_backend()) == ["by_store"] * 2
        assert cluster.run(sum_of_ranks) == [1.0] * 2
        error = raised(distlab.DeadlockError, cluster.run, one_skips)
        assert str(error).startswith("Rank 0 waits in all_reduce for rank 1, which has finished without calling it.")
        assert cluster.run(sum_of_ranks) == [1.0] * 2
    error = raised(distlab.ClusterError, distlab.Cluster, 2, backend="no_backend")
    assert "The module no_backend must register a backend when it is imported" in str(error)


def never(rank, world_size):
    if rank == 0:
        with distlab.waiting("through a file", [1]):
            while True:
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
        (each_other, "2 of 2 ranks wait for each other: rank 0 through a file for rank 1, rank 1 through a file for"),
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
    code = "import distlab\nwith distlab.waiting('through a file', [1]) as wait:\n    wait.check()\nprint('done')"
    assert python("-c", code).stdout == "done\n"
