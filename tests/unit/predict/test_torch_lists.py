"""Lists of DTensors go the short way where it is right, with the result of DTensor's own way."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from distlab_course.float8_weights import SentWeight
from distlab_predict.torch_lists import makes_nothing_new, on_parts


@pytest.fixture
def mesh():
    """Rank 1 of two, whose collectives do nothing."""
    dist.init_process_group("fake", store=dist.HashStore(), rank=1, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def run(operator, _, args, kwargs):
    return operator(*args, **kwargs)


def sharded(mesh, *sizes):
    """A list of DTensors, of which this rank has the second halves."""
    whole = [torch.arange(1.0, size + 1) for size in sizes]
    return [distribute_tensor(one, mesh, [Shard(0)], src_data_rank=None) for one in whole]


def test_a_result_is_that_of_the_longer_way(mesh):
    given = sharded(mesh, 4, 6)
    operator = torch.ops.aten._foreach_sqrt.default
    short = on_parts(run, operator, (given,), {})
    for one, other in zip(short, torch._foreach_sqrt(given), strict=True):
        assert isinstance(one, DTensor)
        assert one.placements == other.placements
        assert one.shape == other.shape
        assert torch.equal(one.to_local(), other.to_local())


def test_what_changes_in_place_is_the_part_of_this_rank(mesh):
    given = sharded(mesh, 4, 6)
    operator = torch.ops.aten._foreach_addcdiv_.Scalar
    others = sharded(mesh, 4, 6)
    assert on_parts(run, operator, (given, others, others, 2.0), {}) is None
    assert given[0].to_local().tolist() == [5.0, 6.0]


def test_dtensor_sees_what_is_not_alike(mesh):
    """Sums that are not finished, lists sharded in two ways, norms, and what is no list."""
    add = torch.ops.aten._foreach_add_.List
    halves = sharded(mesh, 4)
    whole = [distribute_tensor(torch.ones(4), mesh, [Replicate()], src_data_rank=None)]
    sums = [DTensor.from_local(torch.ones(4), mesh, [Partial()])]
    assert on_parts(run, add, (halves, whole), {}) is NotImplemented
    assert on_parts(run, add, (sums, sums), {}) is NotImplemented
    assert on_parts(run, torch.ops.aten._foreach_norm.Scalar, (halves,), {}) is NotImplemented
    assert on_parts(run, torch.ops.aten.add.Tensor, (halves[0], 1), {}) is NotImplemented


def test_weights_that_wrap_others_are_changed_inside(mesh):
    """A result would need their class, so only operators in place take the short way."""
    part = torch.arange(1.0, 4.0)
    given = [DTensor.from_local(SentWeight(part), mesh, [Shard(0)])]
    assert on_parts(run, torch.ops.aten._foreach_mul_.Scalar, (given, 2.0), {}) is None
    assert part.tolist() == [2.0, 4.0, 6.0]
    assert on_parts(run, torch.ops.aten._foreach_sqrt.default, (given,), {}) is NotImplemented


def test_a_list_that_is_written_in_place_makes_nothing_new():
    foreach = torch.ops.aten
    written, others = [torch.zeros(2), torch.zeros(3)], [torch.ones(2), torch.ones(3)]
    assert makes_nothing_new(foreach._foreach_add_.List, (written, others))
    assert makes_nothing_new(foreach._foreach_mul_.Scalar, (written, 2.0))
    assert makes_nothing_new(foreach._foreach_addcdiv_.Scalar, (written, others, others, 2.0))
    assert not makes_nothing_new(foreach._foreach_add.List, (written, others))  # makes new ones
    assert not makes_nothing_new(foreach.add_.Tensor, (written[0], others[0]))


@pytest.mark.parametrize(
    "others",
    [
        [torch.ones(2), torch.ones(4)],
        [torch.ones(2)],
        [torch.ones(2), torch.ones(3, dtype=torch.bfloat16)],
    ],
)
def test_torch_itself_sees_lists_that_do_not_fit(others):
    written = [torch.zeros(2), torch.zeros(3)]
    assert not makes_nothing_new(torch.ops.aten._foreach_add_.List, (written, others))


def test_torch_itself_sees_whole_numbers():
    """Those cannot be divided in place."""
    written = [torch.ones(2, dtype=torch.int64)]
    assert not makes_nothing_new(torch.ops.aten._foreach_div_.Scalar, (written, 2))
