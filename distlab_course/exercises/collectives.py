"""The exercises of lab 03: what each collective moves, and groups of ranks."""

from functools import partial

import torch
import torch.distributed as dist

from distlab.checking import COLLECTIVES, Exercise, Limits, Race, all_but, gathered, nothing, numbers, on_rank

exercise = partial(Exercise, "03")


@exercise(
    forbids=COLLECTIVES,
    limits=lambda n, length, item: Limits(steps=(n - 1).bit_length()),
    race=Race(2**18, ours=178e-6, target=200e-6),
)
def tree_broadcast(tensor):
    """Copy rank 0's tensor into the tensor of every rank, by messages, in as few steps as a tree needs.

    With 4 ranks that is 2 steps, with 8 ranks 3.

    Hint: After the first step two ranks have it, after the second four: which rank sends to which?
    Hint: In step s, each rank r below 2**s sends to rank r + 2**s, if that rank exists.

    Limit: Can a rank that has the tensor already help to pass it on?
    """
    dist.broadcast(tensor, src=0)


@exercise(
    forbids=all_but("reduce"),
    limits=Limits(calls=1),
    cases=(0, 1, 3),
    given=lambda rank, n, dst: (*numbers(rank, n, 6), dst % n),
)
def largest_on(tensor, dst):
    """Return on rank `dst`, for each slot, the largest number that any rank has there; the others return nothing.

    Use one `dist.reduce`. `tensor` must not change on any rank.

    Hint: A reduction takes an operation: `op=dist.ReduceOp.MAX`.
    Hint: `dist.reduce` may write to the tensors of all ranks, so each rank passes it a copy: `tensor.clone()`.
    """
    return on_rank(dst, torch.stack(gathered(tensor)).amax(0))


@exercise(
    forbids=all_but("reduce_scatter", "all_gather"),
    limits=Limits(calls=2),
    cases=(2, 1, (3, torch.int64)),
    given=lambda rank, n, case: numbers(rank, n, (case[0] * n, case[1]) if isinstance(case, tuple) else case * n),
)
def all_reduce_in_two(tensor):
    """Replace the tensor, on every rank, by the sum over all ranks, with one reduce-scatter and one all-gather.

    The length of the tensor is a multiple of the number of ranks.

    Hint: `pieces = list(tensor.chunk(world_size))` are views: what is written to a piece is written to `tensor`.
    Hint: The reduce-scatter needs a tensor of its own for its result: `torch.empty_like(pieces[0])`.
    Hint: The all-gather writes all results into `pieces`.
    """
    dist.all_reduce(tensor)


@exercise(
    cases=("same", "first", "last", "rising", "same again"),
    given=lambda rank, n, case: (
        torch.tensor([7 + {"first": rank == 0, "last": rank == n - 1, "rising": rank}.get(case, 0)]),
    ),
    forbids=all_but("all_reduce"),
)
def all_the_same(tensor):
    """Return, on every rank, True if all ranks hold the same number, else False.

    Use all-reduces of one number only. `tensor` must not change.

    Hint: Which two reductions give the same result only if all numbers are the same?
    Hint: The largest and the smallest. Each needs a copy of `tensor`.
    """
    return len({theirs.item() for theirs in gathered(tensor)}) == 1


@exercise(worlds=(4,), cases=(None,), given=nothing)
def grid_sums():
    """Put 4 ranks on a 2 x 2 grid, rank 2 * row + column; return (sum of the ranks in this row, in this column).

    Hint: `dist.new_group` is called by every rank, for every group, in the same order.
    Hint: Four groups: rows [0, 1] and [2, 3], columns [0, 2] and [1, 3]. Each rank is in two of them.

    Stuck: Does every rank call `dist.new_group` for all four groups, and in the same order?
    """
    row, column = divmod(dist.get_rank(), 2)
    return 4 * row + 1, 2 * column + 2
