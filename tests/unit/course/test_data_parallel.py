"""distlab_course.data_parallel on one process: buckets as torch's DDP has them, and faults."""

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn

from distlab_course.data_parallel import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    OverlappedAverage,
    make_buckets,
)
from distlab_course.practice import loopback_interface
from tests.refused import raised, refused


def parameters(*sizes, dtype=torch.float32):
    return [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes]


def places(buckets, of):
    """The buckets as numbers of parameters."""
    numbers = {id(parameter): number for number, parameter in enumerate(of)}
    return [[numbers[id(parameter)] for parameter in bucket] for bucket in buckets]


@pytest.mark.parametrize(
    "limit", [1, 4000, FIRST_BUCKET_BYTES, 3 * FIRST_BUCKET_BYTES, BUCKET_BYTES]
)
def test_buckets_are_those_of_ddp(limit):
    """The rule is that of DistributedDataParallel, on parameters of many sizes and two dtypes."""
    generator = torch.Generator().manual_seed(0)
    sizes = [*torch.randint(1, 600_000, (40,), generator=generator).tolist(), 1, 2, 3, 500]
    dtypes = itertools.cycle([torch.float32, torch.float64])
    given = []
    for size, dtype in zip(sizes, dtypes, strict=False):
        given += parameters(size, dtype=dtype)
    limits = [min(FIRST_BUCKET_BYTES, limit), limit]
    theirs, _ = dist._compute_bucket_assignment_by_size(given[::-1], limits)
    last = len(given) - 1
    expected = [[last - number for number in bucket] for bucket in theirs]
    ours = places(make_buckets(given, limit), given)
    assert sorted(ours) == sorted(expected)


# --- one rank alone


@pytest.fixture
def group(monkeypatch):
    """A process group of this process alone."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", loopback_interface())
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_communication_begins_before_backward_ends(group):
    """With hooks, an all-reduce begins before the first layer's gradient is there."""
    model = nn.Sequential(*(nn.Linear(50, 50) for _ in range(6)))
    average = OverlappedAverage(model, bucket_bytes=10_000)
    events = []
    model[0].bias.register_hook(lambda _: events.append(average.buckets[0].work is not None))
    model(torch.ones(3, 50)).sum().backward()
    average.wait()
    assert events == [True]


def test_a_second_backward_before_wait_is_an_error(group):
    """Gradients that would be lost are an error that names the call."""
    model = nn.Linear(2, 1)
    average = OverlappedAverage(model)
    model(torch.ones(1, 2)).sum().backward()
    error = raised(RuntimeError, model(torch.ones(1, 2)).sum().backward)
    assert str(error) == "A second backward began before wait(). Call wait() after every backward."
    average.wait()
    model(torch.ones(1, 2)).sum().backward()


def test_sparse_gradients_are_refused(group):
    """A sparse gradient is refused before anything is sent."""
    model = nn.Embedding(5, 2, sparse=True)
    OverlappedAverage(model)
    assert str(refused(model(torch.tensor([1])).sum().backward)) == (
        "model must be a module with dense gradients only, got torch.sparse_coo. "
        "Make its Embedding with sparse=False."
    )
