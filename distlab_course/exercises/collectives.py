"""The exercises of notebook 02, sections 1 to 3: data from one rank to all, from all to one, and from all to all."""

from functools import partial

import torch
import torch.distributed as dist

from distlab.checking import COLLECTIVES, Exercise, Limits, all_but, gathered, numbers, on_rank

exercise, messages = partial(Exercise, "02"), partial(Exercise, "02", forbids=COLLECTIVES)


def one_call(name, **options):
    """An exercise whose answer makes one call of one collective."""
    return exercise(forbids=all_but(name), limits=Limits(calls=1), **options)


@one_call(
    "broadcast",
    cases=((1, 0), (0, 2), (7, 3)),
    given=lambda rank, n, case: (*numbers(rank, n, 8), case[0], case[1] % n),
)
def broadcast_slot(tensor, slot, src):
    """Copy number `slot` of rank `src`'s tensor into the same slot of every rank's tensor, with one `dist.broadcast`.

    All other slots stay as they are.

    Hint: `tensor[slot]` is a tensor as well: a view of one number, in the memory of `tensor`.
    Hint: `dist.broadcast` writes into the view, and so into `tensor`. Every rank calls it, with the same `src`.
    """
    dist.broadcast(tensor[slot], src=src)


@messages(limits=lambda n, length, item: Limits(steps=(n - 1).bit_length()))
def tree_broadcast(tensor):
    """Copy rank 0's tensor into the tensor of every rank, by messages, in as few steps as a tree needs.

    With 4 ranks that is 2 steps, with 8 ranks 3.

    Hint: After the first step two ranks have it, after the second four: who sends to whom?
    Hint: In step s, each rank r below 2**s sends to rank r + 2**s, where there is one.

    Limit: Can a rank that has the tensor already help to pass it on?
    """
    dist.broadcast(tensor, src=0)


def _matrix(rank, n, case):
    """A matrix on one rank, the length of its rows, and that rank."""
    length, src = case[0], case[1] % n
    return torch.arange(float(n * length)).reshape(n, -1) if rank == src else None, length, src


@one_call("scatter", cases=((3, 0), (1, 2), (5, 1)), given=_matrix)
def my_row(matrix, length, src):
    """Return this rank's row of a matrix that rank `src` alone has, with one `dist.scatter`.

    The matrix has one row of `length` float32 numbers for each rank; on the other ranks `matrix` is None.

    Hint: Only rank `src` gives a list of pieces; on all other ranks the list is None.
    Hint: `list(matrix)` is the list of the rows. Every rank needs a tensor of `length` numbers, where its row arrives.
    """
    return gathered(matrix)[src][dist.get_rank()]


@messages()
def gather_by_hand(tensor):
    """Return on rank 0 a list of the tensors of all ranks, in the order of the ranks; the others return nothing.

    Hint: Rank 0 needs a tensor for each piece: `torch.empty_like(tensor)`, once for every other rank.
    Hint: Its own piece needs no message.
    """
    return on_rank(0, gathered(tensor))


@one_call("reduce", cases=(0, 1, 3), given=lambda rank, n, dst: (*numbers(rank, n, 6), dst % n))
def largest_on(tensor, dst):
    """Return on rank `dst`, for each slot, the largest number that any rank has there; the others return nothing.

    Use one `dist.reduce`. `tensor` must not change on any rank.

    Hint: A reduction takes an operation: `op=dist.ReduceOp.MAX`.
    Hint: `dist.reduce` may write to the tensors of all ranks, so each rank gives it a copy: `tensor.clone()`.
    """
    return on_rank(dst, torch.stack(gathered(tensor)).amax(0))


@exercise(given=lambda rank, n, case: (numbers(rank, n, case)[0].double(),), cases=(8, 3, 1))
def mean_of_all(tensor):
    """Replace the tensor, on every rank, by the mean over all ranks.

    Hint: A sum over all ranks, and one division.
    """
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()


@exercise()
def prefix_sum(tensor):
    """Return the sum of the tensors of ranks 0 up to this one, this one included. `tensor` must not change.

    Hint: What does rank r need from rank r - 1, and what from the ranks before it?
    Hint: Receive the sum so far from the rank before, add your own, send it to the rank after, return it.
    """
    return sum(gathered(tensor)[: dist.get_rank() + 1])


@exercise(cases=(1, 2, 0), given=lambda rank, n, more: (torch.full((rank + more,), float(rank)),))
def gather_unequal(tensor):
    """Return, on every rank, the tensors of all ranks joined to one, in the order of the ranks; their lengths differ.

    Hint: `dist.all_gather` needs pieces of one size. Gather the lengths first.
    Hint: Pad each tensor with zeros to the longest, gather, and cut off what was padded.
    """
    return torch.cat(gathered(tensor))


@messages(
    cases=(3, 1, 4),
    given=lambda rank, n, length: ([torch.full((length,), 10.0 * (rank + 2) + dst) for dst in range(n)],),
    limits=lambda n, length, item: Limits(messages=n - 1),
)
def rotate(pieces):
    """All-to-all by rotation: `pieces[s]` is for rank s. Return the list of what the ranks had for this one, in order.

    For every distance k from 1 to n - 1, rank r sends to rank r + k and receives from rank r - k, round the ring.

    Hint: Send and receive at the same time: if all send first, all wait for ever.
    Hint: `work = dist.isend(pieces[dst], dst=dst)`, then `dist.recv(...)`, then `work.wait()`.

    Limit: A rank's own piece needs no message.
    """
    return [theirs[dist.get_rank()] for theirs in gathered(pieces)]


def _to_many_ranks(rank, n, order):
    """Every n-th number below 10 n: in order, backwards, or some of them."""
    numbers = torch.arange(10 * n)[rank::n].clone()
    return ({"sorted": numbers, "mixed": numbers.flip(0), "some": numbers[numbers % 7 > rank]}[order],)


@exercise(cases=("sorted", "mixed", "some"), given=_to_many_ranks)
def send_home(numbers):
    """Send every number x to rank x // 10, and return, sorted, the numbers that are at home on this rank.

    `numbers` is an int64 tensor; the ranks have different ones, of different lengths.

    Hint: How many numbers go to each rank? `torch.bincount(numbers // 10, minlength=world_size)`.
    Hint: `dist.all_to_all_single` exchanges these counts first, in equal pieces, and then the numbers.
    Hint: The pieces lie in the order of the ranks, so sort the numbers before you send them.
    """
    everything = torch.cat(gathered(numbers))
    return everything[everything // 10 == dist.get_rank()].sort().values
