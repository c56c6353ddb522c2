"""The exercises of lab 05: all-reduces made of messages, and what a ring costs."""

from math import ceil

import torch
import torch.distributed as dist

from distlab.checking import (
    COLLECTIVES,
    Limits,
    Race,
    exercise,
    formula,
    gathered,
    question,
    returned,
)


def bytes_of_chunks(count, n, length, item):
    """The bytes of `count` chunks, each an n-th of `length` elements of `item` bytes."""
    return count * ceil(length / n) * item


def _both_halves(n, length, item):
    """A chunk in each of 2 (n - 1) messages."""
    messages = 2 * (n - 1)
    return Limits(bytes_of_chunks(messages, n, length, item), messages=messages)


def _first_half(n, length, item):
    """The bytes of n - 1 chunks."""
    return Limits(bytes_of_chunks(n - 1, n, length, item))


@question("05", 3e9)
def through_rank_0(answer):
    """The naive all-reduce adds up on rank 0, which sends the sum to every rank. How many bytes
    pass through rank 0, in and out together, for a gradient of 100 MB (1e8 bytes) on 16 ranks?

    Title: 1.1 Through rank 0
    Hint: Rank 0 receives from each of the others, and sends to each of them.

    Not 1500000000.0: That is one direction only.
    Not 3200000000.0: Rank 0 sends nothing to itself: how many others are there?
    Otherwise: Count what rank 0 receives and what it sends, in bytes.

    Why: 15 tensors come in and 15 go out, and 30 times 100 MB are 3 GB.
    """


@question("05", 3311)
def sum_passed_on(answer):
    """In `whole_ring_all_reduce`, let each rank pass on a copy of its sum `tensor` instead of what
    has just arrived. 4 ranks begin with 1, 10, 100 and 1000. Which number does rank 0 end with?

    Title: 2.1 The sum passed on
    Hint: After step 0, rank 0 holds 1001. Which sum does rank 3 hold then, and send to rank 0 in
    step 1?
    Hint: Write the sums of the four ranks below each other, after each of the three steps.

    Not 1111: That is the right sum, but here some numbers are added more than once.
    Not 2101: That is the number after step 1; one more step follows.
    Otherwise: Write down the sums of all four ranks after each of the three steps.

    Why: What is passed on contains numbers that its receiver has added before, so some are counted
    three times.
    """


@question("05", right=[[2, 1, 0], [1, 0, 3]])
def which_chunk(answer):
    """In the first half of the chunked ring on 4 ranks, which chunks does rank 2 send in steps 0, 1
    and 2, and which does it receive? Give [[sent, sent, sent], [received, received, received]].

    Title: 3.1 Which chunk, when?
    Hint: In step 0 every rank sends the chunk of its own number. Which chunk does rank 1 send then?
    Hint: In the next step a rank sends on the chunk that has just arrived.

    Not [[2, 3, 0], [1, 2, 3]]: Rank 2 receives chunk 1 in step 0. Which chunk does it send on in
    step 1?
    Not [[2, 1, 0], [3, 0, 1]]: There the ring runs the other way. Rank 2 receives from rank 1.
    Not [[2, 3, 0], [3, 0, 1]]: There the ring runs the other way. Rank 2 receives from rank 1.
    Otherwise: Each of the two lists has three chunks, from 0 to 3, in the order of the steps.

    Why: In step s, rank r sends chunk r - s and receives chunk r - s - 1, both modulo 4.
    """


@exercise(
    "05",
    forbids=COLLECTIVES,
    limits=_both_halves,
    cases=(8, 7, 3, (12, torch.int64), (1002, torch.float64)),
    race=Race(2**20, ours=533e-6, target=600e-6),
)
def ring_all_reduce(tensor):
    """Replace the numbers of `tensor`, on every rank, by their sums over all ranks: a chunked ring.

    No rank may send more than 2 (n - 1) chunks of an n-th of the tensor.

    Title: 3.2 Ring all-reduce
    Hint: `tensor.tensor_split(world_size)` gives one chunk for each rank; the chunks are views of
    `tensor`.
    Hint: In step s of the first half, rank r sends chunk r - s, and adds what it receives to chunk
    r - s - 1.
    Hint: In the second half, the chunks travel once more, but what arrives replaces what is there.

    Limit: Does each step send one chunk, and not the whole tensor?
    """
    dist.all_reduce(tensor)


@exercise("05", forbids=COLLECTIVES, limits=_first_half, trial=returned)
def ring_reduce_scatter(tensor):
    """On rank r, return chunk r of the sum over all ranks, where the chunks are
    `tensor.tensor_split(world_size)`.

    `tensor` may be changed.

    Title: 3.3 Reduce-scatter
    Hint: It is the first half of the ring all-reduce; which chunk does a rank complete if it begins
    with its own?
    Hint: If rank r sends chunk r - 1 first, and then always what it has just added to, it completes
    chunk r.

    Limit: Only the first half of the ring is asked for.
    """
    total = sum(gathered(tensor))
    chunks = total.tensor_split(dist.get_world_size())
    return chunks[dist.get_rank()]


@question("05", 2.1)
def step_of_7b(answer):
    """16 ranks all-reduce 7 billion gradients of 2 bytes in a ring, over ports of 12.5 GB/s; ignore
    latencies. How many seconds does that take?

    Title: 4.1 A step of a 7B model
    Hint: How many bytes are 7 billion gradients, and what share of them does each rank send in an
    all-reduce?
    Hint: 14 GB, and 2 (n - 1) / n of them with n = 16.

    Not 1.05: That is an all-gather, or a reduce-scatter. An all-reduce takes twice as long.
    Not 1.12: That is the time of 14 GB. How many bytes does each rank send in a ring?
    Not 33.6: That is for 30 messages of the whole buffer. In a ring a message is a 16th of it.
    Otherwise: Divide the bytes that a rank sends by the bytes per second.

    Why: Each rank sends 2 * 15 / 16 of 14 GB, which is 26.25 GB, and at 12.5 GB/s this takes 2.1 s
    in every step.
    """


@question("05", 0.14)
def least_seconds(answer):
    """Each of 8 ranks has a port of 100 Gb/s in each direction. What is the least time in seconds
    that an all-reduce of 1 GB (1e9 bytes) can take?

    Title: 4.2 The least time
    Hint: How many bytes does each rank have to send, if all send the same? And how many go through
    its port a second?
    Hint: 2 (n - 1) / n times the tensor; and 100 Gb/s are 12.5 GB/s.

    Not 0.08: In that time a rank sends the tensor once.
    Not 0.16: That is 2 times the tensor. How much of it does a rank never have to send?
    Not 0.0175: A byte has 8 bits.
    Not 1.12: Do all 7 others have to get the whole tensor from one rank?

    Why: Each rank sends 1.75 GB at 12.5 GB/s. This is the formula of the bus bandwidth, solved for
    the time.
    """


@formula("05", (4, 1e-5, 1e-9), (8, 2e-5, 1e-10), (3, 5e-6, 8e-11), (1024, 1e-6, 4e-11))
def chunks_pay_off(n, alpha, beta):
    """Return the tensor size in bytes above which the chunked ring is faster than the ring of whole
    tensors, on n > 2 ranks, if a message of m bytes takes alpha + beta m.

    Title: 5.1 Where chunks pay off
    Hint: The chunked ring takes 2 (n - 1) steps of 1/n of the tensor. How many steps does the other
    ring take, and how much does each of them send?
    Hint: Both are straight lines in the size of the tensor: where do they cross?
    """
    return n * alpha / ((n - 2) * beta)
