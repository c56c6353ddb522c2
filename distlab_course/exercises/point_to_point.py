"""The exercises of notebook 01: messages from one rank to another."""

from functools import partial

import torch
import torch.distributed as dist

from distlab.checking import COLLECTIVES, Exercise, Limits, Question, gathered, on_rank, returned

question = partial(Question, "01")
messages = partial(Exercise, "01", worlds=(2, 3, 4), forbids=COLLECTIVES)
between_two = partial(Exercise, "01", worlds=(2,), forbids=COLLECTIVES)


def _filled(shape, dtype=torch.float32):
    """A tensor of the numbers 0, 1, 2 and so on."""
    return torch.arange(torch.Size(shape).numel(), dtype=dtype).reshape(shape)


@messages(trial=returned)
def chain(tensor):
    """Add up along the chain 0, 1, 2 and so on: each rank adds its own tensor to what comes, and passes the sum on.

    The last rank returns the sum of all; the others return nothing.

    Hint: Rank 0 receives nothing, and the last rank sends nothing: there is no rank before, and none after.
    Hint: `if rank > 0:` receive and add; `if rank < world_size - 1:` send; otherwise return.
    """
    return on_rank(dist.get_world_size() - 1, sum(gathered(tensor)))


@question([1, 0, 2, 0, 3, 0])
def int64_as_int32(answer):
    """Rank 0 sends `torch.tensor([1, 2, 3])`, which is int64. Rank 1 receives into six zeros of dtype int32.
    Which six numbers does it have then, as a list?

    Hint: An int64 has 8 bytes and an int32 has 4, so each number that is sent fills two places.
    Hint: Nearly every processor stores the lower half of a number first: the 4 bytes of 1 come before 4 bytes of 0.

    Not (1, 2, 3, 0, 0, 0): Nothing is converted: 3 numbers of 8 bytes fill all 24 bytes that 6 numbers of 4 have.
    Not (0, 1, 0, 2, 0, 3): The halves are right, but the lower half of a number comes first.

    Why: Each int64 is its lower half, which holds the number, and its upper half, which is 0.
    """


@question()
def after_send(answer):
    """`dist.send(t, dst=1)` has returned on rank 0. What may rank 0 rely on? Give the letters as a text, such as "ad".

    (a) Rank 1 has begun to receive. (b) `t` may be overwritten. (c) The values are in rank 1's tensor. (d) Rank 1 has
    read them.

    Hint: The send of this section came back while rank 1 was still asleep.
    Hint: The bytes may still be on their way, in a buffer of the system.

    Why: A send returns when a receive has been started and the bytes are with the system. The rest happens later.
    """
    found = {*str(answer).lower()} & {*"abcd"}
    if "c" in found or "d" in found:
        return "Nothing comes back to rank 0 when the bytes arrive, so it cannot know."
    return found == {*"ab"} or "There is one more: a send waits, and what does it need its tensor for afterwards?"


@question(99.0)
def overwritten(answer):
    """Rank 0 sets `t` to 1.0, calls `work = dist.isend(t, dst=1)`, then `t.fill_(99)`, and rank 1 receives only after
    that. Which number does rank 1 receive?

    Hint: `isend` makes no copy. When are the bytes read?
    Hint: gloo moves no data before the receive has been called, and that is after `fill_`.

    Not 1.0: That was in `t` when `isend` was called. When are the bytes read?
    Not 0.0: A message does come.
    Otherwise: Which numbers does rank 0 write into `t`?

    Why: Until `wait()` the tensor belongs to the send. The bytes are read when the receiver comes: then it is 99.
    """


def _received_later(fn, values):
    """Rank 0 calls the function; only then does rank 1 receive, if there is a work for each message."""
    works = (fn(values) or []) if dist.get_rank() == 0 else []
    started = torch.tensor(len(works))
    dist.broadcast(started, src=0)
    received = [torch.zeros(1) for _ in values if dist.get_rank() == 1 and started == len(values)]
    for work in works if started == len(values) else []:
        work.wait()
    for tensor in received:
        dist.recv(tensor, src=0)
    return [tensor.item() for tensor in received] if dist.get_rank() == 1 else f"{len(works)} works"


@between_two(
    cases=([5.0], [1.0, 2.0, 3.0], [4.0] * 6),
    given=lambda rank, n, values: (values,),
    trial=_received_later,
    forbids=[],  # the trial makes a broadcast
)
def all_in_flight(values):
    """Start one `isend` to rank 1 for each of the values, a tensor of one number each, and return the list of works.

    Rank 0 alone calls it. It must not wait: rank 1 begins to receive only after the function has returned.

    Hint: A tensor belongs to its send until `wait()`, so one tensor that takes each value in turn will not do.
    Hint: `torch.tensor([value])` in the loop makes a tensor for each message.
    """
    return [dist.isend(torch.tensor([value]), dst=1) for value in values]


@between_two(
    cases=(([7.0], [0]), ([7.0, 90.0], [1, 0]), ([7.0, 90.0, 8.0], [2, 0, 1]), ([1.0, 2.0, 3.0, 4.0], [0, 3, 1, 2])),
    given=lambda rank, n, case: (case[rank],),
)
def in_that_order(items):
    """Rank 0 is given numbers, and rank 1 their places in the order in which it wants them, such as [2, 0, 1].

    Rank 0 sends each number in a message of its own; rank 1 returns the list of numbers in the order that it wants.

    Hint: Let the tag of a message be the place of its number in the list.
    Hint: `send` waits for the receive of its own tag, and rank 1 may want another one first: start all sends.
    """
    numbers, places = gathered(items)
    return on_rank(1, [numbers[place] for place in places])


@messages()
def collect(tensor):
    """Send every other rank's tensor to rank 0, which returns the sum of all, its own included.

    Rank 0 takes the messages in whatever order they come. `tensor` must not change.

    Hint: `dist.recv(t)` without `src` takes a message from any rank.
    Hint: `world_size - 1` messages come.
    """
    return on_rank(0, sum(gathered(tensor)))


@between_two(
    cases=(((2, 3), torch.float32), ((4,), torch.int32), ((1, 2, 3), torch.float64), ((), torch.int64)),
    given=lambda rank, n, case: (None if rank else _filled(*case),),
)
def any_shape(tensor):
    """Send a tensor of any shape and dtype from rank 0 to rank 1, which returns it; on rank 1 `tensor` is None.

    Hint: Both must be known before the receiver can allocate. `dist.send_object_list` sends any Python object.
    Hint: `dist.send_object_list([tensor.shape, tensor.dtype], dst=1)`, and on rank 1 a list of two None to fill.
    """
    return on_rank(1, gathered(tensor)[0])


@Exercise("01", worlds=(2, 4), forbids=COLLECTIVES)
def swap(tensor):
    """Exchange tensors with a partner, 0 with 1 and 2 with 3, and return the partner's. `tensor` must not change.

    Hint: The partner of rank 2 is 3, and that of rank 3 is 2: `partner = rank ^ 1`.
    Hint: If both send first, both wait for ever. Let one of the two receive first, or use `isend`.
    """
    return gathered(tensor)[dist.get_rank() ^ 1]


@question(8)
def one_receives_first(answer):
    """In a ring of 8 ranks each sends to the right with `send` and receives from the left. Only rank 0 receives first.
    How many messages follow one after the other?

    Hint: Rank 7 can send at once. Which rank can send next, and why not before?
    Hint: Rank 6 waits until rank 7 receives, which rank 7 does after its own send. Go on from there.

    Not 2: That is the order by parity, where every second rank receives first.
    Not 1: Then no rank would wait.
    Otherwise: Write down who waits for whom: rank 6 cannot send before 7 receives.

    Why: 7 sends to 0; only then does 7 receive from 6, then 6 from 5, and so on, until 0 sends to 1: all 8 in a row.
    """


@messages(
    cases=(1, 2, -1, 0, 7),
    given=lambda rank, n, steps: (torch.arange(3.0) + 10 * rank, steps),
    limits=Limits(messages=1),
)
def roll(tensor, steps):
    """Shift the tensors round the ring by `steps` ranks: rank r returns that of rank r - steps.

    No rank sends more than one message. `steps` may be 0, negative, or greater than `world_size`.

    Hint: To which rank does mine go, and from which does one come? Both are numbers modulo `world_size`.
    Hint: A rank cannot send to itself. When would it have to?

    Limit: Can the tensor go straight to the rank that needs it?
    """
    return gathered(tensor)[(dist.get_rank() - steps) % dist.get_world_size()]


@between_two(
    cases=((3, 2, 0), (3, 2, 1), (1, 4, 2), (5, 3, 1)),
    given=lambda rank, n, case: (_filled(case[:2]) + 100 * rank, case[2]),
    trial=returned,
)
def send_column(table, k):
    """Send column k of rank 0's table to rank 1, which returns it; rank 1 has a table of the same shape.

    Hint: `table[:, k]` is a view whose elements do not lie side by side. `contiguous()` makes a copy in which they do.
    Hint: The receiver's tensor must be contiguous, too: `torch.empty(len(table))`.
    """
    return on_rank(1, gathered(table)[0][:, k])


@messages()
def from_the_left(mine):
    """Send `mine` to the right with a blocking send; return the tensor that came from the left.

    The ranks stand in a ring: to the right of the last rank is rank 0. `mine` must not change.

    Hint: A receive may start before the send without waiting: `work = dist.irecv(theirs, src=left)`.
    Hint: What `irecv` fills may be read after `work.wait()` only.
    """
    return gathered(mine)[dist.get_rank() - 1]


@between_two(cases=([1.0, 2.0, 3.0], [], [7.0], [0.5] * 20), given=lambda rank, n, values: (None if rank else values,))
def deliver(numbers):
    """Send a list of numbers, which rank 0 alone is given, to rank 1, which returns their sum as a float.

    On rank 1 `numbers` is None, so rank 1 does not know how many will come.

    Hint: The sender can say how many come, or that one is the last.
    Hint: A message of its own with the length goes first; then both know how many follow.
    Hint: An empty list is a list, too: its sum is 0.0.
    """
    return on_rank(1, float(sum(gathered(numbers)[0])))


@question()
def from_the_report(answer):
    """The report in the lesson is all that is left of a program in which each rank passes a number to the rank before
    it, and rank 0 receives first. One call names a wrong partner. Which rank makes it, and which partner is right?
    Give both as a pair, such as (2, 3).

    Hint: Write down each rank with the rank that it waits for. Which of them waits for a rank that wants another one?
    Hint: Rank 1 sends to rank 0. Does rank 0 receive from rank 1?

    Why: The number comes to rank 0 from rank 1, but rank 0 waits for rank 3: `src=(rank - 1) % 4` for `(rank + 1) % 4`.
    """
    rank, number = answer
    if rank != 0:
        return f"Rank {rank} sends to rank {rank - 1}, the rank before it, which is what it is meant to do."
    return number == 1 or f"Rank 0 is the right one. Does a number come to it from rank {number}?"


@between_two(cases=(2, 1, 5), given=lambda rank, n, rounds: (torch.tensor([10.0]), rounds), trial=returned)
def ping_pong(tensor, rounds):
    """Send the tensor from rank 0 to rank 1, which adds 1 to it and sends it back, `rounds` times. Rank 0 returns it.

    Hint: Both ranks run the same loop; in it, rank 0 sends and then receives, and rank 1 receives and then sends.
    Hint: Both may receive into `tensor` itself.
    """
    return on_rank(0, tensor + rounds)


@question(40_000.0)
def half_of_the_bandwidth(answer):
    """A message of m bytes takes 20 µs + m * 0.5 ns. At which size in bytes is half of the full bandwidth reached?

    Hint: Half of the bandwidth means twice the time that the bytes alone would take.
    Hint: At that size both terms are equal: 20 µs and m * 0.5 ns.

    Why: At alpha / beta bytes both terms are equal, so the message takes twice the time of its bytes alone.
    """
    return f"20 µs + {answer} * 0.5 ns is not twice {answer} * 0.5 ns."


@between_two(
    cases=([(4,)], [(2, 3), (3,)], [(5,), (1, 1), (2, 2, 2), ()]),
    given=lambda rank, n, shapes: ([_filled(shape) - 99 * rank for shape in shapes],),
    trial=returned,
    limits=Limits(messages=1),
)
def one_bucket(tensors):
    """Send a list of float32 tensors from rank 0 to rank 1 in a single message; rank 1 returns a list like rank 0's.

    Rank 1 has a list of tensors of the same shapes.

    Hint: `torch.cat([t.flatten() for t in tensors])` lays all of them end to end.
    Hint: `bucket.split([t.numel() for t in tensors])` cuts the bucket again; `reshape` gives each part its shape.

    Limit: Is every tensor sent on its own?
    """
    return on_rank(1, gathered(tensors)[0])


@question(3.75)
def loop_against_tree(answer):
    """Rank 0 has a tensor for 15 other ranks. In the loop it sends 15 messages, one after the other. In the tree every
    rank that has the tensor sends it on in each step. How many times the tree's time does the loop take?

    Every message takes alpha + beta m, no matter which rank sends it, and several pairs of ranks may be busy at once.

    Hint: After each step of the tree twice as many ranks have the tensor: 1, 2, 4 and so on. How many steps are that?
    Hint: Every step takes as long as one message, and so does every message of the loop: 15 of these, 4 of those.

    Not 15: The tree takes more than one step.
    Not 4: That is the number of steps in the tree.
    Otherwise: Steps of the loop, divided by steps of the tree.

    Why: The tree takes 4 steps, from 1 to 2, 4, 8 and 16 ranks, and the loop 15: 15 / 4 = 3.75, whatever alpha and beta
    are.
    """
