"""The exercises of notebook 03: all-reduces made of messages, and what they cost."""

from math import ceil

import torch
import torch.distributed as dist

from distlab.course.exercises import COLLECTIVES, Limits, as_they_are, exercise, question


@exercise(
    "03",
    forbids=COLLECTIVES,
    cases=(8, 7, 3, (12, torch.int64), (1002, torch.float64)),
    limits=lambda n, length, item: Limits(
        2 * (n - 1) * ceil(length / n) * item,
        messages=2 * (n - 1),
        because="Does each step send one chunk, and not the whole tensor?",
    ),
)
def ring_all_reduce(tensor):
    """Replace the numbers of `tensor`, on every rank, by their sums over all ranks: a ring in chunks.

    No rank may send more than 2 (n - 1) chunks of an n-th of the tensor.

    Hint: `tensor.tensor_split(world_size)` gives one chunk for each rank; the chunks are views of `tensor`.
    Hint: In step s of the first half, rank r sends chunk r - s, and adds what it receives to chunk r - s - 1.
    Hint: In the second half, the chunks travel once more, but what arrives replaces what is there.
    """
    dist.all_reduce(tensor)


@exercise(
    "03",
    forbids=COLLECTIVES,
    limits=lambda n, length, item: Limits(
        (n - 1) * ceil(length / n) * item, because="Only the first half of the ring is asked for."
    ),
)
def ring_reduce_scatter(tensor):
    """Return the sum over all ranks of chunk r on rank r, where the chunks are `tensor.tensor_split(world_size)`.

    `tensor` may be changed.

    Hint: It is the first half of the ring all-reduce; which chunk does a rank complete, if it begins with its own?
    Hint: If rank r sends chunk r - 1 first, and then always what it has just added to, it completes chunk r.
    """
    dist.all_reduce(tensor)
    return tensor.tensor_split(dist.get_world_size())[dist.get_rank()]


@exercise(
    "03",
    forbids=COLLECTIVES,
    cases=(16, 33, (40, torch.int64)),
    limits=lambda n, length, item: Limits(
        2 * (n - 1) * ceil(length / (2 * n)) * 2 * item,
        messages=4 * (n - 1),
        because="Two chunks of half the size a step.",
    ),
)
def two_chunks_a_step(tensor):
    """The ring all-reduce once more, with `2 * world_size` chunks, two of which are sent in each step.

    Hint: Chunks 2 r and 2 r + 1 take the place of chunk r.
    Hint: Start both sends and both receives of a step before you wait for any of them.
    """
    dist.all_reduce(tensor)


@exercise(
    "03",
    forbids=COLLECTIVES,
    limits=lambda n, length, item: Limits(
        steps=n.bit_length() - 1 + 2 * (n & (n - 1) > 0),
        because="How many ranks have exchanged their sums after each step?",
    ),
)
def doubling_all_reduce(tensor):
    """Replace `tensor`, on every rank, by the sum over all ranks: recursive doubling, for any number of ranks.

    With p the largest power of two that is not above n: each rank r from p on lends its numbers to rank r - p, the
    first p ranks double, and those that borrowed give the result back.

    Hint: In step s, rank r exchanges its whole sum with rank r ^ 2**s, and adds what comes.
    Hint: 3 ranks: rank 2 sends to rank 0; ranks 0 and 1 exchange; rank 0 sends the sum to rank 2.
    """
    dist.all_reduce(tensor)


@exercise(
    "03",
    worlds=(1,),
    cases=((4, 4000, 1e-5, 1e-9), (2, 8, 1e-6, 0.0), (16, 10**8, 2e-5, 1e-10)),
    given=as_they_are,
)
def ring_seconds(n, num_bytes, alpha, beta):
    """Return the seconds that a ring all-reduce of `num_bytes` takes on `n` ranks, if m bytes take alpha + beta m.

    Hint: How many steps, and how many bytes in each?
    """
    return 2 * (n - 1) * (alpha + beta * num_bytes / n)


@exercise("03", worlds=(1,), cases=((4, 1e-5, 1e-9), (8, 2e-5, 1e-10), (64, 1e-6, 4e-11)), given=as_they_are)
def ring_beats_doubling(n, alpha, beta):
    """Return the size in bytes from which on the ring is faster than recursive doubling, for n a power of two.

    The ring takes 2 (n - 1) (alpha + beta m / n) for m bytes, doubling takes log2(n) (alpha + beta m).

    Hint: Both are straight lines in m: where do they cross?
    """
    steps = n.bit_length() - 1
    return (2 * (n - 1) - steps) * alpha / ((steps - 2 * (n - 1) / n) * beta)


@question("03")
def through_rank_0(answer):
    """The naive all-reduce gathers on rank 0 and broadcasts. How many bytes pass through rank 0, in and out together,
    for 100 MB on 16 ranks?

    Hint: Rank 0 receives from each of the others, and sends to each of them.

    Why: 15 tensors come and 15 go: 30 x 100 MB are 3 GB.
    """
    return float(answer) == 3e9 or "Count what rank 0 receives and what it sends, in bytes."


@question("03")
def least_bytes(answer):
    """How many times its tensor must a rank send at least in an all-reduce on 4 ranks, if all send the same amount?

    Hint: Look at one number. Three sums have to be made, and the result has to reach three other ranks.

    Why: For each number, 3 messages to add up and 3 to spread make 6 by 4 ranks: 2 (n - 1) / n = 1.5 for each of them.
    """
    return float(answer) == 1.5
