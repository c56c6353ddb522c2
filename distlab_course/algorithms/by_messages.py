"""All-reduce by messages: each rank follows a schedule of schedules.py, or passes messages on
around a ring.

Runs on every rank. The naive way and the tree send 2(n - 1) messages of the whole buffer, the
fewest there can be; the tree sends them in 2 log2(n) steps, the naive way in 2(n - 1). Doubling and
halving take few steps between 2^k ranks. In a ring each rank sends to the next rank only. The whole
ring and the pipelined one have no schedule to follow: they keep messages on their way while they
add. Labs 05 and 11 write each of them out.

Source of the ring of chunks: Patarasuk and Yuan, Bandwidth Optimal All-reduce Algorithms for
Clusters of Workstations (2009); for deep learning, Baidu's and DeepSpeech's allreduce (2017).
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from distlab.simulated.schedules import Message, schedule, segments_of
from distlab_course.algorithms.call import all_reduce

IN_FLIGHT = 8  # segments that may be on their way to a rank before it has added them


# --- by a schedule ---


@all_reduce
def naive(flat: torch.Tensor, combine: Callable[..., torch.Tensor], group: Any) -> None:
    """Rank 0 receives every tensor, adds it up, and sends the result to every rank."""
    follow("naive", flat, combine, group)


@all_reduce
def ring(flat: torch.Tensor, combine: Callable[..., torch.Tensor], group: Any) -> None:
    """Reduce-scatter, then all-gather, a chunk a step: 2(n - 1) steps, and each rank sends 2(n -
    1)/n of the data.
    """
    follow("ring", flat, combine, group)


@all_reduce
def tree(flat: torch.Tensor, combine: Callable[..., torch.Tensor], group: Any) -> None:
    """Sums go up a binomial tree to rank 0, the result comes down the same way: in each step, twice
    as far.
    """
    follow("tree", flat, combine, group)


@all_reduce
def recursive_doubling(
    flat: torch.Tensor, combine: Callable[..., torch.Tensor], group: Any
) -> None:
    """Partners at distance 1, 2, 4 ... exchange their whole sums: log2(n) steps, the fewest, for
    small tensors.
    """
    follow("recursive doubling", flat, combine, group)


@all_reduce
def halving_doubling(flat: torch.Tensor, combine: Callable[..., torch.Tensor], group: Any) -> None:
    """Reduce-scatter by halves, then all-gather by doubling: 2 log2(n) steps that send 2(n - 1)/n
    of the data.
    """
    follow("halving doubling", flat, combine, group)


def follow(name: str, flat: torch.Tensor, combine: Callable[..., torch.Tensor], group: Any) -> None:
    """Step through a schedule in which a rank sends and receives at most one message a step.

    Runs on: every rank of the group.
    """
    rank = dist.get_rank(group)
    num_chunks, steps = _steps_of(name, dist.get_world_size(group), rank)
    # the first chunks, `longer` of them, have an element more
    length, longer = divmod(flat.numel(), num_chunks)

    def part(message: Message) -> torch.Tensor:
        start, stop = (
            i * length + min(i, longer) for i in (message.chunks.start, message.chunks.stop)
        )
        return flat[start:stop]

    scratch = torch.empty_like(flat)
    for sent, received in steps:
        works = []
        if received:
            mine = part(received)
            incoming = scratch[: mine.numel()] if received.operation == "reduce" else mine
            works.append(dist.irecv(incoming, group=group, group_src=received.src))
        if sent:
            works.append(dist.isend(part(sent), group=group, group_dst=sent.dst))
        for work in works:
            work.wait()
        if received and received.operation == "reduce":
            # the lower rank's sum first, on both partners: the same bits, also for MIN of 0.0 and
            # -0.0
            first, second = (mine, incoming) if rank < received.src else (incoming, mine)
            combine(first, second, out=mine)


@functools.cache
def _steps_of(
    name: str, size: int, rank: int
) -> tuple[int, list[tuple[Message | None, Message | None]]]:
    """Into how many chunks the buffer is cut, and what one rank sends and receives in each step."""
    plan = schedule(name, size)
    # by sender, by receiver
    ends = [({m.src: m for m in step}, {m.dst: m for m in step}) for step in plan.steps]
    return plan.num_chunks, [(sent.get(rank), received.get(rank)) for sent, received in ends]


# --- around a ring ---


@all_reduce
def whole_ring(flat: torch.Tensor, combine: Callable[..., torch.Tensor], group: Any) -> None:
    """Every rank's tensor travels once around the ring, and each rank adds what passes by: n - 1
    steps.

    It sends n - 1 times the data, and each rank adds in another order: sums of floats differ in
    their last bits.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    passing, arriving = flat.clone(), torch.empty_like(flat)
    for _ in range(n - 1):
        coming = dist.irecv(arriving, group=group, group_src=(rank - 1) % n)
        going = dist.isend(passing, group=group, group_dst=(rank + 1) % n)
        coming.wait()
        going.wait()
        combine(flat, arriving, out=flat)
        passing, arriving = arriving, passing


@all_reduce
def pipelined_ring(flat: torch.Tensor, combine: Callable[..., torch.Tensor], group: Any) -> None:
    """The ring with each chunk in segments: one is added while the next ones are on their way."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    count = segments_of(flat.nbytes, n)
    chunks = [chunk.tensor_split(count) for chunk in flat.tensor_split(n)]
    steps = range(2 * (n - 1))
    # every segment that arrives here; those of the first n - 1 steps are added, those of the last
    # one not passed on
    arrivals = [
        (s, segment) for s in steps for segment in chunks[(rank - s - 1) % n] if segment.numel()
    ]
    scratch = [torch.empty_like(chunks[0][0]) for _ in range(IN_FLIGHT)]

    def expect(i: int) -> tuple[dist.Work, torch.Tensor]:
        step, segment = arrivals[i]
        # a complete segment may arrive in place: what it replaces had left before others could
        # complete it
        place = scratch[i % IN_FLIGHT][: segment.numel()] if step < n - 1 else segment
        return dist.irecv(place, group=group, group_src=(rank - 1) % n), place

    def pass_on(segment: torch.Tensor) -> dist.Work:
        return dist.isend(segment, group=group, group_dst=(rank + 1) % n)

    expected = [expect(i) for i in range(min(IN_FLIGHT, len(arrivals)))]
    sends = [pass_on(segment) for segment in chunks[rank] if segment.numel()]
    for i, (step, segment) in enumerate(arrivals):
        work, place = expected[i]
        work.wait()
        if step < n - 1:
            combine(segment, place, out=segment)
        if i + IN_FLIGHT < len(arrivals):
            expected.append(expect(i + IN_FLIGHT))
        if step < 2 * (n - 1) - 1:
            sends.append(pass_on(segment))
    for work in sends:
        work.wait()


ALL = (naive, whole_ring, ring, pipelined_ring, halving_doubling, recursive_doubling, tree)
