"""A backend that a learner writes in Python: its group is used, trained on and traced as gloo's is."""

import inspect
import time

import pytest
import torch
import torch.distributed as dist

import distlab
from tests.cluster.conftest import stop_what_runs, sum_of_ranks
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
        self.store.set(keys[self.rank()], bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist()))
        with distlab.waiting("through a store", [rank for rank in range(self.size()) if rank != self.rank()]) as wait:
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

    def allgather(self, outputs, inputs, opts=None):
        for output, given in zip(outputs[0], self.all(inputs[0]), strict=True):
            output.copy_(given)
        return finished(outputs[0])

    def all_gather_single(self, output, given, opts=None):  # all_gather_object calls it since torch 2.15
        output.copy_(torch.cat(self.all(given)).view(output.shape))
        return finished([output])

    def barrier(self, opts=None):
        self.all(torch.zeros(1))
        return finished([])


def finished(tensors):
    future = torch.futures.Future()
    future.set_result(tensors)
    return torch._C._distributed_c10d._create_work_from_future(future)


def one_skips(rank, world_size):
    if rank != 1:
        dist.all_reduce(torch.ones(1))


def test_a_module_of_ones_own_registers_the_backend(tmp_path, monkeypatch):
    """Its group is the default one; a deadlock in it is proven, and freed; a module that does not is refused."""
    source = inspect.getsource(Post) + inspect.getsource(finished)
    (tmp_path / "my_backend.py").write_text(IMPORTS + source + REGISTERED)
    (tmp_path / "no_backend.py").write_text("import math\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    stop_what_runs()  # a cluster that replaces another one keeps its fork server, and that server's folder
    with distlab.Cluster(2, backend="my_backend", timeout=30) as cluster:
        assert cluster.run(lambda rank, n: dist.get_backend()) == ["post"] * 2
        assert cluster.run(sum_of_ranks) == [1.0] * 2
        error = raised(distlab.DeadlockError, cluster.run, one_skips)
        assert str(error).startswith("Rank 0 waits in all_reduce for rank 1, which has finished without calling it.")
        assert cluster.run(sum_of_ranks) == [1.0] * 2
    error = raised(distlab.ClusterError, distlab.Cluster, 2, backend="no_backend")
    assert "The module no_backend must register a backend when it is imported" in str(error)


def trained(group):
    """The weights after three steps on batches that differ from rank to rank."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 3), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(dist.get_rank())):
        optimizer.zero_grad()
        (model(batch) - batch[:, :3]).square().mean().backward()
        optimizer.step()
    return model.module.weight.detach()


def used(rank, world_size):
    """Each function that the backend has, training on it and on gloo, and what it does not have."""
    if not hasattr(dist.Backend, "POST"):
        dist.Backend.register_backend("post", Post, devices=["cpu"])
    group, gloo = dist.new_group(backend="post"), dist.new_group(backend="gloo")
    total, known, everyone = torch.tensor([rank + 1.0]), torch.tensor([rank + 1.0]), [None] * world_size
    dist.all_reduce(total, group=group)
    dist.broadcast(known, src=1, group=group)
    dist.barrier(group=group)
    dist.all_gather_object(everyone, {"rank": rank}, group=group)
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.reduce(total, dst=0, group=group)
    weights, own = trained(gloo), trained(group)
    return total.item(), known.item(), [one["rank"] for one in everyone], torch.allclose(weights, own), weights.tolist()


def used_by_default(rank, world_size):
    """The same where the default group is of that backend."""
    store = dist.PrefixStore("own backend", dist.distributed_c10d._get_default_store())
    dist.destroy_process_group()
    dist.init_process_group("post", store=store, rank=rank, world_size=world_size)
    return used(rank, world_size)


def lacking(rank, world_size):
    dist.reduce(torch.ones(1), dst=0, group=dist.new_group(backend="post"))


def test_a_backend_in_python(cluster):
    """It computes what gloo does, in a group of new_group's and as the default, and a trace does not mind it.

    A method that the class does not have is named as what is missing.
    """
    with cluster.trace() as trace:
        first = cluster.run(used)
    with pytest.raises(distlab.RankError, match="or, if it is a Python class, has no method for this call"):
        cluster.run(lacking)
    later = cluster.run(used_by_default)
    cluster.heal()
    for found in (first, later):
        assert [result[:4] for result in found] == [(10.0, 2.0, [0, 1, 2, 3], True)] * 4
        assert all(result[4] == found[0][4] for result in found)
    assert not trace.missing
