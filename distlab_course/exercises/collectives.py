"""The exercises of lab 03: what each collective moves, and groups of ranks."""

import torch
import torch.distributed as dist

from distlab.checking import (
    COLLECTIVES,
    Limits,
    Race,
    all_but,
    exercise,
    gathered,
    nothing,
    numbers,
    on_rank,
)

CHUNKS = ((2, torch.float32), (1, torch.float32), (3, torch.int64))  # lengths and dtypes


def _numbers_and_root(rank, n, dst):
    """Six numbers on each rank, and the rank that gets the result."""
    (tensor,) = numbers(rank, n, 6)
    return tensor, dst % n


def _numbers_in_chunks(rank, n, case):
    """Numbers in n chunks of some length."""
    length, dtype = case
    return numbers(rank, n, (length * n, dtype))


def _sevens(rank, n, case):
    """The number 7, on some ranks with something added."""
    if case == "rising":
        return (torch.tensor([7 + rank]),)
    with_8 = None  # the one rank that has another number
    if case == "first":
        with_8 = 0
    elif case == "last":
        with_8 = n - 1
    number = 8 if rank == with_8 else 7
    return (torch.tensor([number]),)


def _steps_of_a_tree(n, length, item):
    """As many steps as it takes to double one rank to n."""
    return Limits(steps=(n - 1).bit_length())


@exercise(
    "03", forbids=COLLECTIVES, limits=_steps_of_a_tree, race=Race(2**18, ours=178e-6, target=200e-6)
)
def tree_broadcast(tensor):
    """Copy rank 0's tensor into the tensor of every rank, by messages, in as few steps as a tree
    needs.

    With 4 ranks that is 2 steps, with 8 ranks 3.

    Title: 1.1 Tree broadcast
    Hint: After the first step two ranks have it, after the second four: which rank sends to which?
    Hint: In step s, each rank r below 2**s sends to rank r + 2**s, if that rank exists.

    Limit: Can a rank that has the tensor already help to pass it on?
    """
    dist.broadcast(tensor, src=0)


@exercise(
    "03",
    forbids=all_but("reduce"),
    limits=Limits(calls=1),
    cases=(0, 1, 3),
    given=_numbers_and_root,
)
def largest_on(tensor, dst):
    """On rank `dst`, return the largest number that any rank has in each slot; the other ranks
    return nothing.

    Use one `dist.reduce`. `tensor` must not change on any rank.

    Title: 2.1 The largest, on one rank
    Hint: A reduction takes an operation: `op=dist.ReduceOp.MAX`.
    Hint: `dist.reduce` may write to the tensors of all ranks, so each rank passes it a copy:
    `tensor.clone()`.
    """
    tensors = torch.stack(gathered(tensor))
    return on_rank(dst, tensors.amax(0))


def _two_calls(n, length, item):
    """Two calls, in each of which a rank sends all chunks but one."""
    return Limits(num_bytes=2 * (n - 1) * length // n * item, calls=2)


@exercise(
    "03",
    forbids=all_but("reduce_scatter", "all_gather"),
    limits=_two_calls,
    cases=CHUNKS,
    given=_numbers_in_chunks,
)
def all_reduce_in_two(tensor):
    """Replace the tensor on every rank with the sum over all ranks, using one reduce-scatter and
    one all-gather.

    The length of the tensor is a multiple of the number of ranks.

    Title: 3.1 All-reduce in two calls
    Hint: `pieces = list(tensor.chunk(world_size))` are views: what is written to a piece is written
    to `tensor`.
    Hint: The reduce-scatter needs a tensor of its own for its result:
    `torch.empty_like(pieces[0])`.
    Hint: The all-gather writes all results into `pieces`.

    Limit: Which part of the sum does a rank need after the first call?
    """
    dist.all_reduce(tensor)


@exercise(
    "03",
    cases=("same", "first", "last", "rising", "same again"),
    given=_sevens,
    forbids=all_but("all_reduce"),
)
def all_the_same(tensor):
    """Return, on every rank, True if all ranks hold the same number, else False.

    Use only all-reduces, each of a single number. `tensor` must not change.

    Title: 4.1 Are they all the same?
    Hint: Which two reductions give the same result only if all numbers are the same?
    Hint: The largest and the smallest. Each needs a copy of `tensor`.
    """
    found = torch.cat(gathered(tensor))
    return bool((found == found[0]).all())


@exercise("03", worlds=(4,), cases=(None,), given=nothing)
def grid_sums():
    """Put 4 ranks on a 2 x 2 grid, rank 2 * row + column; each returns (sum of the ranks in its
    row, in its column).

    Title: 5.1 A grid of ranks
    Hint: `dist.new_group` is called by every rank, for every group, in the same order.
    Hint: Four groups: rows [0, 1] and [2, 3], columns [0, 2] and [1, 3]. Each rank is in two of
    them.

    Stuck: Does every rank call `dist.new_group` for all four groups, and in the same order?
    """
    row, column = divmod(dist.get_rank(), 2)
    sum_of_row = 2 * row + (2 * row + 1)
    sum_of_column = column + (column + 2)
    return sum_of_row, sum_of_column
