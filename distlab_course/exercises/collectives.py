"""The exercises of notebook 02: what each collective moves, which rank calls it when, and what it costs."""

import time
from functools import partial
from itertools import zip_longest

import torch
import torch.distributed as dist
from torch import nn

from distlab.checking import COLLECTIVES, Exercise, Limits, Question, all_but, gathered, nothing, numbers, on_rank

exercise, question = partial(Exercise, "02"), partial(Question, "02")
messages = partial(exercise, forbids=COLLECTIVES)


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


@exercise(
    cases=((3, 1, 4, 1), (2, 7, 1, 8), (5, 5, 2, 0)), given=lambda rank, n, lengths: ("dcba"[rank] * lengths[rank],)
)
def longest_text(text):
    """Return, on every rank, the number of the rank with the longest text; the lowest where several are as long.

    Hint: `dist.all_gather_object` needs a list with a place for every rank: `[None] * world_size`.
    Hint: The index of a list's first largest number: `lengths.index(max(lengths))`.
    """
    lengths = [len(theirs) for theirs in gathered(text)]
    return lengths.index(max(lengths))


@question(160.0)
def leaves_the_barrier(answer):
    """Ranks 0, 1, 2 and 3 reach a barrier after 40, 80, 120 and 160 ms. After how many ms does rank 0 leave it?

    Hint: Whom does rank 0 wait for?
    Hint: It leaves when all have come, and rank 3 is the last.

    Not 40: After 40 ms rank 0 comes to the barrier.
    Not 120: 120 ms is how long rank 0 waits. It came after 40 ms.

    Why: No rank leaves before the last one has come, and rank 3 comes after 160 ms. Rank 0 has waited for 120 of them.
    """


@question([1])
def named_by_rank_0(answer):
    """Ranks 1 and 3 stay away from a `dist.monitored_barrier` without `wait_all_ranks`. Which ranks does the error on
    rank 0 name? Answer with a list.

    Hint: Change the cell above, and run it.
    Hint: Rank 0 asks rank 1, then rank 2, then rank 3. What does it do when the first does not answer?

    Not (1, 3): With `wait_all_ranks=True` it names both.

    Why: Rank 0 asks the ranks one after the other, and gives up at the first that does not answer.
    """


@question([4, 7, 6])
def bits_of_three(answer):
    """Three ranks hold 7, 5 and 4. What do BAND, BOR and BXOR make of them? Answer with a list of three numbers.

    Hint: In bits they are 111, 101 and 100. Look at one column after the other.
    Hint: BXOR sets a bit where an odd number of ranks have it.

    Otherwise: Write the three numbers in bits below each other.

    Why: Bit 2 is set three times, bit 1 once, bit 0 twice. All: 100 = 4. Any: 111 = 7. An odd number: 110 = 6.
    """


@exercise(
    cases=("same", "first", "last", "rising", "same again"),
    given=lambda rank, n, case: (
        torch.tensor([7 + {"first": rank == 0, "last": rank == n - 1, "rising": rank}.get(case, 0)]),
    ),
    forbids=all_but("all_reduce"),
)
def all_the_same(tensor):
    """Return, on every rank, True if all ranks hold the same number, else False, with all-reduces of one number only.

    Hint: Which two reductions give the same result only if all numbers are the same?
    Hint: The largest and the smallest. `tensor` must not change, so each needs a copy.
    """
    return len({theirs.item() for theirs in gathered(tensor)}) == 1


@exercise(worlds=(4,), cases=(None,), given=nothing)
def grid_sums():
    """Put 4 ranks on a 2 x 2 grid, rank 2 * row + column. Return (sum of the ranks in this row, in this column).

    Hint: `dist.new_group` is called by every rank, for every group, in the same order.
    Hint: Four groups: rows [0, 1] and [2, 3], columns [0, 2] and [1, 3]. Each rank is in two of them.

    Stuck: Does every rank call `dist.new_group` for all four groups, and in the same order?
    """
    row, column = divmod(dist.get_rank(), 2)
    return 4 * row + 1, 2 * column + 2


@exercise(cases=(1, 2, 0), given=lambda rank, n, more: ([step + 1.0 for step in range(rank + more)],))
def sums_by_step(batches):
    """Return, for each step, the sum of the batches of all ranks that still have one: a list, the same on all ranks.

    `batches` is a list of floats, and its length differs from rank to rank. Make one all_reduce a step.

    Hint: A collective needs every rank: one without a batch takes part with a zero.
    Hint: First let all ranks agree on the number of steps, with `op=dist.ReduceOp.MAX`.
    """
    return [float(sum(batches)) for batches in zip_longest(*gathered(batches), fillvalue=0.0)]


@exercise(cases=(1, 3, 0), given=lambda rank, n, more: (torch.ones(rank + more),))
def ragged_all_reduce(tensor):
    """Return the sum of all ranks' one-dimensional tensors, as long as the longest. `tensor` must not change.

    A shorter one counts as if it ended in zeros.

    Hint: How long is the longest? One all-reduce of one number tells every rank.
    Hint: Put the tensor at the beginning of zeros of that length, and add those up.
    """
    return nn.utils.rnn.pad_sequence(gathered(tensor)).sum(1)


def _rotated(rank, n, count):
    """Tensors by name, of which each rank has another one first."""
    places = [(rank + k) % count for k in range(count)]
    return ({"abcd"[place]: torch.tensor([10.0**place]) for place in places},)


@exercise(cases=(2, 4, 1), given=_rotated)
def in_one_order(tensors):
    """Replace each tensor of a dict by its sum over all ranks.

    The dicts of all ranks have the same names, but not in the same order.

    Hint: What do all ranks know that could give them the same order?
    Hint: `sorted(tensors)` is the list of the names in alphabetical order.
    """
    for name in sorted(tensors):
        dist.all_reduce(tensors[name])


def _rank_0_late(fn, tensor):
    """Call fn(tensor, compute) where rank 0 begins once rank 1 computes, and rank 1 computes until rank 0 has ended."""
    rank, signal = dist.get_rank(), torch.zeros(1)

    def compute():
        if rank == 1:
            dist.send(signal, dst=0)
            dist.recv(signal, src=0)
        return 0.5

    if rank == 0:
        dist.recv(signal, src=1)
        time.sleep(0.02)  # longer than a rank that does not wait for the sum needs to return
    result = fn(tensor, compute)
    if rank == 0:
        dist.send(signal, dst=1)
    return result


@exercise(worlds=(2, 3, 4), cases=(8, 1), trial=_rank_0_late)
def while_it_travels(tensor, compute):
    """All-reduce `tensor`, call `compute()` while the numbers travel, and return the sum plus what `compute` returned.

    The check lets rank 0 begin only when rank 1 computes, and rank 1 computes until rank 0 has ended.

    Hint: `async_op=True` makes the call return at once, with a `Work`.
    Hint: Three steps: start the all-reduce, call `compute()`, wait for the work. Only then read `tensor`.

    Stuck: Rank 0 begins only when rank 1 computes. Does the all-reduce begin before `compute()`, and the wait after?
    """
    work = dist.all_reduce(tensor, async_op=True)
    more = compute()
    work.wait()
    return tensor + more


@question(1.75)
def bus_factor(answer):
    """Bus bandwidth is algorithm bandwidth times a factor. What is the factor of an all-reduce on 8 ranks?

    Hint: It is the share of the tensor that each rank sends in a ring.
    Hint: 2 (n - 1) / n, once (n - 1) / n for each half.

    Not 0.875: 7 / 8 is the factor of an all-gather, and an all-reduce is a reduce-scatter and an all-gather.

    Why: 2 (n - 1) / n is 1.75 for 8 ranks. With many ranks it comes near to 2.
    """


@exercise(forbids=all_but("reduce", "broadcast"), limits=Limits(calls=2))
def all_reduce_of_two(tensor):
    """Replace the tensor, on every rank, by the sum over all ranks, with one `dist.reduce` and one `dist.broadcast`.

    Hint: After the reduce, one rank has the sum, and what the others hold is unspecified.
    """
    dist.all_reduce(tensor)
