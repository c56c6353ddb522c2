"""A backend in Python: its group is used and traced as gloo's is; test_mpi.py trains."""

import inspect
import time

import pytest
import torch
import torch.distributed as dist

import distlab
from tests.cluster.conftest import stop_what_runs, sum_of_ranks
from tests.cluster.zoo_of_collectives import the_last_rank_never_comes
from tests.refused import raised

IMPORTS = "import time\nimport torch\nimport torch.distributed as dist\nimport distlab\n"
REGISTERED = "NAME = 'post'\ndist.Backend.register_backend(NAME, Post, devices=['cpu'])\n"


class Post(dist.ProcessGroup):
    """Every rank puts its tensor into the store, and takes those of the others."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self.store, self.turn = store, 0

    def all(self, tensor):
        """The tensors of all ranks."""
        self.turn += 1
        keys = [f"{self.turn}/{rank}" for rank in range(self.size())]
        self.store.set(
            keys[self.rank()], bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist())
        )
        with distlab.waiting(
            "through a store", [rank for rank in range(self.size()) if rank != self.rank()]
        ) as wait:
            while not self.store.check(keys):
                wait.check()
                time.sleep(0.001)
        sent = [bytearray(self.store.get(key)) for key in keys]
        return [torch.frombuffer(one, dtype=tensor.dtype).view(tensor.shape) for one in sent]

    def allreduce(self, tensors, opts=None):
        tensors[0].copy_(sum(self.all(tensors[0])))
        return finished(tensors)

    def broadcast(self, tensors, opts=None):
        tensors[0].copy_(self.all(tensors[0])[opts.rootRank])
        return finished(tensors)

    def barrier(self, opts=None):
        self.all(torch.zeros(1))
        return finished([])


def finished(tensors):
    future = torch.futures.Future()
    future.set_result(tensors)
    return torch._C._distributed_c10d._create_work_from_future(future)


def test_a_module_of_ones_own_registers_the_backend(tmp_path, monkeypatch):
    """A deadlock in its group is proven and freed; a module that registers none is refused."""
    source = inspect.getsource(Post) + inspect.getsource(finished)
    (tmp_path / "my_backend.py").write_text(IMPORTS + source + REGISTERED)
    (tmp_path / "no_backend.py").write_text("import math\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    # a cluster that replaces another one keeps its fork server, and that server's folder
    stop_what_runs()
    with distlab.Cluster(2, backend="my_backend", timeout=30) as cluster:
        assert cluster.run(lambda rank, n: dist.get_backend()) == ["post"] * 2
        assert cluster.run(sum_of_ranks) == [1.0] * 2
        error = raised(distlab.DeadlockError, cluster.run, the_last_rank_never_comes)
        assert str(error).startswith(
            "Rank 0 waits in all_reduce for rank 1, which has finished without calling it."
        )
        assert cluster.run(sum_of_ranks) == [1.0] * 2
    error = raised(distlab.ClusterError, distlab.Cluster, 2, backend="no_backend")
    assert "The module no_backend must register a backend when it is imported" in str(error)


HALF = """
import os, time
import torch.distributed as dist
RANK, NAME = os.environ["RANK"], "half"
CONNECTING = 0
WHAT
def make(store, rank, size, timeout):
    time.sleep(CONNECTING)
    return dist.ProcessGroupGloo(store, rank, size, timeout)
dist.Backend.register_backend(NAME, make, devices=["cpu"])
"""
RAISES = 'if RANK == "1": raise ImportError("libfabric is missing")'
DIES = 'if RANK == "1": os._exit(3)'
FREEZES = 'if RANK == "1": time.sleep(600)'
COMES_LATE = 'if RANK == "1": time.sleep(3)'
CONNECTS_LATE = "CONNECTING = 7"


def half(what, folder, monkeypatch):
    """The name of a backend whose import does `what`; no cluster runs."""
    name = f"half_{folder.name}"
    (folder / f"{name}.py").write_text(HALF.replace("WHAT", what))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    stop_what_runs()
    return name


def test_ranks_may_come_further_apart_than_a_call_may_last(tmp_path, monkeypatch):
    """As on a busy machine; the timeout is that of the learner's calls."""
    cluster = distlab.Cluster(2, backend=half(COMES_LATE, tmp_path, monkeypatch), timeout=1)
    assert cluster.run(sum_of_ranks) == [1.0] * 2


def test_ranks_have_as_long_to_connect_as_they_wait_for_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr("distlab.notebook.seconds.BUILD", 5)
    cluster = distlab.Cluster(2, backend=half(CONNECTS_LATE, tmp_path, monkeypatch), timeout=300)
    assert cluster.run(sum_of_ranks) == [1.0] * 2


@pytest.mark.parametrize(
    ("what", "limit", "words"),
    [
        (
            RAISES,
            300,
            "rank 1 raised ImportError: libfabric is missing\n"
            f"  rank 1   half_NAME.py:6   {RAISES}\n"
            "Correct what rank 1 raised, then start the cluster again.",
        ),
        (
            DIES,
            300,
            (
                "rank 1 ended with exit status 3 when it joined.\n"
                "Start the cluster again; with fewer ranks, if "
            ),
        ),
        (FREEZES, 300, "rank 0 raised DistStoreError: wait timeout after 2000ms"),
        (
            FREEZES,
            300,
            (
                "\nRank 1 had not come.\n"
                "Ranks wait 2 s for each other, and then 2 s for their connections."
            ),
        ),
    ],
    ids=["raises", "dies", "is late", "is named"],
)
def test_the_first_rank_that_cannot_join_is_named(tmp_path, monkeypatch, what, limit, words):
    """At once, and not the wait of another one, which would end with the ranks' patience."""
    name = half(what, tmp_path, monkeypatch)
    if what == FREEZES:
        monkeypatch.setattr("distlab.notebook.seconds.BUILD", 2)
    began = time.monotonic()
    error = raised(distlab.ClusterError, distlab.Cluster, 2, backend=name, timeout=limit)
    assert time.monotonic() - began < 100
    assert str(error).startswith("The process group could not be built: rank ")
    assert words.replace("half_NAME", name) in str(error)


def used(rank, world_size):
    """Each function that the backend has, and one that it does not have."""
    if not hasattr(dist.Backend, "POST"):
        dist.Backend.register_backend("post", Post, devices=["cpu"])
    group, total, known = (
        dist.new_group(backend="post"),
        torch.tensor([rank + 1.0]),
        torch.tensor([rank + 1.0]),
    )
    dist.all_reduce(total, group=group)
    dist.broadcast(known, src=1, group=group)
    dist.barrier(group=group)
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.reduce(total, dst=0, group=group)
    return total.item(), known.item()


def lacking(rank, world_size):
    dist.reduce(torch.ones(1), dst=0, group=dist.new_group(backend="post"))


def test_a_group_of_a_backend_in_python(cluster):
    """It computes, and can be traced; a method that its class lacks is named."""
    with cluster.trace() as trace:
        assert cluster.run(used) == [(10.0, 2.0)] * 4
    assert not trace.missing
    with pytest.raises(
        distlab.RankError, match="or, if it is a Python class, has no method for this call"
    ):
        cluster.run(lacking)
