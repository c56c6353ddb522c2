"""The exercises of lab 02: ranks that wait for each other, and how to break the cycle."""

import torch
import torch.distributed as dist

from distlab.checking import COLLECTIVES, exercise, gathered, on_rank, question


@exercise("02", worlds=(2, 3, 4), forbids=COLLECTIVES)
def from_the_left(mine):
    """Send `mine` to the right with a blocking send; return the tensor that comes from the left.

    The ranks form a ring: to the right of the last rank is rank 0. `mine` must not change.

    Title: 1.1 From the left
    Hint: A receive can be started before the send: `work = dist.irecv(theirs, src=left)` does not
    wait.
    Hint: Read what `irecv` fills only after `work.wait()`.

    Stuck: Does every rank reach its `send`?
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
    Hint: An empty list is also a list, and its sum is 0.0.
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


@question("02", 8)
def one_receives_first(answer):
    """In a ring of 8 ranks each sends to the right with `send` and receives from the left. Only
    rank 0 receives first. How many of the 8 messages must travel one after another?

    Title: 3.1 One rank receives first
    Hint: Rank 7 can send at once. Which rank can send next, and why not before?
    Hint: Rank 6 waits until rank 7 receives, and rank 7 receives only after its own send. Continue
    from there.

    Not 2: That is the order by parity, where every second rank receives first.
    Not 1: For that, all ranks would have to send and receive at the same time.
    Otherwise: Write down who waits for whom: rank 6 cannot send before rank 7 receives.

    Why: 7 sends to 0; only then does 7 receive from 6, then 6 from 5, and so on, until 0 sends to
    1: all 8 in a row.
    """


@exercise("02", worlds=(2, 4), forbids=COLLECTIVES)
def swap(tensor):
    """Exchange tensors with a partner, 0 with 1 and 2 with 3, and return the partner's. `tensor`
    must not change.

    Title: 3.2 Swap
    Hint: The partner of rank 2 is 3, and the partner of rank 3 is 2: `partner = rank ^ 1`.
    Hint: If both send first, both wait forever. Let one of the two receive first, or use `isend`.
    """
    return gathered(tensor)[dist.get_rank() ^ 1]


@question("02")
def from_the_stacks(answer):
    """The lab shows the stacks of a job of four ranks that hangs. Exactly one rank is at fault.
    Which one is it, and which line of `losses.py` let it skip its part? Give both as a pair,
    such as (3, 14).

    Title: 5.1 From four stacks
    Hint: Rank 0 serves ranks 1, 2 and 3 in this order, and a send waits until rank 0 receives. For
    which rank does rank 0 wait, if rank 3 is still in its send?
    Hint: If rank 1 had not sent, rank 0 would still wait for rank 1. Could rank 2 then be in the
    barrier, if it did send?
    Hint: The rank at fault is in the barrier and has never called `send`. Which line decides that?

    Why: Rank 0 has not reached rank 3, and rank 2 cannot have passed its send while rank 0 waits,
    so rank 2 never sent: its loss is not finite, and line 18 skips the send.
    """
    rank, line = answer
    if rank == 0:
        return "Rank 0 waits for a message, as it should. Which rank has not sent one?"
    if rank == 3:
        return "Rank 3 is in its send and waits for its turn. Whose turn is it?"
    if rank == 1:
        return (
            "If rank 1 had not sent, rank 0 would still wait for rank 1, and rank 2 could not have "
            "finished its send. Where is rank 2?"
        )
    if rank == 2 and line in (19, 27):
        return f"Rank 2 is right. Which line has led it past line 19, to line 27? It is not {line}."
    if rank == 2 and line != 18:
        return (
            f"Rank 2 is right. Line {line} is the same for every rank: which line tells them apart?"
        )
    return rank == 2
