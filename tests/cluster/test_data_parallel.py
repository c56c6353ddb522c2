"""Data parallelism on real ranks: every step equals that of one process with the whole batch, on every rank alike."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import distlab
from benchmarks.data_parallel import ENOUGH, train_digits
from distlab import data, data_parallel
from distlab.data import DataPartitioner, batch_per_rank

WAYS = ("per parameter", "buckets", "overlapped")
STEPS = 6
BATCH = 48  # divides by 1, 2, 3 and 4, so that the mean of the ranks' means is the mean of the whole batch


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def some_ranks(request, nothing_left):
    """A cluster of one to four ranks."""
    with distlab.Cluster(request.param, timeout=20) as cluster:
        yield cluster


class Branches(nn.Module):
    """A model with odd shapes, a shared weight, a scalar, two dtypes, a layer no one uses and one that few use."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 33), nn.Linear(33, 33), nn.Linear(33, 10)
        self.third = nn.Linear(33, 33)
        self.third.weight = self.second.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.wide = nn.Parameter(torch.ones(33, dtype=torch.float64))
        self.sometimes, self.never = nn.Linear(33, 33), nn.Linear(5, 5)
        self.norm = nn.LayerNorm(33)
        self.first.bias.requires_grad_(False)

    def forward(self, x, detour=False):
        x = self.first(x.flatten(1)).relu()
        x = self.third(self.second(x).relu()) * self.scale
        if detour:
            x = x + self.sometimes(x)
        return self.last(self.norm(x) * self.wide.float())


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


def snapshot(model):
    """A copy of every parameter, by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def train_alone(make_model, batches, detours):
    """Parameters after each step of one process on the whole batch: `batches` by step and rank, losses by mean."""
    torch.manual_seed(0)
    model = make_model()
    optimizer = make_optimizer(model)
    steps = []
    for parts in batches:
        optimizer.zero_grad(set_to_none=False)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        size = sum(len(labels) for _, labels in parts)
        for (images, labels), detour in zip(parts, detours, strict=True):
            loss = nn.functional.cross_entropy(model(images, detour), labels, reduction="sum") / size
            loss.backward()
        optimizer.step()
        steps.append(snapshot(model))
    return steps


def train_on_rank(rank, world_size, make_model, batches, detours, way, set_to_none):
    """Parameters after each step of this rank, on its part of every batch."""
    torch.manual_seed(0)
    model = make_model()
    optimizer = make_optimizer(model)
    small = {"bucket_bytes": 8000, "first_bucket_bytes": 1000}
    overlapped = data_parallel.OverlappedAverage(model, **small) if way == "overlapped" else None
    average = {
        "per parameter": lambda: data_parallel.average_gradients(model),
        "buckets": lambda: data_parallel.average_gradients_in_buckets(model, **small),
        "overlapped": lambda: overlapped.wait(),
    }[way]
    steps = []
    for parts in batches:
        images, labels = parts[rank]
        optimizer.zero_grad(set_to_none=set_to_none)
        nn.functional.cross_entropy(model(images, detours[rank]), labels).backward()
        average()
        optimizer.step()
        steps.append(snapshot(model))
    return steps


def batches_of_digits(world_size):
    """By step and rank, the images and labels of a global batch of BATCH digits."""
    train = data.load().train
    parts = DataPartitioner(train, [1 / world_size] * world_size)
    size = batch_per_rank(BATCH, world_size)
    indices = [torch.tensor(parts.use(rank).indices).split(size)[:STEPS] for rank in range(world_size)]
    return [[train.batch(indices[rank][step]) for rank in range(world_size)] for step in range(STEPS)]


def largest_difference(one, other):
    return max((one[name] - other[name]).abs().max().item() for name in one)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_every_step_equals_one_process_on_the_whole_batch(some_ranks, way, set_to_none):
    """After each step every rank has one process's parameters within float tolerance, and the ranks have equal bits."""
    n = some_ranks.n
    batches, detours = batches_of_digits(n), [rank == 1 for rank in range(n)]
    alone = train_alone(Branches, batches, detours)
    by_rank = some_ranks.run(train_on_rank, Branches, batches, detours, way, set_to_none)
    for step, expected in enumerate(alone):
        for steps in by_rank:
            assert largest_difference(steps[step], expected) < 2e-6
            assert all(torch.equal(steps[step][name], by_rank[0][step][name]) for name in expected)
    moved = largest_difference(alone[-1], alone[0])
    assert moved > 1e-2  # the tolerance is far below what training changes


def test_digits_are_learned(nothing_left):
    """The benchmark's training recognises at least 97 % of the digits that it has not seen, and both ranks agree."""
    with distlab.Cluster(2) as cluster:
        one, other = cluster.run(train_digits)
    assert one == other >= ENOUGH


# The first optimizer imports torch._dynamo. In torch 2.13, that import keeps a process group that is there already:
# its gloo threads outlive destroy_process_group, and one that frees a tensor while Python ends aborts the process.
TORCHRUN_SCRIPT = """
import torch._dynamo
import os
import torch.distributed as dist
from benchmarks.data_parallel import train_digits
dist.init_process_group("gloo")
share = train_digits(dist.get_rank(), dist.get_world_size(), epochs=3)
shares = [None] * dist.get_world_size()
dist.all_gather_object(shares, share)
if dist.get_rank() == 0:
    print("shares", *shares)
dist.destroy_process_group()
"""


def test_the_same_code_runs_under_torchrun(nothing_left, tmp_path):
    """distlab.data and distlab.data_parallel train in a plain script, as they do on a cluster."""
    script = tmp_path / "train.py"
    script.write_text(TORCHRUN_SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("shares")]
    with distlab.Cluster(2, threads=1) as cluster:
        expected = cluster.run(train_digits, epochs=3)
    assert [float(share) for share in line.split()[1:]] == pytest.approx(expected, abs=0.02)


def test_ranks_drift_apart_without_averaging(usable):
    """The test above can fail: without any averaging the ranks' parameters differ by far more than the tolerance."""

    def alone(rank, world_size, make_model, batches):
        torch.manual_seed(0)
        model = make_model()
        optimizer = make_optimizer(model)
        for parts in batches:
            images, labels = parts[rank]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        return snapshot(model)

    by_rank = usable.run(alone, Branches, batches_of_digits(4))
    assert largest_difference(by_rank[0], by_rank[1]) > 1e-2


def test_buckets_are_those_of_ddp_at_work(usable):
    """DistributedDataParallel's buckets, as it reports them after its first steps, are ours."""

    def buckets(rank, world_size, megabytes):
        model = nn.Sequential(*(nn.Linear(300, 300) for _ in range(12)))
        ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=megabytes)
        for _ in range(3):  # it sorts its buckets anew after the first step
            ddp(torch.ones(2, 300)).sum().backward()
        theirs = ddp._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"]
        numbers = {id(parameter): number for number, parameter in enumerate(model.parameters())}
        limits = () if megabytes is None else (megabytes * data_parallel.MIB,) * 2  # its first is small by default only
        ours = data_parallel.make_buckets(model.parameters(), *limits)
        return theirs, [[numbers[id(parameter)] for parameter in bucket] for bucket in ours]

    for megabytes, count in ((1, 4), (2, 2), (25, 1), (None, 2)):
        for theirs, ours in usable.run(buckets, megabytes):
            assert [[int(number) for number in bucket.split()] for bucket in theirs.split(",")] == ours
            assert len(ours) == count


def test_communication_begins_before_backward_ends(usable):
    """With hooks, the first bucket's all-reduce is under way when the first layer's gradient is computed."""

    def order(rank, world_size):
        model = nn.Sequential(*(nn.Linear(50, 50) for _ in range(6)))
        average = data_parallel.OverlappedAverage(model, bucket_bytes=10_000, first_bucket_bytes=10_000)
        events = []
        first = average.buckets[0]
        model[0].register_full_backward_hook(lambda *_: events.append(first.work is not None))
        model(torch.ones(3, 50)).sum().backward()
        average.wait()
        return events, repr(average)

    text = "OverlappedAverage of 12 parameters, in buckets of 0.0, 0.0, 0.0, 0.0, 0.0, 0.0 MiB"
    assert usable.run(order) == [([True], text)] * 4


def test_gradients_can_be_accumulated(usable):
    """Two backward passes, each followed by wait(), leave the sum of both averages."""

    def accumulate(rank, world_size):
        model = nn.Linear(2, 1, bias=False)
        average = data_parallel.OverlappedAverage(model)
        for factor in (1, 10):
            (model(torch.ones(1, 2)) * factor * rank).sum().backward()
            average.wait()
        return model.weight.grad.tolist()

    assert usable.run(accumulate) == [[[1.5 * 11] * 2]] * 4


def test_a_second_backward_before_wait_is_an_error(usable):
    """Gradients that would be lost are an error that names the call, and remove() ends the averaging."""

    def twice(rank, world_size):
        model = nn.Linear(2, 1)
        average = data_parallel.OverlappedAverage(model)
        model(torch.ones(1, 2)).sum().backward()
        try:
            model(torch.ones(1, 2)).sum().backward()
        except RuntimeError as error:
            message = str(error)
        average.wait()
        average.remove()
        model.zero_grad()
        (model(torch.ones(1, 2)) * rank).sum().backward()
        return message, model.weight.grad.tolist()

    for rank, (message, gradient) in enumerate(usable.run(twice)):
        assert message == (
            "A second backward began before wait(). Call wait() after every backward; "
            "after a failure call remove() and make a new OverlappedAverage."
        )
        assert gradient == [[rank, rank]]


@pytest.mark.parametrize("way", ["average_gradients", "average_gradients_in_buckets"])
def test_sparse_gradients_are_refused(usable, way):
    """A sparse gradient is refused on every rank before anything is sent."""

    def sparse(rank, world_size, way):
        model = nn.Embedding(5, 2, sparse=True)
        model(torch.tensor([1])).sum().backward()
        getattr(data_parallel, way)(model)

    message = "model must be a module with dense gradients only, got torch.sparse_coo. Make its Embedding with sparse="
    with pytest.raises(distlab.RankError, match=re.escape(message)):
        usable.run(sparse, way)


def test_averages_in_a_subgroup(usable):
    """With a group, only its ranks take part, and the average is theirs."""

    def in_pairs(rank, world_size, ways):
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]  # noqa: F821
        group = groups[rank // 2]
        averages = []
        for way in ways:
            model = nn.Linear(2, 1, bias=False)
            overlapped = data_parallel.OverlappedAverage(model, group=group) if way == "overlapped" else None
            (model(torch.ones(1, 2)) * rank).sum().backward()
            if way == "overlapped":
                overlapped.wait()
            elif way == "buckets":
                data_parallel.average_gradients_in_buckets(model, group=group)
            else:
                data_parallel.average_gradients(model, group=group)
            averages.append(model.weight.grad[0, 0].item())
        return averages

    assert usable.run(in_pairs, WAYS) == [[0.5] * 3, [0.5] * 3, [2.5] * 3, [2.5] * 3]


def test_broadcast_makes_replicas_equal(usable):
    """Models that began with different seeds have the source's parameters and buffers afterwards, bit for bit."""

    def replicas(rank, world_size):
        torch.manual_seed(rank)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
        model[1].running_mean += rank
        before = model.state_dict()
        before = {name: value.clone() for name, value in before.items()}
        data_parallel.broadcast_parameters(model, src=2)
        return before, model.state_dict(), all(p.requires_grad for p in model.parameters())

    results = usable.run(replicas)
    source = results[2][0]
    assert not torch.equal(results[0][0]["0.weight"], source["0.weight"])
    for _, after, require in results:
        assert require
        assert all(torch.equal(after[name], source[name]) for name in source)


def test_a_gradient_that_does_not_come_is_named_after_large_values(usable):
    """A rank that has sent a large value keeps a thread of ZeroMQ's, which does not hide a deadlock in backward."""

    def forked(rank, world_size):
        model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        ddp = nn.parallel.DistributedDataParallel(model)
        model.forward = lambda x: model[1](model[0](x)) if rank != 2 else model[0](x)
        ddp(torch.ones(1, 2)).sum().backward()

    assert all(len(value) == 1 << 20 for value in usable.run(lambda rank, world_size: torch.zeros(1 << 20)))
    words = r"Ranks 0, 1 and 3 wait in backward\(\) for gradients of rank 2, which has finished"
    with pytest.raises(distlab.DeadlockError, match=words):
        usable.run(forked)
