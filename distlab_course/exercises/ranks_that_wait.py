"""The exercises of lab 02: ranks that wait forever, and calls that do not belong together."""

from itertools import zip_longest

import torch
import torch.distributed as dist
from torch import nn

from distlab.checking import COLLECTIVES, exercise, gathered, on_rank, question


@exercise("02", worlds=(2, 3, 4), forbids=COLLECTIVES)
def from_the_left(mine):
    """Send `mine` to the right with a blocking send; return the tensor that comes from the left.

    The ranks form a ring: to the right of the last rank is rank 0. `mine` must not change.

    Title: 1.1 From the left
    Hint: A receive can be started before the send: `work = dist.irecv(theirs, src=left)` does not
    wait.
    Hint: Read what `irecv` fills only after `work.wait()`.

    Stuck: Does every rank get as far as its `send`?
    """
    return gathered(mine)[dist.get_rank() - 1]


def _own_numbers(rank, n, length):
    """Numbers that no other rank has."""
    return (torch.arange(length) + 7.0 + 100 * rank,)


@exercise("02", worlds=(2, 3, 4), forbids=COLLECTIVES, cases=(1, 3), given=_own_numbers)
def hand_on(tensor):
    """Pass rank 0's tensor along the chain 0, 1, 2 and so on, from each rank to the next; every
    rank returns it.

    `tensor` must not change.

    Title: 1.2 Two mistakes
    Hint: Which rank has nothing to receive, and which rank has nothing to send?
    Hint: Every rank but 0 receives into a new tensor; every rank but the last sends to `rank + 1`.

    Stuck: Which rank sends to one that never receives, or receives from one that never sends?
    """
    return gathered(tensor)[0]


def _on_rank_0(rank, n, values):
    """Numbers that only rank 0 has."""
    if rank == 0:
        return (values,)
    return (None,)


@exercise(
    "02",
    worlds=(2,),
    forbids=COLLECTIVES,
    cases=([1.0, 2.0, 3.0], [], [7.0], [0.5] * 20),
    given=_on_rank_0,
)
def deliver(numbers):
    """Send a list of numbers, which only rank 0 has, to rank 1, which returns their sum as a float;
    rank 0 returns nothing.

    On rank 1 `numbers` is None, so rank 1 does not know how many will come.

    Title: 2.1 How many will come
    Hint: The sender can say how many will come, or mark the last one.
    Hint: Send the length first, in its own message; then both ranks know how many follow.
    Hint: An empty list is a list, too: its sum is 0.0.
    """
    numbers_of_rank_0 = gathered(numbers)[0]
    return on_rank(1, float(sum(numbers_of_rank_0)))


@question("02")
def from_the_report(answer):
    """The report in the lab is all that is left of a program in which each rank passes a number to
    the rank before it, and rank 0 receives first. One call names a wrong partner. Which rank makes
    it, and which partner is right? Give both as a pair, such as (2, 3).

    Title: 2.2 From the report alone
    Hint: Write down which rank sends to which. Does each rank receive from the one that sends to
    it?
    Hint: Which rank sends to rank 0, and for which rank does rank 0 wait?

    Why: Rank 1 sends to rank 0, but rank 0 waits for rank 3: it says `(rank - 1) % 4` where `(rank
    + 1) % 4` is right.
    """
    rank, number = answer
    if rank != 0:
        return f"Rank {rank} sends to rank {rank - 1}, the rank before it, as it is meant to."
    if number != 1:
        return f"Rank 0 is the right one. Does rank {number} have a number for it?"
    return True


def _batches(rank, n, more):
    """Batches 1.0, 2.0 and so on, one more on each rank than on the rank before."""
    return ([step + 1.0 for step in range(rank + more)],)


@exercise("02", cases=(1, 2, 0), given=_batches)
def sums_by_step(batches):
    """Return, for each step, the sum of the batches of all ranks that still have one: a list, the
    same on all ranks.

    `batches` is a list of floats, and its length differs from rank to rank. Make one all-reduce for
    each step.

    Title: 4.1 Batches that do not divide
    Hint: A collective needs every rank: a rank without a batch takes part with a zero.
    Hint: First let all ranks agree on the number of steps, with `op=dist.ReduceOp.MAX`.
    """
    steps = zip_longest(*gathered(batches), fillvalue=0.0)
    return [float(sum(batches_of_step)) for batches_of_step in steps]


def _rotated(rank, n, count):
    """Tensors by name, of which each rank has another one first."""
    tensors = {}
    for k in range(count):
        place = (rank + k) % count
        tensors["abcd"[place]] = torch.tensor([10.0**place])
    return (tensors,)


@exercise("02", cases=(2, 4, 1), given=_rotated)
def in_one_order(tensors):
    """Replace each tensor of a dict by its sum over all ranks.

    The dicts of all ranks have the same names, but not in the same order.

    Title: 5.1 In one order
    Hint: What do all ranks know that could give them the same order?
    Hint: `sorted(tensors)` is the list of the names in alphabetical order.
    """
    for name in sorted(tensors):
        dist.all_reduce(tensors[name])


def _ones(rank, n, more):
    """Ones, one more on each rank than on the rank before."""
    return (torch.ones(rank + more),)


@exercise("02", cases=(1, 3, 0), given=_ones)
def ragged_all_reduce(tensor):
    """Return the sum of all ranks' one-dimensional tensors, as long as the longest. `tensor` must
    not change.

    A shorter tensor counts as if zeros followed it.

    Title: 7.1 Add up tensors of different lengths
    Hint: How long is the longest? One all-reduce of one number tells every rank.
    Hint: Put the tensor at the beginning of a tensor of zeros of that length, and add those up.
    """
    padded = nn.utils.rnn.pad_sequence(gathered(tensor))
    return padded.sum(dim=1)
