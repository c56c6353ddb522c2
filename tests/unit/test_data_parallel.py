"""distlab.data_parallel's buckets, which need no process: their order, their sizes, and those of torch's DDP."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from distlab.data_parallel import BUCKET_BYTES, FIRST_BUCKET_BYTES, Bucket, make_buckets, trainable
from distlab.errors import ArgumentError


def parameters(*sizes, dtype=torch.float32):
    return [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes]


def places(buckets, of):
    """The buckets as numbers of parameters."""
    numbers = {id(parameter): number for number, parameter in enumerate(of)}
    return [[numbers[id(parameter)] for parameter in bucket] for bucket in buckets]


def test_buckets_begin_with_the_last_parameters():
    """Backward brings the last gradients first; the parameter that fills a bucket closes it."""
    given = parameters(10, 20, 30, 5, 5)
    assert places(make_buckets(given, bucket_bytes=100, first_bucket_bytes=40), given) == [[4, 3], [2], [1, 0]]
    assert places(make_buckets(given, bucket_bytes=10**9), given) == [[4, 3, 2, 1, 0]]
    assert places(make_buckets(given, bucket_bytes=1, first_bucket_bytes=10**9), given) == [[4], [3], [2], [1], [0]]
    assert make_buckets([]) == []


@pytest.mark.parametrize("limits", [(40, 100), (1, 1), (FIRST_BUCKET_BYTES, BUCKET_BYTES), (400, 4000)])
def test_buckets_are_those_of_ddp(limits):
    """The rule is that of DistributedDataParallel, on parameters of many sizes and two dtypes."""
    generator = torch.Generator().manual_seed(0)
    sizes = [*torch.randint(1, 600_000, (40,), generator=generator).tolist(), 1, 2, 3, 500]
    given = [p for i, size in enumerate(sizes) for p in parameters(size, dtype=(torch.float32, torch.float64)[i % 2])]
    theirs, _ = dist._compute_bucket_assignment_by_size(given[::-1], list(limits))
    ours = places(make_buckets(given, limits[1], limits[0]), given)
    assert sorted(ours) == sorted([len(given) - 1 - i for i in bucket] for bucket in theirs)
    assert sorted(number for bucket in ours for number in bucket) == list(range(len(given)))


def test_a_bucket_holds_views():
    """Each gradient of a bucket has its parameter's shape and is a view of the one flat tensor."""
    bucket = Bucket.of([nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(4)), nn.Parameter(torch.tensor(1.0))])
    assert bucket.flat.shape == (11,)
    bucket.flat.copy_(torch.arange(11.0))
    assert [view.tolist() for view in bucket.views] == [[[0, 1, 2], [3, 4, 5]], [6, 7, 8, 9], 10]
    assert bucket.missing == {0, 1, 2}


def test_frozen_and_shared_parameters():
    """A frozen parameter has no place in a bucket, a shared one a single place."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    model[1].bias.requires_grad_(False)
    assert [tuple(p.shape) for p in trainable(model)] == [(3, 3), (3,), (3, 3), (3,)]


@pytest.mark.parametrize("name", ["bucket_bytes", "first_bucket_bytes"])
def test_a_size_of_nothing_is_refused(name):
    """A bucket of no bytes is refused with a call that works."""
    with pytest.raises(ArgumentError) as caught:
        make_buckets([], **{name: 0})
    assert str(caught.value) == f"{name} must be a number of bytes above 0, got 0. Give for example {name}=25 * 2**20."
