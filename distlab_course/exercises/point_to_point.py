"""The exercises of lab 01: messages from one rank to another."""

import torch
import torch.distributed as dist

from distlab.checking import (
    COLLECTIVES,
    Limits,
    as_they_are,
    exercise,
    gathered,
    on_rank,
    question,
    returned,
)


@exercise("01", worlds=(2, 3, 4), forbids=COLLECTIVES, trial=returned)
def chain(tensor):
    """Add up along the chain 0, 1, 2 and so on: each rank adds its tensor to what it receives and
    passes the sum on.

    The last rank returns the total; the others return nothing.

    Title: 1.1 Chain
    Hint: Rank 0 receives nothing and the last rank sends nothing: there is no rank before the one
    or after the other.
    Hint: Receive and add under `if rank > 0:`, send under `if rank < world_size - 1:`; otherwise
    return the sum.
    """
    return on_rank(dist.get_world_size() - 1, sum(gathered(tensor)))


@question("01", [1, 0, 2, 0, 3, 0])
def int64_as_int32(answer):
    """Rank 0 sends `torch.tensor([1, 2, 3])`, which is int64. Rank 1 receives into six zeros of
    dtype int32. Which six numbers does it hold afterwards, on a little-endian machine? Give them as
    a list.

    Title: 2.1 Eight bytes into four
    Hint: An int64 has 8 bytes and an int32 has 4, so each number that is sent fills two slots.
    Hint: Nearly every processor stores the lower half of a number first: the 4 bytes of 1 come
    before 4 bytes of 0.

    Not (1, 2, 3, 0, 0, 0): Nothing is converted: 3 numbers of 8 bytes fill all 24 bytes of 6
    numbers of 4 bytes.
    Not (0, 1, 0, 2, 0, 3): The halves are right, but the lower half of a number comes first.

    Why: Each int64 is stored as its lower half, which holds the number, and then its upper half,
    which is 0.
    """


@question("01")
def after_send(answer):
    """`dist.send(t, dst=1)` has returned on rank 0, with gloo. What may rank 0 rely on? Give the
    letters, such as "ad".

    (a) Rank 1 has started its receive. (b) `t` may be overwritten. (c) The values are in rank 1's
    tensor. (d) Rank 1 has read them.

    Title: 3.1 What a send promises
    Hint: In which of the two cells above did `send` return before rank 1 had waited for the
    message?
    Hint: The bytes may still be on their way, in a buffer of the operating system; `t` is no longer
    needed for them.

    Why: gloo's send returns when a receive has been started and the operating system has the bytes;
    the rest comes later.
    """
    letters = str(answer).lower()
    if "c" in letters or "d" in letters:
        return "Nothing comes back to rank 0 when the bytes arrive, so rank 0 cannot know."
    if "a" not in letters:
        return "Why did the send in the first cell of this section take half a second?"
    if "b" not in letters:
        return (
            "There is one more. What does a send still need its tensor for, once it has returned?"
        )
    return True


@question("01", 99.0)
def overwritten(answer):
    """Rank 0 sets `t` to 1.0, calls `work = dist.isend(t, dst=1)`, then `t.fill_(99)`. Only after
    that does rank 1 receive. Which number does rank 1 receive?

    Title: 4.1 Written too early
    Hint: `isend` makes no copy. When are the bytes read?
    Hint: gloo moves no data before the receive has been called, and that is after `fill_`.

    Not 1.0: That was in `t` when `isend` was called. When are the bytes read?
    Not 0.0: A message does arrive.
    Otherwise: Which numbers does rank 0 write into `t`?

    Why: Until `wait()` the tensor belongs to the send. Its bytes are read when `recv` is called: by
    then `t` holds 99.
    """


def _items_of_rank(rank, n, case):
    """Numbers on rank 0, and on rank 1 the indices of these numbers in another order."""
    return (case[rank],)


@exercise(
    "01",
    worlds=(2,),
    forbids=COLLECTIVES,
    cases=(
        ([7.0], [0]),
        ([7.0, 90.0], [1, 0]),
        ([7.0, 90.0, 8.0], [2, 0, 1]),
        ([1.0, 2.0, 3.0, 4.0], [0, 3, 1, 2]),
    ),
    given=_items_of_rank,
)
def in_that_order(items):
    """Return on rank 1 the numbers that rank 0 is given, in the order of the indices that rank 1 is
    given.

    Rank 0 sends each number in its own message; rank 1, which has indices such as [2, 0, 1],
    returns a list of numbers; rank 0 returns nothing.

    Title: 5.1 In that order
    Hint: Let the tag of a message be the index of its number in the list.
    Hint: `send` waits for the receive with its own tag, and rank 1 may want another one first:
    start all sends.
    """
    numbers, indices = gathered(items)
    return on_rank(1, [numbers[index] for index in indices])


def _try_all_in_flight(fn, values):
    """Rank 0 calls the function; only then does rank 1 receive.

    Returns how many works there are on rank 0, and what rank 1 has received. It receives nothing if
    there is not a work for each value, because it would wait forever.
    """
    if dist.get_rank() == 0:
        works = fn(values) or []
        dist.broadcast(torch.tensor(len(works)), src=0)
        if len(works) == len(values):
            for work in works:
                work.wait()
        return f"{len(works)} works"
    started = torch.tensor(0)
    dist.broadcast(started, src=0)
    received = []
    if started == len(values):
        for _ in values:
            tensor = torch.zeros(1)
            dist.recv(tensor, src=0)
            received.append(tensor.item())
    return received


# no collective is forbidden, because the trial makes a broadcast
@exercise(
    "01",
    worlds=(2,),
    cases=(([5.0],), ([1.0, 2.0, 3.0],), ([4.0] * 6,)),
    given=as_they_are,
    trial=_try_all_in_flight,
)
def all_in_flight(values):
    """For each value, start one `isend` of a one-element tensor to rank 1, and return the list of
    works.

    Only rank 0 calls it. It must not wait: rank 1 begins to receive only after the function has
    returned.

    Title: 6.1 All in flight
    Hint: A tensor belongs to its send until `wait()`, so you cannot reuse one tensor for all the
    values.
    Hint: `torch.tensor([value])` in the loop makes a tensor for each message.
    Stuck: The broadcast is the check's own, in which rank 1 waits for your function to return. Why
    does it not return?
    """
    return [dist.isend(torch.tensor([value]), dst=1) for value in values]


def _table_and_column(rank, n, case):
    """A table with other numbers on each rank, and the number of a column."""
    rows, columns, k = case
    table = torch.arange(rows * columns).reshape(rows, columns)
    return table + 100.0 * rank, k


@exercise(
    "01",
    worlds=(2,),
    forbids=COLLECTIVES,
    cases=((3, 2, 0), (3, 2, 1), (1, 4, 2), (5, 3, 1)),
    given=_table_and_column,
    trial=returned,
)
def send_column(table, k):
    """Send column k of rank 0's table to rank 1, which returns it; rank 0 returns nothing.

    Rank 1 has a table of the same shape.

    Title: 6.2 A column
    Hint: `table[:, k]` is a view whose elements are not adjacent in memory. `contiguous()` makes a
    copy in which they are.
    Hint: The receiver's tensor must also be contiguous: `torch.empty(len(table))`.
    """
    table_of_rank_0 = gathered(table)[0]
    return on_rank(1, table_of_rank_0[:, k])


def _tensor_and_steps(rank, n, steps):
    """Three numbers on each rank, and by how many ranks they move."""
    return torch.arange(3.0) + 10 * rank, steps


@exercise(
    "01",
    worlds=(2, 3, 4),
    forbids=COLLECTIVES,
    limits=Limits(messages=1),
    cases=(1, 2, -1, 0, 7),
    given=_tensor_and_steps,
)
def roll(tensor, steps):
    """Shift the tensors around the ring by `steps` ranks: rank r returns the tensor of rank r -
    steps.

    No rank sends more than one message. `steps` may be 0, negative, or greater than `world_size`.

    Title: 7.1 Roll
    Hint: Which rank needs mine, and which rank has the one I need? Both are numbers modulo
    `world_size`.
    Hint: With gloo a rank cannot send to itself. When would it have to?

    Limit: Can the tensor go straight to the rank that needs it?
    """
    source = (dist.get_rank() - steps) % dist.get_world_size()
    return gathered(tensor)[source]
