"""Sketches of tensors and of pieces of them, and which elements a rank has."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed import fake_pg  # noqa: F401  registers "fake"

from distlab.comparison.records import MOST_SUMS, Sketch
from distlab.comparison.watching.places import Places, whole
from distlab.comparison.watching.seen_tensors import places_of, seen_gradient, sketched
from distlab.comparison.watching.sketches import BLOCK, sketch_of
from distlab.compat import torch_watching as private

RANKS = 4


def tensor_of(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def total(sketches):
    first, *others = sketches
    return sum(others, first)


def assert_same(first: Sketch, second: Sketch):
    np.testing.assert_allclose(first.sums, second.sums, rtol=1e-9, atol=1e-9)
    assert first.elements == second.elements


def on_fake_ranks(made):
    """What made(rank) gives on each of four ranks that are not there."""
    results = []
    for rank in range(RANKS):
        dist.init_process_group("fake", store=dist.HashStore(), rank=rank, world_size=RANKS)
        try:
            results.append(made(rank))
        finally:
            dist.destroy_process_group()
    return results


def test_a_small_tensor_is_kept_whole():
    tensor = tensor_of(5, 7)
    sketch = sketch_of(tensor, whole((5, 7)))
    assert sketch.is_whole
    np.testing.assert_array_equal(sketch.sums, tensor.double().flatten().numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_a_large_tensor_has_about_its_norm(dtype):
    """Also with several blocks, and one that is not full."""
    tensor = (10 * tensor_of(3 * BLOCK + 12345)).to(dtype)
    sketch = sketch_of(tensor, whole(tuple(tensor.shape)))
    assert len(sketch.sums) == MOST_SUMS
    assert sketch.norm == pytest.approx(float(tensor.double().norm()), rel=0.05)


def test_rows_that_are_alike_do_not_cancel_or_add_up():
    """A gradient is often one row, many times."""
    tensor = tensor_of(1, MOST_SUMS).expand(400, MOST_SUMS)
    sketch = sketch_of(tensor, whole(tuple(tensor.shape)))
    assert sketch.norm == pytest.approx(float(tensor.double().norm()), rel=0.1)


def test_it_is_linear():
    first = tensor_of(100, 300)
    second = first.flip(0)
    places = whole((100, 300))
    together = sketch_of(2 * first.double() - second.double(), places)
    assert_same(together, sketch_of(first, places).scaled(2) - sketch_of(second, places))


@pytest.mark.parametrize("shape", [(30, 20), (300, 200), (7, 5, 900)])
@pytest.mark.parametrize("dimension", [0, 1])
def test_pieces_add_up(shape, dimension):
    """Pieces of any size, along any dimension."""
    tensor = tensor_of(*shape)
    sketches = []
    for indices in torch.arange(shape[dimension]).split([1, 3, 0, shape[dimension] - 4]):
        along = [range(size) for size in shape]
        along[dimension] = indices
        piece = tensor.index_select(dimension, indices)
        sketches.append(sketch_of(piece, Places(shape, tuple(along))))
    assert_same(total(sketches), sketch_of(tensor, whole(shape)))


PLACEMENTS = [
    ((4,), [Shard(0)]),
    ((4,), [Shard(1)]),
    ((4,), [Replicate()]),
    ((2, 2), [Replicate(), Shard(0)]),
    ((2, 2), [Shard(0), Shard(1)]),
    ((2, 2), [Shard(0), Shard(0)]),
]


@pytest.mark.parametrize(("mesh_shape", "placements"), PLACEMENTS)
@pytest.mark.parametrize("shape", [(6, 5), (130, 70), (2, 3)])
def test_a_rank_knows_which_elements_it_has(mesh_shape, placements, shape):
    """Without communication, also where the ranks have unequal parts, or none."""
    tensor = tensor_of(*shape)

    def made(rank):
        mesh = init_device_mesh("cpu", mesh_shape)
        spread = distribute_tensor(tensor, mesh, placements, src_data_rank=None)
        own = private.own_part(spread)
        places = places_of(spread)
        positions = places.positions(0, own.numel())
        assert torch.equal(tensor.flatten()[positions], own.flatten())
        return places.piece, sketched(spread)

    pieces = dict(on_fake_ranks(made))
    assert_same(total(list(pieces.values())), sketch_of(tensor, whole(shape)))


def test_a_sparse_gradient_and_a_complex_one_have_sketches():
    layer = torch.nn.Embedding(50, 3, sparse=True)
    layer(torch.tensor([1, 1, 7])).sum().backward()
    dense = layer.weight.grad.to_dense()
    assert_same(sketched(layer.weight.grad), sketched(dense))
    waves = torch.complex(tensor_of(3, 2), tensor_of(3, 2).flip(0))
    assert sketched(waves).norm == pytest.approx(float(waves.norm()))
    assert sketched(waves.conj()).norm == pytest.approx(float(waves.norm()))


GRADIENTS = [
    ([Shard(0)], [Shard(0)], False),
    ([Shard(0)], [Replicate()], False),
    ([Shard(0)], [Partial()], True),
    ([Replicate()], [Shard(0)], True),
    ([Replicate()], [Replicate()], False),
    ([Shard(1)], [Replicate()], False),
]


@pytest.mark.parametrize(("placements", "of_gradient", "is_partial"), GRADIENTS)
def test_a_gradient_is_seen_where_the_parameter_is(placements, of_gradient, is_partial):
    """The gradients of the ranks add up once for each piece, or those of all ranks if partial."""
    tensor = tensor_of(130, 70)

    def made(rank):
        mesh = init_device_mesh("cpu", (RANKS,))
        parameter = distribute_tensor(tensor, mesh, placements, src_data_rank=None)
        parameter.requires_grad_()
        if of_gradient == [Partial()]:
            parameter.grad = DTensor.from_local(tensor / RANKS, mesh, of_gradient, run_check=False)
        else:
            parameter.grad = distribute_tensor(tensor, mesh, of_gradient, src_data_rank=None)
        sketch, partial = seen_gradient(parameter)
        assert partial == is_partial
        return rank if partial else places_of(parameter).piece, sketch

    sketches = dict(on_fake_ranks(made))
    assert_same(total(list(sketches.values())), sketch_of(tensor, whole((130, 70))))
