"""The exercises of notebook 02, sections 1 to 3: data from one rank to all, from all to one, and from all to all."""

import torch
import torch.distributed as dist

from distlab.checking import COLLECTIVES, Limits, all_but, exercise, gathered, numbers


@exercise(
    "02",
    cases=((1, 0), (0, 2), (7, 3)),
    given=lambda rank, n, case: (*numbers(rank, n, 8), case[0], case[1] % n),
    forbids=all_but("broadcast"),
    limits=lambda n, length, item: Limits(calls=1),
)
def broadcast_slot(tensor, slot, src):
    """Copy number `slot` of rank `src`'s tensor into the same slot of every rank's tensor, with one `dist.broadcast`.

    All other slots stay as they are.

    Hint: `tensor[slot]` is a tensor as well: a view of one number, in the memory of `tensor`.
    Hint: `dist.broadcast` writes into the view, and so into `tensor`. Every rank calls it, with the same `src`.
    """
    dist.broadcast(tensor[slot], src=src)


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


@exercise(
    "02",
    cases=((3, 0), (1, 2), (5, 1)),
    given=lambda rank, n, case: (
        torch.arange(float(n * case[0])).reshape(n, -1) if rank == case[1] % n else None,
        case[0],
        case[1] % n,
    ),
    forbids=all_but("scatter"),
    limits=lambda n, length, item: Limits(calls=1),
)
def my_row(matrix, length, src):
    """Return this rank's row of a matrix that rank `src` alone has, with one `dist.scatter`.

    The matrix has one row of `length` float32 numbers for each rank; on the other ranks `matrix` is None.

    Hint: Only rank `src` gives a list of pieces; on all other ranks the list is None.
    Hint: `list(matrix)` is the list of the rows. Every rank needs a tensor of `length` numbers, where its row arrives.
    """
    box = [matrix]
    dist.broadcast_object_list(box, src=src)
    return box[0][dist.get_rank()]


@exercise("02", forbids=COLLECTIVES)
def gather_by_hand(tensor):
    """Return on rank 0 a list of the tensors of all ranks, in the order of the ranks; the others return nothing.

    Hint: Rank 0 needs a tensor for each piece: `torch.empty_like(tensor)`, once for every other rank.
    Hint: Its own piece needs no message.
    """
    everyone = gathered(tensor)
    return everyone if dist.get_rank() == 0 else None


@exercise(
    "02",
    cases=(0, 1, 3),
    given=lambda rank, n, dst: (*numbers(rank, n, 6), dst % n),
    forbids=all_but("reduce"),
    limits=lambda n, length, item: Limits(calls=1),
)
def largest_on(tensor, dst):
    """Return on rank `dst`, for each slot, the largest number that any rank has there; the others return nothing.

    Use one `dist.reduce`. `tensor` must not change on any rank.

    Hint: A reduction takes an operation: `op=dist.ReduceOp.MAX`.
    Hint: `dist.reduce` may write to the tensors of all ranks, so each rank gives it a copy: `tensor.clone()`.
    """
    everyone = gathered(tensor)
    return torch.stack(everyone).amax(0) if dist.get_rank() == dst else None


@exercise("02", given=lambda rank, n, case: (numbers(rank, n, case)[0].double(),), cases=(8, 3, 1))
def mean_of_all(tensor):
    """Replace the tensor, on every rank, by the mean over all ranks.

    Hint: A sum over all ranks, and one division.
    """
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()


@exercise("02")
def prefix_sum(tensor):
    """Return the sum of the tensors of ranks 0 up to this one, this one included. `tensor` must not change.

    Hint: What does rank r need from rank r - 1, and what from the ranks before it?
    Hint: Receive the sum so far from the rank before, add your own, send it to the rank after, return it.
    """
    return sum(gathered(tensor)[: dist.get_rank() + 1])


@exercise("02", cases=(1, 2, 0), given=lambda rank, n, more: (torch.full((rank + more,), float(rank)),))
def gather_unequal(tensor):
    """Return, on every rank, the tensors of all ranks joined to one, in the order of the ranks; their lengths differ.

    Hint: `dist.all_gather` needs pieces of one size. Gather the lengths first.
    Hint: Pad each tensor with zeros to the longest, gather, and cut off what was padded.
    """
    everyone = gathered(tensor)
    return torch.cat(everyone)


@exercise(
    "02",
    cases=(3, 1, 4),
    given=lambda rank, n, length: ([torch.full((length,), 10.0 * (rank + 2) + dst) for dst in range(n)],),
    forbids=COLLECTIVES,
    limits=lambda n, length, item: Limits(messages=n - 1, because="A rank's own piece needs no message."),
)
def rotate(pieces):
    """All-to-all by rotation: `pieces[s]` is for rank s. Return the list of what the ranks had for this one, in order.

    For every distance k from 1 to n - 1, rank r sends to rank r + k and receives from rank r - k, round the ring.

    Hint: Send and receive at the same time: if all send first, all wait for ever.
    Hint: `work = dist.isend(pieces[dst], dst=dst)`, then `dist.recv(...)`, then `work.wait()`.
    """
    rank, everyone = dist.get_rank(), gathered(pieces)
    return [theirs[rank] for theirs in everyone]


@exercise(
    "02",
    cases=("sorted", "mixed", "some"),
    given=lambda rank, n, case: (
        {"sorted": lambda t: t, "mixed": lambda t: t.flip(0), "some": lambda t: t[t % 7 > rank]}[case](
            torch.arange(10 * n)[rank::n].clone()
        ),
    ),
)
def send_home(numbers):
    """Send every number x to rank x // 10, and return, sorted, the numbers that are at home on this rank.

    `numbers` is an int64 tensor; the ranks have different ones, of different lengths.

    Hint: How many numbers go to each rank? `torch.bincount(numbers // 10, minlength=world_size)`.
    Hint: `dist.all_to_all_single` exchanges these counts first, in equal pieces, and then the numbers.
    Hint: The pieces lie in the order of the ranks, so sort the numbers before you send them.
    """
    everyone = gathered(numbers)
    everything = torch.cat(everyone)
    return everything[everything // 10 == dist.get_rank()].sort().values
