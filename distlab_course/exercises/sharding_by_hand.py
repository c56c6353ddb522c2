"""The exercises of lab 49: the cost of a replica, and how its parts are divided by hand."""

import torch
import torch.distributed as dist

from distlab.checking import Limits, exercise, formula, gathered, numbers


def _state_of_rank(rank, n, shard):
    """Weights that every rank has, a gradient of this rank, and its shard of the momentum."""
    weights = torch.arange(float(n * shard))
    (gradient,) = numbers(rank, n, len(weights))
    momentum = weights.chunk(n)[rank] / 10
    return weights, gradient, momentum


def _two_halves_of_a_ring(n, length, item):
    """The bytes of a reduce-scatter and an all-gather."""
    return Limits(2 * (n - 1) * length // n * item)


def _try_step(fn, weights, gradient, momentum):
    """The weights and the momentum after a step, which may change the gradient."""
    fn(weights, gradient, momentum)
    return weights, momentum


def _rows_of_rank(rank, n, count):
    """This rank's rows of a matrix of `count` rows, as `chunk` cuts it, and `count`."""
    whole = torch.arange(3.0 * count).reshape(count, 3)
    parts = list(whole.chunk(n))
    while len(parts) < n:
        parts.append(whole[:0])
    return parts[rank].clone(), count


@formula("49", (1000, 4, 0), (1000, 4, 1), (1000, 4, 2), (1000, 4, 3), (2097152, 4, 3), (64, 1, 3))
def bytes_of_a_rank(parameters, ranks, stage):
    """Return the bytes of parameters, gradients and optimizer states on a rank, with float32 and
    Adam.

    `stage` is 0 for data parallelism and 1 to 3 for ZeRO, and everything divides evenly.

    Title: 1.1 Bytes per rank
    Hint: Without ZeRO a parameter takes 4 bytes, its gradient 4, and Adam's two means 8.
    Hint: Divide the 8 by the ranks from stage 1 on, the gradient's 4 from stage 2 on, and the
    parameter's 4 at stage 3.
    """
    whole = 16
    if stage >= 1:
        whole -= 8  # Adam's two means
    if stage >= 2:
        whole -= 4  # the gradient
    if stage >= 3:
        whole -= 4  # the parameter
    divided = 16 - whole
    return parameters * whole + parameters * divided // ranks


@exercise(
    "49", cases=(2, 3, 20), given=_state_of_rank, trial=_try_step, limits=_two_halves_of_a_ring
)
def zero_2_step(weights, gradient, momentum):
    """Make one step of SGD with momentum on `weights`, the same on all ranks; `momentum` is this
    rank's shard.

    The momentum becomes 0.9 times itself plus the average gradient of shard `rank`, and that
    shard of the weights loses 0.1 times it. All ranks end with all new weights; `gradient` may be
    changed.

    Title: 2.1 ZeRO-2
    Hint: `mine = torch.empty_like(momentum)`, and `dist.reduce_scatter(mine,
    list(gradient.chunk(world_size)))` leaves the sum of shard `rank` there.
    Hint: `momentum.mul_(0.9).add_(...)` changes the tensor that was given; `momentum = ...` makes
    another one.
    Hint: The shards are `weights.chunk(world_size)`, views of `weights`: `dist.all_gather` can
    write into them.

    Limit: Which part of the average does a rank need, and which of the weights?
    """
    world_size = dist.get_world_size()
    average = sum(gathered(gradient)) / world_size
    mine = average.chunk(world_size)[dist.get_rank()]
    momentum.mul_(0.9).add_(mine)
    weights -= 0.1 * torch.cat(gathered(momentum))


@exercise("49", cases=(8, 5, 2), given=_rows_of_rank, limits=Limits(calls=1))
def gather_uneven(rows, count):
    """Return on every rank the whole matrix of `count` rows, of which this rank has `rows`.

    The matrix was cut by `chunk`, so the last ranks may have fewer rows than the first, or none.
    An all-gather takes tensors of one size. One collective call must be enough.

    Title: 3.1 Rows that do not divide
    Hint: `chunk` gives the first rank `-(-count // world_size)` rows, which is the division rounded
    up, and no rank has more.
    Hint: Copy your rows into a tensor of that many rows, `padded[: len(rows)] = rows`, and gather
    these tensors.
    Hint: All padding is at the end of the gathered tensor.

    Limit: Every rank can compute how many rows the first rank has. Must they tell each other?
    """
    return torch.cat(gathered(rows))
