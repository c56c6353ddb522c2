"""The exercises of notebook 09 on divided states, gradients and parameters."""

import torch
import torch.distributed as dist

from distlab.checking import Limits, exercise, formula, numbers, question


def _state(rank, world_size, shard):
    """Weights that are the same on every rank, a gradient of this rank, and its shard of the momentum."""
    weights = torch.arange(float(world_size * shard))
    return weights, numbers(rank, world_size, len(weights))[0], weights.chunk(world_size)[rank] / 10


def _stepped(fn, weights, gradient, momentum):
    """The weights and the momentum after a step, which may change the gradient."""
    fn(weights, gradient, momentum)
    return weights, momentum


def _shards(rank, world_size, case):
    """A list of shards, none on rank 2, and the largest norm."""
    lengths, max_norm = case
    return [numbers(rank + i, world_size, length)[0] for i, length in enumerate(lengths) if rank != 2], max_norm


def _first(total, parts, part):
    """Where a part begins, if the first parts are one number longer than the others."""
    return part * (total // parts) + min(part, total % parts)


@formula("09", (1000, 4, 0), (1000, 4, 1), (1000, 4, 2), (1000, 4, 3), (2097152, 4, 3), (64, 1, 3))
def bytes_of_a_rank(parameters, ranks, stage):
    """Return the bytes of parameters, gradients and optimizer states on a rank, with float32 and Adam.

    `stage` is 0 for data parallelism and 1 to 3 for ZeRO, and everything divides evenly.

    Hint: Without ZeRO a parameter takes 4 bytes, its gradient 4, and Adam's two means 8.
    Hint: Divide the 8 by the ranks from stage 1 on, the gradient's 4 from stage 2 on, and the parameter's 4 at stage 3.
    """
    divided = (0, 8, 12, 16)[stage]
    return parameters * (16 - divided) + parameters * divided // ranks


@exercise(
    "09",
    cases=(2, 3, 20),
    given=_state,
    trial=_stepped,
    limits=lambda n, length, item: Limits(2 * (n - 1) * length // n * item),
)
def zero_2_step(weights, gradient, momentum):
    """Make one step of SGD with momentum on `weights`, which are the same on all ranks.

    `momentum` is this rank's shard: it becomes 0.9 times itself plus the average gradient of shard `rank`, and that
    shard of the weights loses 0.1 times it. All ranks end with all new weights; `gradient` may be changed.

    Hint: `mine = torch.empty_like(momentum)`, and `dist.reduce_scatter(mine, list(gradient.chunk(world_size)))` leaves
    the sum of shard `rank` there.
    Hint: `momentum.mul_(0.9).add_(...)` changes the tensor that was given; `momentum = ...` makes another one.
    Hint: The shards are `weights.chunk(world_size)`, views of `weights`: `dist.all_gather` can write into them.

    Limit: Which part of the average does a rank need, and which of the weights?
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(gradient)
    momentum.mul_(0.9).add_(gradient.chunk(world_size)[rank] / world_size)
    shards = list(weights.chunk(world_size))
    dist.all_gather(shards, shards[rank] - 0.1 * momentum)


@exercise("09", cases=(((3, 2), 1.0), ((4,), 1e3), ((1, 5), 12.0)), given=_shards, limits=Limits(calls=1, largest=8))
def clip_shards(shards, max_norm):
    """Scale the shards of all ranks in place, so that the norm of the whole gradient is at most `max_norm`.

    If the norm is not larger, nothing changes. Return the norm before the scaling, as a number. A rank may have no
    shard. One collective call of one number has to do.

    Hint: The norm is the root of the sum of all squares, and sums may be added over ranks.
    Hint: Scale by `max_norm / norm` only where that is below 1.

    Limit: Which single number do the others need from a rank?
    """
    squares = torch.tensor(float(sum(shard.square().sum() for shard in shards)))
    dist.all_reduce(squares)
    norm = squares.sqrt().item()
    for shard in shards:
        shard *= min(1.0, max_norm / norm)
    return norm


@question("09", 3.5)
def whole_after_forward(answer):
    """A model has 10 blocks with 1 GB of parameters each, and 2 GB in its embeddings and output layer. On 8 ranks
    `fully_shard` is called for each block, and then for the model. How many GB of parameters lie on a rank between
    forward and backward?

    Hint: Each rank keeps its shards of everything, all the time.
    Hint: What is whole beside them when the last block has been dropped?

    Not 1.5: Those are the shards. Is nothing whole after forward?
    Not 2.0: Those are the root's own. Where are the shards of the blocks?
    Not 3.25: The root's shard stays where it is while the root is whole.
    Not 4.5: The last block has been dropped when its forward ended.
    Not 12.0: That would be one group for the whole model.

    Why: The shards are 12 / 8 = 1.5 GB, and beside them the root's 2 GB are whole until backward.
    """


@formula("09", (8, 4, 2, 1), (8, 2, 4, 1), (10, 4, 3, 1), (10, 4, 3, 2), (3, 4, 2, 1), (1000, 7, 5, 3))
def read_plan(total, files, ranks, rank):
    """Return a list of what a rank reads of a checkpoint: (file, start, stop) for numbers start to stop of a file.

    The tensor of `total` numbers was saved in so many files, and is now needed by so many ranks. Both are cut as
    `tensor_split` does: the first parts are one longer where it does not divide. In order, and nothing empty.

    Hint: Where in the whole tensor do a file and the rank's own shard begin and end?
    Hint: What both have begins at the larger of the two beginnings; subtract where the file begins.
    """
    begin, end = _first(total, ranks, rank), _first(total, ranks, rank + 1)
    plan = []
    for file in range(files):
        first, last = _first(total, files, file), _first(total, files, file + 1)
        if max(first, begin) < min(last, end):
            plan.append((file, max(first, begin) - first, min(last, end) - first))
    return plan
