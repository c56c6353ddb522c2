"""Data parallelism on real ranks: every step equals that of one process on the whole batch.

And our all-reduce as DistributedDataParallel's communication hook: the same gradients, on any
group, and its errors.
"""

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn

import distlab
from distlab_course import data_parallel
from distlab_course.algorithms import ALL_REDUCE
from tests.cluster.zoo_of_collectives import a_parameter_unused_on_one_rank
from tests.processes import TORCHRUN, python
from tests.tool import ROOT

STEPS = 6


class Branches(nn.Module):
    """A model with odd shapes, a shared weight, a scalar, two dtypes, and an unused layer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 33)
        self.second = nn.Linear(33, 33)
        self.last = nn.Linear(33, 10)
        self.third = nn.Linear(33, 33)
        self.third.weight = self.second.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.wide = nn.Parameter(torch.ones(33, dtype=torch.float64))
        self.sometimes = nn.Linear(33, 33)
        self.never = nn.Linear(5, 5)
        self.first.bias.requires_grad_(False)

    def forward(self, x, detour):
        x = self.third(self.second(self.first(x).relu()).relu()) * self.scale
        if detour:
            x = x + self.sometimes(x)
        return self.last(x * self.wide.float())


def trained(ranks, alone=False):
    """Parameters after each step with the parts of these ranks; only rank 1 makes the detour."""
    torch.manual_seed(0)
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if not alone:
        average = data_parallel.OverlappedAverage(model, bucket_bytes=8000)
    steps = []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=alone)
        for rank in ranks:
            generator = torch.Generator().manual_seed(100 * step + rank)
            images = torch.randn(8, 64, generator=generator)
            scores = model(images, detour=rank == 1)
            loss = nn.functional.cross_entropy(scores, torch.arange(8))
            (loss / len(ranks)).backward()
        if not alone:
            average.wait()
        optimizer.step()
        steps.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    return torch.stack(steps)


@pytest.mark.parametrize("sized", [1, 3, 4], indirect=True)
def test_every_step_equals_one_process_on_the_whole_batch(sized):
    """Every rank has one process's parameters within tolerance, and all have equal bits."""
    alone = trained(range(sized.n), alone=True)
    by_rank = sized.run(lambda rank, world_size: trained([rank]))
    for found in by_rank:
        assert torch.allclose(found, alone, rtol=0, atol=2e-6)
        assert torch.equal(found, by_rank[0])
    # the tolerance is far below what training changes
    assert (alone[-1] - alone[0]).abs().max() > 1e-2


def gradients(rank, world_size, hooked, steps=3):
    """All gradients after each step of a model with many small buckets."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(33, 33) for _ in range(6)))
    ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.005)
    if hooked:
        ddp.register_comm_hook(None, data_parallel.averaging_hook(ALL_REDUCE["ring"]))
    torch.manual_seed(rank)
    found = []
    for _ in range(steps):
        ddp.zero_grad()
        ddp(torch.randn(5, 33)).square().mean().backward()
        found.append(nn.utils.parameters_to_vector(p.grad for p in ddp.parameters()))
    return torch.stack(found)


def test_a_hooks_gradients_are_ddps_own(usable):
    """With many buckets under way, every rank has the averages that DDP computes itself."""
    own = usable.run(gradients, False)
    by_rank = usable.run(gradients, True)
    for found in by_rank:
        assert torch.allclose(found, own[0], atol=1e-7)
        assert found.abs().max() > 1e-3  # the tolerance is far below
        assert torch.equal(found, by_rank[0])


# The first optimizer imports torch._dynamo. In torch 2.13, that import keeps a process group that
# is there already: its gloo threads outlive destroy_process_group, and one that frees a tensor
# while Python ends aborts the process.
TORCHRUN_SCRIPT = """
import sys, torch._dynamo, torch.distributed as dist
from torch import nn
from distlab_course import algorithms, checkpoints, data, data_parallel
dist.init_process_group("gloo")
images, labels = data.load().train.batch(slice(dist.get_rank(), 100, 2))
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
algorithms.ALL_REDUCE["best"](model[1].weight.data)
average = data_parallel.OverlappedAverage(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(20):
    optimizer.zero_grad()
    losses.append(nn.functional.cross_entropy(model(images), labels))
    losses[-1].backward()
    average.wait()
    optimizer.step()
checkpoints.save(sys.argv[1], model, step=step)
learned, step = bool(losses[-1] < losses[0] / 2), checkpoints.load(sys.argv[1], model)["step"]
# print writes in pieces, which two processes may mix
sys.stdout.write(f"learned: {learned} {step}\\n")
dist.destroy_process_group()
"""


def test_the_course_runs_under_plain_torchrun(tmp_path):
    """A script without a cluster uses every part of the package."""
    (tmp_path / "train.py").write_text(TORCHRUN_SCRIPT)
    variables = {
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    done = python(*TORCHRUN, tmp_path / "train.py", tmp_path / "model.pt", variables=variables)
    assert done.stdout.count("learned: True 19") == 2, done.stderr[-2000:]


def test_averages_in_a_subgroup(usable):
    """With a group, only its ranks take part, and the average is theirs."""

    def in_pairs(rank, world_size):
        group = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
        own = nn.Linear(2, 1, bias=False)
        inside = nn.Linear(2, 1, bias=False)
        average = data_parallel.OverlappedAverage(own, group=group)
        ddp = nn.parallel.DistributedDataParallel(inside, process_group=group)
        ddp.register_comm_hook(group, data_parallel.averaging_hook(ALL_REDUCE["ring"]))
        for model in (own, ddp):
            (model(torch.ones(1, 2)) * rank).sum().backward()
        average.wait()
        return own.weight.grad[0, 0].item(), inside.weight.grad[0, 0].item()

    assert usable.run(in_pairs) == [(0.5, 0.5), (0.5, 0.5), (2.5, 2.5), (2.5, 2.5)]


def test_an_error_in_a_hook_is_raised_by_backward(usable):
    """What the all-reduce raises in its thread is what backward raises."""

    def fails(rank, world_size):
        def broken(tensor, group=None):
            raise ValueError("the ring is open")

        ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
        ddp.register_comm_hook(None, data_parallel.averaging_hook(broken))
        ddp(torch.ones(1, 2)).sum().backward()

    with pytest.raises(distlab.RankError, match="the ring is open"):
        usable.run(fails)


def test_a_gradient_that_does_not_come_is_named_after_large_values(usable):
    """After a large value, ZeroMQ keeps a thread, which does not hide a deadlock in backward."""
    values = usable.run(lambda rank, world_size: torch.zeros(1 << 20))
    assert [len(value) for value in values] == [1 << 20] * 4
    words = r"Ranks 0, 2 and 3 wait in backward\(\) for gradients of rank 1, which has finished"
    with pytest.raises(distlab.DeadlockError, match=words):
        usable.run(a_parameter_unused_on_one_rank)
