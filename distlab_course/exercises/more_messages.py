"""The exercises of lab 10: any source, batches, objects, unequal pieces, more collectives."""

import torch
import torch.distributed as dist

from distlab.checking import (
    COLLECTIVES,
    Limits,
    exercise,
    gathered,
    on_rank,
    question,
)

SHAPES_AND_DTYPES = (
    ((2, 3), torch.float32),
    ((4,), torch.int32),
    ((1, 2, 3), torch.float64),
    ((), torch.int64),
)


def _part_of_row(rank, n, length):
    """A part of a row of numbers."""
    part = torch.arange(float(length)) + 10 * rank + 1
    return (part,)


def _letters(rank, n, lengths):
    """A text of some length, of a letter of its own."""
    letter = "dcba"[rank]
    return (letter * lengths[rank],)


def _shaped(rank, n, case):
    """A tensor of some shape and dtype, on rank 0 only."""
    if rank != 0:
        return (None,)
    shape, dtype = case
    numel = torch.Size(shape).numel()
    return (torch.arange(numel, dtype=dtype).reshape(shape),)


def _pieces(rank, n, length):
    """A piece for each rank, of numbers that say from where and for whom."""
    pieces = []
    for dst in range(n):
        number = 10.0 * (rank + 2) + dst
        pieces.append(torch.full((length,), number))
    return (pieces,)


@exercise("10", worlds=(2, 3, 4), forbids=COLLECTIVES)
def collect(tensor):
    """Send every other rank's tensor to rank 0, which returns the sum of all tensors, its own
    included; the others return nothing.

    Rank 0 takes the messages in the order in which they arrive. `tensor` must not change.

    Title: 1.1 Collect
    Hint: `dist.recv(t)` without `src` takes a message from any rank.
    Hint: `world_size - 1` messages arrive.
    """
    return on_rank(0, sum(gathered(tensor)))


@exercise(
    "10",
    forbids=COLLECTIVES,
    limits=Limits(messages=2),
    cases=(2, 1, 3),
    given=_part_of_row,
)
def with_edges(part):
    """Return the part, with the last number of the rank before in front and the first of the rank
    after at the end.

    Where there is no such rank, the number is 0. Use one `batch_isend_irecv`, or none if there is
    nothing to send.

    Title: 2.1 Edges
    Hint: Begin with `wide = torch.zeros(len(part) + 2)`, and put the part in its middle.
    Hint: `wide[:1]` and `wide[-1:]` are views that can receive: `dist.P2POp(dist.irecv, wide[:1],
    rank - 1)`.
    Hint: Send `part[-1:]` to the rank after and `part[:1]` to the rank before, where there is one.

    Limit: Each neighbour needs one number.
    """
    rank = dist.get_rank()
    wide = torch.zeros(len(part) + 2)
    wide[1:-1] = part
    operations = []
    if rank > 0:
        operations.append(dist.P2POp(dist.isend, part[:1], rank - 1))
        operations.append(dist.P2POp(dist.irecv, wide[:1], rank - 1))
    if rank < dist.get_world_size() - 1:
        operations.append(dist.P2POp(dist.isend, part[-1:], rank + 1))
        operations.append(dist.P2POp(dist.irecv, wide[-1:], rank + 1))
    if operations:
        for work in dist.batch_isend_irecv(operations):
            work.wait()
    return wide


@exercise("10", cases=((3, 1, 4, 1), (2, 7, 1, 8), (5, 5, 2, 0)), given=_letters)
def longest_text(text):
    """Return, on every rank, the rank with the longest text, and the lowest such rank if several
    are equally long.

    Title: 3.1 The longest text
    Hint: `dist.all_gather_object` needs a list with a slot for each rank: `[None] * world_size`.
    Hint: `lengths.index(max(lengths))` is the first index at which the largest number stands.
    """
    lengths = [len(theirs) for theirs in gathered(text)]
    return lengths.index(max(lengths))


@exercise("10", worlds=(2,), forbids=COLLECTIVES, cases=SHAPES_AND_DTYPES, given=_shaped)
def any_shape(tensor):
    """Send a tensor of any shape and dtype from rank 0 to rank 1, which returns it; rank 0 returns
    nothing.

    On rank 1 `tensor` is None.

    Title: 3.2 Any shape
    Hint: The receiver must know both before it can allocate. `dist.send_object_list` sends any
    Python objects.
    Hint: `dist.send_object_list([tensor.shape, tensor.dtype], dst=1)`, and on rank 1 a list of two
    None to fill.
    """
    return on_rank(1, gathered(tensor)[0])


def _messages_of_a_rotation(n, length, item):
    """At most one message to every other rank."""
    return Limits(messages=n - 1)


@exercise(
    "10",
    forbids=COLLECTIVES,
    limits=_messages_of_a_rotation,
    cases=(3, 1, 4),
    given=_pieces,
)
def rotate(pieces):
    """All-to-all by rotation: `pieces[s]` is for rank s; return a list of what all ranks had for
    this one.

    For every distance k from 1 to n - 1, rank r sends to rank r + k and receives from rank r - k,
    around the ring.

    Title: 4.1 All-to-all by rotation
    Hint: Send and receive at the same time: if all ranks send first, all wait forever.
    Hint: `work = dist.isend(pieces[dst], dst=dst)`, then `dist.recv(...)`, then `work.wait()`.

    Limit: A rank's own piece needs no message.
    """
    rank = dist.get_rank()
    return [theirs[rank] for theirs in gathered(pieces)]


def _numbers_of_all_homes(rank, n, order):
    """Every n-th number below 10 n: in order, backwards, or some of them."""
    numbers = torch.arange(rank, 10 * n, n)
    if order == "mixed":
        numbers = numbers.flip(0)
    elif order == "some":
        numbers = numbers[numbers % 7 > rank]
    return (numbers,)


@exercise("10", cases=("sorted", "mixed", "some"), given=_numbers_of_all_homes)
def send_home(numbers):
    """Send every number x to rank x // 10, and return, sorted, the numbers whose home is this rank.

    `numbers` is an int64 tensor; the ranks have different ones, of different lengths.

    Title: 4.2 Send every number home
    Hint: How many numbers go to each rank? `torch.bincount(numbers // 10, minlength=world_size)`.
    Hint: `dist.all_to_all_single` exchanges these counts first, in equal pieces, and then the
    numbers.
    Hint: The pieces must lie in rank order, so sort the numbers before you send them.
    """
    everything = torch.cat(gathered(numbers))
    mine = everything[everything // 10 == dist.get_rank()]
    return mine.sort().values


def _of_unequal_length(rank, n, more):
    """The number of the rank, on each rank once more often than on the rank before."""
    return (torch.full((rank + more,), float(rank)),)


@exercise("10", cases=(1, 2, 0), given=_of_unequal_length)
def gather_unequal(tensor):
    """Return, on every rank, the tensors of all ranks joined in rank order; their lengths differ.

    Title: 4.3 Gather different lengths
    Hint: `dist.all_gather` needs pieces of the same size. Gather the lengths first.
    Hint: Pad each tensor with zeros to the greatest length, gather, and cut the padding off.
    """
    return torch.cat(gathered(tensor))


@question("10", [1])
def named_by_rank_0(answer):
    """Ranks 1 and 3 stay away from a `dist.monitored_barrier` without `wait_all_ranks`. Which ranks
    does the error on rank 0 name? Answer with a list.

    Title: 5.1 Which ranks are named?
    Hint: Change the cell above, and run it.
    Hint: Rank 0 waits for the report of rank 1, then rank 2, then rank 3. What does it do when the
    first does not arrive?

    Not (1, 3): With `wait_all_ranks=True` it names both.
    Not (3,): Rank 0 waits for the ranks in their order. Which missing rank is the first?

    Why: Rank 0 waits for the reports in rank order, and gives up at the first that does not arrive.
    """


@question("10", [4, 7, 6])
def bits_of_three(answer):
    """Three ranks hold 7, 5 and 4. What do BAND, BOR and BXOR make of them? Answer with a list of
    three numbers.

    Title: 6.1 Bit by bit
    Hint: In bits they are 111, 101 and 100. Look at them column by column.
    Hint: BXOR sets a bit where an odd number of ranks have it.

    Not (4, 16, 6): BOR does not add: a bit that several ranks have is set once.
    Not (4, 7, 7): Bit 0 is set in two of the numbers, an even number of times.
    Otherwise: Write the three numbers in bits, one below the other.

    Why: Bit 2 is set three times, bit 1 once, bit 0 twice. In all: 100 = 4. In any: 111 = 7. In an
    odd number: 110 = 6.
    """


@exercise("10")
def prefix_sum(tensor):
    """Return the sum of the tensors of all ranks from 0 to this one, this one included. `tensor`
    must not change.

    Title: 7.1 Prefix sum
    Hint: What does rank r need from rank r - 1, and what from the ranks before it?
    Hint: Receive the sum so far from the rank before, add your own, send it to the rank after,
    return it.
    """
    up_to_this_rank = gathered(tensor)[: dist.get_rank() + 1]
    return sum(up_to_this_rank)
