"""The exercises of notebook 02: collectives, used and built."""

import torch
import torch.distributed as dist

from distlab.course.exercises import COLLECTIVES, Limits, exercise, nothing, numbers, question


def _gathered(tensor):
    """The tensors of all ranks, in the order of the ranks."""
    everyone = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, tensor)
    return everyone


@exercise(
    "02",
    worlds=(1, 2, 3, 4),
    forbids=COLLECTIVES,
    limits=lambda n, length, item: Limits(
        steps=(n - 1).bit_length(), because="Can a rank that has the tensor already help to pass it on?"
    ),
)
def tree_broadcast(tensor):
    """Copy rank 0's tensor into the tensor of every rank, by messages, in as few steps as a tree needs.

    With 4 ranks that is 2 steps, with 8 ranks 3.

    Hint: After the first step two ranks have it, after the second four: who sends to whom?
    Hint: In step s, each rank r below 2**s sends to rank r + 2**s, where there is one.
    """
    dist.broadcast(tensor, src=0)


@exercise("02", forbids=COLLECTIVES)
def gather_by_hand(tensor):
    """Return on rank 0 a list of the tensors of all ranks, in the order of the ranks; the others return nothing.

    Hint: Rank 0 needs a tensor for each piece: `torch.empty_like(tensor)`, once for every other rank.
    Hint: Its own piece needs no message.
    """
    everyone = _gathered(tensor)
    return everyone if dist.get_rank() == 0 else None


@exercise("02", given=lambda rank, n, case: (numbers(rank, n, case)[0].double(),), cases=(8, 3, 1))
def mean_of_all(tensor):
    """Replace the tensor, on every rank, by the mean over all ranks.

    Hint: A sum over all ranks, and one division.
    """
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()


@exercise("02", cases=(1, 2, 0), given=lambda rank, n, more: (torch.full((rank + more,), float(rank)),))
def gather_unequal(tensor):
    """Return, on every rank, one tensor with the numbers of all ranks behind each other; their lengths differ.

    Hint: `dist.all_gather` needs pieces of one size. Gather the lengths first.
    Hint: Pad each tensor with zeros to the longest, gather, and cut off what was padded.
    """
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, tensor)
    return torch.cat(everyone)


@exercise(
    "02",
    cases=(3, 1, 4),
    given=lambda rank, n, length: ([torch.full((length,), 10.0 * rank + dst) for dst in range(n)],),
    forbids=COLLECTIVES,
    limits=lambda n, length, item: Limits(messages=n - 1, because="A rank's own piece needs no message."),
)
def rotate(pieces):
    """All-to-all by rotation: `pieces[s]` is for rank s. Return the list of what the ranks had for this one, in order.

    In step k, for k from 1 to n - 1, rank r sends to rank r + k and receives from rank r - k, round the ring.

    Hint: Send and receive at the same time: if all send first, all wait for ever.
    Hint: `work = dist.isend(pieces[dst], dst=dst)`, then `dist.recv(...)`, then `work.wait()`.
    """
    rank, everyone = dist.get_rank(), [None] * dist.get_world_size()
    dist.all_gather_object(everyone, pieces)
    return [theirs[rank] for theirs in everyone]


@exercise("02")
def prefix_sum(tensor):
    """Return the sum of the tensors of ranks 0 up to this one, this one included. `tensor` must not change.

    Hint: What does rank r need from rank r - 1, and what from the ranks before it?
    Hint: Receive the sum so far from the rank before, add your own, send it to the rank after, return it.
    """
    return sum(_gathered(tensor)[: dist.get_rank() + 1])


@exercise(
    "02",
    forbids=[name for name in COLLECTIVES if name not in ("reduce", "broadcast")],
    limits=lambda n, length, item: Limits(calls=2),
)
def all_reduce_of_two(tensor):
    """Replace the tensor, on every rank, by the sum over all ranks, with one `dist.reduce` and one `dist.broadcast`.

    Hint: After the reduce, one rank has the sum, and what the others hold is unspecified.
    """
    dist.all_reduce(tensor)


@exercise(
    "02",
    cases=(1, 2, 0),
    given=lambda rank, n, more: ([float(step + 1) for step in range(rank + more)],),
)
def sums_by_step(batches):
    """Return, for each step, the sum of the batches of all ranks that still have one: a list, the same on all ranks.

    `batches` is a list of floats, and its length differs from rank to rank. Make one all_reduce a step.

    Hint: A collective needs every rank: one without a batch takes part with a zero.
    Hint: First let all ranks agree on the number of steps, with `op=dist.ReduceOp.MAX`.
    """
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, batches)
    steps = max(map(len, everyone))
    return [sum(theirs[step] for theirs in everyone if step < len(theirs)) for step in range(steps)]


@exercise("02", cases=(1, 3, 0), given=lambda rank, n, more: (torch.ones(rank + more),))
def ragged_all_reduce(tensor):
    """Return the sum of all ranks' one-dimensional tensors, as long as the longest. `tensor` must not change.

    A shorter one counts as if it ended in zeros.

    Hint: How long is the longest? One all-reduce of one number tells every rank.
    Hint: Put the tensor at the beginning of zeros of that length, and add those up.
    """
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, tensor)
    total = torch.zeros(max(map(len, everyone)))
    for theirs in everyone:
        total[: len(theirs)] += theirs
    return total


@exercise(
    "02",
    cases=("same", "first", "last", "middle", "same again"),
    given=lambda rank, n, case: (
        torch.tensor([7 + ({"first": rank == 0, "last": rank == n - 1, "middle": rank == n // 2}.get(case, 0))]),
    ),
    forbids=[name for name in COLLECTIVES if name != "all_reduce"],
)
def all_the_same(tensor):
    """Return, on every rank, True if all ranks hold the same number, else False, with all-reduces of one number only.

    Hint: Which two reductions give the same result only if all numbers are the same?
    Hint: The largest and the smallest. `tensor` must not change, so each needs a copy.
    """
    everyone = [t.item() for t in _gathered(tensor)]
    return len(set(everyone)) == 1


@exercise("02", worlds=(4,), cases=(None,), given=nothing)
def grid_sums():
    """Put 4 ranks on a 2 x 2 grid, rank 2 * row + column. Return (sum of the ranks in this row, in this column).

    Hint: `dist.new_group` is called by every rank, for every group, in the same order.
    Hint: Four groups: rows [0, 1] and [2, 3], columns [0, 2] and [1, 3]. Each rank is in two of them.
    """
    row, column = divmod(dist.get_rank(), 2)
    return 4 * row + 1, 2 * column + 2


@question("02")
def bus_factor(answer):
    """Bus bandwidth is algorithm bandwidth times a factor. What is the factor of an all-reduce on 8 ranks?

    Hint: It is the share of the tensor that each rank sends in the best algorithm.

    Why: 2 (n - 1) / n is 1.75 for 8 ranks. With many ranks it comes near to 2.
    """
    return abs(float(answer) - 1.75) < 1e-9
