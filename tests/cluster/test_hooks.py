"""Our all-reduce as DistributedDataParallel's communication hook: the same gradients, on any group, and its errors."""

import pytest
import torch
from torch import nn

import distlab
from distlab import hooks
from distlab.algorithms import ALL_REDUCE


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def some_ranks(request, nothing_left):
    """A cluster of one to four ranks."""
    with distlab.Cluster(request.param, timeout=20) as cluster:
        yield cluster


def gradients(rank, world_size, name, steps=3):
    """All gradients after each step of a model with many small buckets."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(33, 33) for _ in range(6)))
    ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.005)
    if name:
        ddp.register_comm_hook(None, hooks.averaging_hook(ALL_REDUCE[name]))
    torch.manual_seed(rank)
    found = []
    for _ in range(steps):
        ddp.zero_grad()
        ddp(torch.randn(5, 33)).square().mean().backward()
        found.append(nn.utils.parameters_to_vector(p.grad for p in ddp.parameters()))
    return torch.stack(found)


@pytest.mark.parametrize("name", ["ring", "pipelined ring", "tree"])
def test_the_gradients_are_ddps_own(some_ranks, name):
    """With many buckets on their way, every rank has the averages that DDP computes by itself, with equal bits."""
    own = some_ranks.run(gradients, None)
    for found in some_ranks.run(gradients, name):
        assert torch.allclose(found, own[0], atol=1e-7)
        assert found.abs().max() > 1e-3  # the tolerance is far below
        assert torch.equal(found, some_ranks.run(gradients, name)[0])


def test_in_a_subgroup(cluster):
    """The state of the hook is the group, and the average is that of its ranks."""

    def in_pairs(rank, world_size):
        import torch.distributed as dist

        group = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
        ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 1, bias=False), process_group=group)
        ddp.register_comm_hook(group, hooks.averaging_hook(ALL_REDUCE["ring"]))
        (ddp(torch.ones(1, 2)) * rank).sum().backward()
        return ddp.module.weight.grad[0, 0].item()

    assert cluster.run(in_pairs) == [0.5, 0.5, 2.5, 2.5]


def test_an_error_is_raised_by_backward(cluster):
    """What the all-reduce raises in its thread is what backward raises."""

    def fails(rank, world_size):
        def broken(tensor, group=None):
            raise ValueError("the ring is open")

        ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
        ddp.register_comm_hook(None, hooks.averaging_hook(broken))
        ddp(torch.ones(1, 2)).sum().backward()

    with pytest.raises(distlab.RankError, match="the ring is open"):
        cluster.run(fails)
