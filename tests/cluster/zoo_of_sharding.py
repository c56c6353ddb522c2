"""Broken and correct programs that shard models and tensors; test_zoo.py runs them with zoo.py's.

A correct one returns whether its result is that of one process.
"""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, zeros
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

from tests.cluster.zoo import breaks, ones
from tests.cluster.zoo_of_pipelines import BATCH


def mesh(n):
    return init_device_mesh("cpu", (n,))


def square(n):
    return init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("data", "model"))


def layers(features=8):
    """Two layers, with the same weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, features), nn.ReLU(), nn.Linear(features, 8))


def sharded(model, **options):
    """Each layer and the rest in units of FSDP2."""
    for layer in (model[0], model[2]):
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def in_parallel(model, device_mesh):
    return parallelize_module(model, device_mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def trained(model, steps=3, batch=BATCH, make=torch.optim.AdamW):
    """The model's parameters, whole, after some steps."""
    optimizer = make(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [whole(parameter).detach() for parameter in model.parameters()]


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def close(found, expected):
    return all(torch.allclose(whole(f), e, atol=1e-5) for f, e in zip(found, expected, strict=True))


def rows(n, placement=None):
    return distribute_tensor(torch.arange(4.0 * n).view(2 * n, 2), mesh(n), [placement or Shard(0)])


# --- broken ---


@breaks(3)
def a_step_of_fsdp_that_one_rank_leaves_out(rank, n):
    """Ranks 0-1 wait in all_gather_single for rank 2,
    which has finished without calling it again.
    """
    model = sharded(layers())
    for _ in range(1 if rank == 2 else 2):
        model(BATCH).sum().backward()


@breaks(2)
def a_backward_pass_that_one_rank_leaves_out(rank, n):
    """in all_gather_single for rank 0, which has finished without calling it"""
    loss = sharded(layers())(BATCH).sum()
    if rank > 0:
        loss.backward()


@breaks(2)
def a_norm_of_gradients_on_rank_0_alone(rank, n):
    """Rank 0 waits in all_reduce for rank 1, which has finished without calling it."""
    model = sharded(layers())
    model(BATCH).sum().backward()
    if rank == 0:
        print(nn.utils.clip_grad_norm_(model.parameters(), 1.0))


@breaks(3)
def a_model_saved_by_rank_0_alone(rank, n):
    """Rank 0 waits in full_tensor for ranks 1-2, which have finished without calling it"""
    model = sharded(layers())
    if rank == 0:
        [value.full_tensor() for value in model.state_dict().values()]


@breaks(2)
def a_matrix_product_without_the_last_rank(rank, n):
    """Rank 0 waits in all_reduce for rank 1, which has finished without calling it."""
    model = in_parallel(layers(), mesh(n))
    if rank == 0:
        model(BATCH).sum().item()


@breaks(2)
def a_gradient_of_tensor_parallel_for_one_rank(rank, n):
    """Rank 0 waits in all_reduce for rank 1, which has finished without calling it"""
    batch = BATCH.clone().requires_grad_()
    loss = in_parallel(layers(), mesh(n))(batch).sum()
    loss.item()
    if rank == 0:
        loss.backward()
        batch.grad.sum().item()


@breaks(2)
def full_tensors_in_another_order(rank, n):
    """rank 0 calls full_tensor (all_gather_single), rank 1 calls full_tensor (allreduce)."""
    pair = [rows(n), DTensor.from_local(torch.ones(2), mesh(n), [Partial()])]
    for tensor in pair if rank == 0 else reversed(pair):
        tensor.full_tensor()


@breaks(4)
def a_row_of_a_mesh_that_is_left_alone(rank, n):
    """Rank 2 waits in redistribute for rank 3, which has finished without calling it."""
    tensor = distribute_tensor(torch.ones(4, 4), square(n), [Replicate(), Shard(0)])
    if rank == 2:
        tensor.redistribute(placements=[Replicate(), Replicate()]).to_local().sum().item()


@breaks(3, error="RankError")
def features_that_do_not_divide(rank, n):
    """must have same reduction dim"""
    in_parallel(layers(features=7), mesh(n))(BATCH)


@breaks(2, error="RankError")
def a_mesh_of_more_ranks_than_there_are(rank, n):
    """must multiply to the number of ranks: init_device_mesh('cpu', (world_size,)), or (2,
    world_size // 2).
    """
    init_device_mesh("cpu", (2, n))


@breaks(2)
def a_full_tensor_that_one_rank_does_not_ask_for(rank, n):
    """in full_tensor for rank LAST, which has finished without calling it."""
    tensor = rows(n)
    if rank < n - 1:
        tensor.full_tensor()


@breaks(3)
def a_redistribution_without_rank_1(rank, n):
    """Ranks 0 and 2 wait in redistribute for rank 1, which has finished without calling it."""
    tensor = rows(n)
    if rank != 1:
        tensor.redistribute(placements=[Replicate()])


@breaks(2, on=[0])
def a_functional_collective_nobody_joins(rank, n):
    """Rank 0 waits in all_reduce for rank 1, which has finished without calling it."""
    functional.all_reduce(ones(), "sum", dist.group.WORLD).wait()


@breaks(2, on=[0])
def a_functional_collective_of_several_tensors_nobody_joins(rank, n):
    """Rank 0 waits in all_reduce_coalesced for rank 1, which has finished without calling it."""
    functional.all_reduce_coalesced([ones(), ones()], "sum", dist.group.WORLD)[1].wait()


@breaks(2)
def a_step_of_tensor_parallel_training_too_many(rank, n):
    """for rank 1, which has finished"""
    model = in_parallel(layers(), mesh(n))
    for _ in range(2 - rank):
        model(BATCH).sum().backward()


# --- correct: sharded models ---


def fsdp(rank, n):
    return close(trained(sharded(layers())), trained(layers()))


def fsdp_with_whole_parameters_until_backward(rank, n):
    return close(trained(sharded(layers(), reshard_after_forward=False)), trained(layers()))


def fsdp_of_one_unit_with_a_part_of_the_batch_each(rank, n):
    parts = torch.cat([BATCH] * n).chunk(n)
    return close(trained(fully_shard(layers()), batch=parts[rank]), trained(layers()))


def fsdp_that_gathers_gradients_late(rank, n):
    model, alone = sharded(layers()), layers()
    for last in (False, True):
        model.set_requires_gradient_sync(last)
        model(BATCH).sum().backward()
        alone(BATCH).sum().backward()
    return close([p.grad for p in model.parameters()], [p.grad for p in alone.parameters()])


def fsdp_in_lower_precision(rank, n):
    model = sharded(
        layers(),
        mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    )
    return torch.allclose(model(BATCH).float(), layers()(BATCH), atol=0.05)


def fsdp_with_a_clipped_norm(rank, n):
    model, alone = sharded(layers()), layers()
    model(BATCH).sum().backward()
    alone(BATCH).sum().backward()
    norms = [nn.utils.clip_grad_norm_(one.parameters(), 1.0) for one in (model, alone)]
    return close(norms[:1], norms[1:])


def fsdp_in_replicas(rank, n):
    return close(trained(sharded(layers(), mesh=square(n))), trained(layers()))


def fsdp_of_a_model_in_tensor_parallel(rank, n):
    both = square(n)
    model = sharded(in_parallel(layers(), both["model"]), mesh=both["data"])
    return close(trained(model), trained(layers()))


def a_whole_state_of_a_sharded_model(rank, n):
    state = get_model_state_dict(
        sharded(layers()), options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    return rank > 0 or close(state.values(), layers().state_dict().values())


def states_of_the_optimizer_in_parts(rank, n):
    def make(parameters, lr):
        return ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=lr)

    return close(trained(layers(), make=make), trained(layers(), make=torch.optim.Adam))


# --- correct: DTensor and tensor parallel ---


def placements_around(rank, n):
    there = torch.arange(4.0 * n).view(2 * n, 2)
    ways = [Shard(0), Shard(1), Replicate()]
    moved = [
        rows(n, old).redistribute(placements=[new]).full_tensor() for old in ways for new in ways
    ]
    return close(moved, [there] * len(moved))


def rows_that_do_not_divide(rank, n):
    there = torch.arange(2.0 * n + 2).view(n + 1, 2)
    return close([distribute_tensor(there, mesh(n), [Shard(0)])], [there])


def a_product_of_columns_and_rows(rank, n):
    left, right = (
        distribute_tensor(torch.ones(2 * n, 2 * n), mesh(n), [Shard(dim)]) for dim in (1, 0)
    )
    return close(
        [(left @ right).redistribute(placements=[Shard(0)])], [torch.full((2 * n, 2 * n), 2.0 * n)]
    )


def a_result_that_is_used_late(rank, n):
    sums = [
        functional.all_reduce(torch.full((2,), float(i)), "sum", dist.group.WORLD)
        for i in range(40)
    ]
    dist.all_reduce(torch.ones(1))
    return [total[0].item() for total in sums] == [float(i * n) for i in range(40)]


def a_result_that_nobody_uses(rank, n):
    functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
    zeros(2 * n, device_mesh=mesh(n), placements=[Shard(0)]).redistribute(placements=[Replicate()])
    return True


def columns_then_rows(rank, n):
    return close(
        trained(in_parallel(layers(features=2 * n), mesh(n))), trained(layers(features=2 * n))
    )


def a_loss_in_parallel(rank, n):
    torch.manual_seed(0)
    scores, labels = torch.randn(6, 2 * n), torch.arange(6) % 2
    with loss_parallel():
        loss = F.cross_entropy(distribute_tensor(scores, mesh(n), [Shard(1)]), labels)
    return close([loss], [F.cross_entropy(scores, labels)])
