"""The exercises of lab 03: what each collective moves, and from which rank to which."""

import torch
import torch.distributed as dist

from distlab.checking import (
    COLLECTIVES,
    Limits,
    all_but,
    exercise,
    gathered,
    numbers,
    on_rank,
    question,
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


@exercise("03", forbids=COLLECTIVES, limits=_steps_of_a_tree)
def tree_broadcast(tensor):
    """Copy rank 0's tensor into the tensor of every rank, by messages, in as few steps as a tree
    needs.

    With 4 ranks that is 2 steps, with 8 ranks 3.

    Title: 1.1 Tree broadcast
    Hint: After step 0 two ranks have the tensor, and after step 1 four. Which rank sends to which?
    Hint: In step s, each rank r below 2**s sends to rank r + 2**s, if that rank exists.
    Hint: A loop over the steps begins with `have = 1` and ends each step with `have *= 2`, which is
    the number of ranks that have the tensor.

    Limit: Can a rank that has the tensor already help to pass it on?
    """
    dist.broadcast(tensor, src=0)


@question("03", right=[None, [6, 40], None, None])
def after_reduce(answer):
    """Four ranks hold `t = torch.tensor([rank, 10])` and call `dist.reduce(t, dst=1)`.

    Give the four tensors afterwards, that of rank 0 first, as a list of lists, with None for a
    tensor whose contents are unspecified.

    Title: 2.1 After a reduce
    Hint: Which rank is the root?
    Hint: The sum is taken slot by slot: 0 + 1 + 2 + 3, and 10 four times.

    Not [[6, 40], None, None, None]: The sums are right, but rank 0 is not the root here.
    Not [[6, 40], [6, 40], [6, 40], [6, 40]]: This is what an all-reduce leaves.
    Not [[0, 10], [6, 40], [2, 10], [3, 10]]: The sums are on the right rank, but are the tensors of
    the other ranks promised to be unchanged?
    Not [None, [6, 10], None, None]: Slot 1 is summed as well.
    Otherwise: The root gets the sum of each slot. What is promised about the other ranks?
    Why: Only the root has a result. The other tensors are working space of the library.
    """


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

    Title: 2.2 The largest, on one rank
    Hint: A reduction takes an operation: `op=dist.ReduceOp.MAX`.
    Hint: `dist.reduce` may write to the tensors of all ranks, so each rank passes it a copy:
    `tensor.clone()`.
    """
    tensors = torch.stack(gathered(tensor))
    return on_rank(dst, tensors.amax(0))


@question("03", right=[10, 100, 1000, 10000])
def after_reduce_scatter(answer):
    """Rank 0 passes the pieces 1, 10, 100 and 1000 to a reduce-scatter, rank 1 passes 2, 20, 200
    and 2000, rank 2 passes 3, 30, 300 and 3000, and rank 3 passes 4, 40, 400 and 4000.

    Give the number that each rank holds afterwards, that of rank 0 first, as a list.

    Title: 3.1 After a reduce-scatter
    Hint: Rank 2 gets the sum of everyone's piece 2. Which four numbers are these?

    Not [1111, 2222, 3333, 4444]: Here each rank adds its own pieces, but a reduction adds over the
    ranks.
    Not [11110, 11110, 11110, 11110]: This is the sum of all sixteen numbers, but each rank gets a
    sum of four.
    Not [10, 10, 10, 10]: Piece 0 is summed for rank 0 only. Which piece belongs to rank 1?
    Not [1, 20, 300, 4000]: These are the right pieces of one rank each, but they are not summed.
    Otherwise: Rank r gets the sum of the pieces r of all ranks.
    Why: Rank r gets the sum of all pieces r, so each sum is on one rank only.
    """


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

    Title: 3.2 All-reduce in two calls
    Hint: `pieces = list(tensor.chunk(world_size))` are views: what is written to a piece is written
    to `tensor`.
    Hint: The reduce-scatter needs a tensor of its own for its result:
    `torch.empty_like(pieces[0])`.
    Hint: The all-gather writes all results into `pieces`.

    Limit: Which part of the sum does a rank need after the first call?
    """
    dist.all_reduce(tensor)


@question("03", right=[[0, 10, 20, 30], [1, 11, 21, 31], [2, 12, 22, 32], [3, 13, 23, 33]])
def after_all_to_all(answer):
    """Rank r holds 10 r, 10 r + 1, 10 r + 2 and 10 r + 3, and all four ranks call
    `dist.all_to_all_single(out, t)`.

    Give the four rows of `out`, that of rank 0 first, as a list of lists.

    Title: 3.3 After an all-to-all
    Hint: Rank 2 gets slot 2 of every rank. In which order are the pieces stored?

    Not [[0, 1, 2, 3], [10, 11, 12, 13], [20, 21, 22, 23], [30, 31, 32, 33]]: These are the rows
    before the call. Each rank keeps only one of its own numbers.
    Not [[60, 64, 68, 72], [60, 64, 68, 72], [60, 64, 68, 72], [60, 64, 68, 72]]: Nothing is added
    in an all-to-all.
    Not [60, 64, 68, 72]: Nothing is added in an all-to-all.
    Otherwise: Rank s gets slot s of every rank, in the order of the ranks.
    Why: What was a column is now a row, so the matrix is transposed.
    """


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
