"""The exercises of lab 11: fewer steps, segments, all-reduces by host, and shared memory."""

from math import ceil

import torch
import torch.distributed as dist

from distlab.checking import COLLECTIVES, Limits, Race, Seen, exercise, formula, question
from distlab_course.algorithms import cost
from distlab_course.exercises.ring_all_reduce import bytes_of_chunks

SIX_ALGORITHMS = ("naive", "whole ring", "ring", "tree", "recursive doubling", "halving doubling")


def _in_segments(n, length, item):
    """The limits of a ring whose chunks travel in 4 segments."""
    steps = 2 * (n - 1)
    chunk = ceil(length / n)
    segment = ceil(chunk / 4)
    return Limits(
        num_bytes=bytes_of_chunks(steps, n, length, item), steps=steps, largest=segment * item
    )


def _try_on_two_hosts(fn, tensor, events):
    """The tensor after `fn` on two hosts, and what crossed the cable.

    Ranks 0 and 1 are on one host, 2 and 3 on the other.
    """
    host, place = divmod(dist.get_rank(), 2)
    # every rank makes all groups
    groups_inside = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    groups_across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    begun = len(events)
    fn(tensor, groups_inside[host], groups_across[place])
    num_bytes = 0  # between the hosts
    for event in events[begun:]:
        members = getattr(event, "members", ())  # a message has none
        hosts = {member // 2 for member in members}
        if len(hosts) == 2:
            num_bytes += event.sent[0]
    share = num_bytes / tensor.nbytes
    why = "Between the hosts each rank should all-reduce only its own half."
    return tensor, Seen(f"all-reduces {share:g} of the tensor between the hosts", why)


def _steps_of_doubling(n, length, item):
    """A step for each doubling, and two more if some ranks have to lend their numbers."""
    steps = n.bit_length() - 1
    if n != 2**steps:
        steps += 2
    return Limits(steps=steps)


@exercise(
    "11",
    forbids=COLLECTIVES,
    limits=_steps_of_doubling,
    race=Race(256, ours=10.2e-6, target=15e-6),
)
def doubling_for_any_n(tensor):
    """Replace `tensor`, on every rank, by the sum over all ranks: recursive doubling, for any
    number of ranks.

    Let p be the largest power of two that is not above n: each rank r >= p lends its numbers to
    rank r - p, the first p ranks do the doubling, and those that borrowed give the result back.

    Title: 1.1 Doubling for any number of ranks
    Hint: In step s, rank r exchanges its whole sum with rank r ^ 2**s, and adds what arrives.
    Hint: 3 ranks: rank 2 sends to rank 0; ranks 0 and 1 exchange; rank 0 sends the sum to rank 2.

    Limit: How many ranks have exchanged their sums after each step?
    """
    dist.all_reduce(tensor)


ALGORITHMS_ON_N_RANKS = [(name, n, 4096, 1e-5, 1e-9) for name in SIX_ALGORITHMS for n in (2, 4, 64)]


@formula("11", *ALGORITHMS_ON_N_RANKS)
def seconds_of(name, n, num_bytes, alpha, beta):
    """Return the seconds that an all-reduce of `num_bytes` takes on n ranks, n a power of two.

    A message of m bytes takes alpha + beta m. The name is "naive", "whole ring", "ring", "tree",
    "recursive doubling" or "halving doubling".

    Title: 2.1 Six formulas
    Hint: How many steps are there, and how many bytes does a message carry in each?
    Hint: In halving and doubling the messages are 1/2, 1/4, 1/8 ... of the tensor: how much is that
    in total?
    """
    return cost(name, num_bytes, n, alpha, beta)


@formula("11", (4, 1e-5, 1e-9), (8, 2e-5, 1e-10), (64, 1e-6, 4e-11))
def ring_beats_doubling(n, alpha, beta):
    """Return the size in bytes above which the ring is faster than recursive doubling, for n a
    power of two.

    The ring takes 2 (n - 1) (alpha + beta m / n) for m bytes, doubling takes log2(n) (alpha + beta
    m).

    Title: 2.2 Where the ring wins
    Hint: Both are straight lines in m: where do they cross?
    """
    steps_of_ring = 2 * (n - 1)
    steps_of_doubling = n.bit_length() - 1
    latencies_saved = steps_of_ring - steps_of_doubling  # by doubling
    tensors_saved = steps_of_doubling - steps_of_ring / n  # by the ring
    return latencies_saved * alpha / (tensors_saved * beta)


@exercise(
    "11",
    forbids=COLLECTIVES,
    cases=(32, 50, (40, torch.int64)),
    limits=_in_segments,
    race=Race(2**20, ours=533e-6, target=600e-6),
)
def ring_in_segments(tensor):
    """The ring all-reduce with each chunk cut into 4 segments, a message each, that travel at the
    same time.

    Title: 3.1 Four segments per step
    Hint: `[chunk.tensor_split(4) for chunk in tensor.tensor_split(world_size)]`.
    Hint: In each step: start four receives, start four sends, wait for all, add or copy.

    Limit: Is each chunk cut into four, and do all four start before any of them is waited for?
    """
    dist.all_reduce(tensor)


@exercise(
    "11",
    worlds=(4,),
    cases=(8, 2, (6, torch.float64), (12, torch.int64)),
    trial=_try_on_two_hosts,
)
def two_level_all_reduce(tensor, inside, across):
    """Replace the numbers of `tensor`, on every rank, by their sums over all ranks of two hosts
    with two ranks each.

    `inside` is the group of the two ranks of this host, `across` that of the ranks with the same
    place on both hosts. Each rank may all-reduce only half of the tensor in `across`. The length of
    the tensor is even.

    Title: 5.1 Two levels
    Hint: Reduce-scatter in `inside`, all-reduce in `across`, all-gather in `inside`.
    Hint: `halves = list(tensor.tensor_split(2))`; `dist.reduce_scatter(mine, halves, group=inside)`
    needs a tensor `mine` of the length of a half, and `dist.all_gather(halves, mine, group=inside)`
    writes into `tensor`.

    Stuck: Do both ranks of a group make the same calls on it?
    """
    halves = list(tensor.tensor_split(2))
    mine = torch.empty_like(halves[0])
    dist.reduce_scatter(mine, halves, group=inside)
    dist.all_reduce(mine, group=across)
    dist.all_gather(halves, mine, group=inside)


@question("11", 6.0)
def without_the_second_barrier(answer):
    """Two ranks call `slots_all_reduce` without its second barrier: first with a tensor of one 1.0
    on each rank, then with one 5.0 on each. Rank 0 is faster. Which wrong sum can rank 1 get from
    the first call?

    Title: 6.1 Without the second barrier
    Hint: Rank 0 returns from the first call and writes the next number into its slot. Where is rank
    1 by then?

    Not 2.0: That is the right sum of the first call.
    Not 10.0: Rank 1 has not written its own 5.0 by then.
    Otherwise: What is in the two slots when rank 1 reads them late?

    Why: Rank 0 may have written 5.0 before rank 1 reads the slots: 5 + 1. The second barrier keeps
    it from doing so.
    """
