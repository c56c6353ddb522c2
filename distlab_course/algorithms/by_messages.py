"""All-reduce by messages: each rank follows a schedule, or passes messages on around a ring.

Runs on every rank. The naive way and the tree send 2(n - 1) messages of the whole buffer, the
fewest there can be; the tree sends them in 2 log2(n) steps, the naive way in 2(n - 1). Doubling and
halving take few steps between 2^k ranks. In a ring each rank sends to the next rank only. The whole
ring and the pipelined one have no schedule to follow: they keep messages on their way while they
add. Labs 05 and 11 write each of them out.

Source of the ring of chunks: Patarasuk and Yuan, Bandwidth Optimal All-reduce Algorithms for
Clusters of Workstations (2009); for deep learning, Baidu's and DeepSpeech's allreduce (2017).
"""

import functools
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist

from distlab.simulated.schedules import ChunkMessage, schedule, segments_of
from distlab_course.algorithms.call import Combine, all_reduce

IN_FLIGHT = 8  # segments that may be on their way to a rank before it has added them
RankStep = tuple[ChunkMessage | None, ChunkMessage | None]  # what a rank sends, what it receives


# --- by a schedule ---


@all_reduce
def naive(flat: torch.Tensor, combine: Combine, group: Any) -> None:
    """Rank 0 receives every tensor, adds it up, and sends the result to every rank."""
    follow("naive", flat, combine, group)


@all_reduce
def ring(flat: torch.Tensor, combine: Combine, group: Any) -> None:
    """Reduce-scatter, then all-gather, a chunk a step.

    It takes 2(n - 1) steps, and each rank sends 2(n - 1)/n of the data.
    """
    follow("ring", flat, combine, group)


@all_reduce
def tree(flat: torch.Tensor, combine: Combine, group: Any) -> None:
    """Sums go up a binomial tree to rank 0, the result comes down: twice as far in each step."""
    follow("tree", flat, combine, group)


@all_reduce
def recursive_doubling(flat: torch.Tensor, combine: Combine, group: Any) -> None:
    """Partners at distance 1, 2, 4 ... exchange their whole sums.

    It takes log2(n) steps, the fewest there can be, which is best for small tensors.
    """
    follow("recursive doubling", flat, combine, group)


@all_reduce
def halving_doubling(flat: torch.Tensor, combine: Combine, group: Any) -> None:
    """Reduce-scatter by halves, then all-gather by doubling.

    It takes 2 log2(n) steps, which send 2(n - 1)/n of the data.
    """
    follow("halving doubling", flat, combine, group)


def follow(name: str, flat: torch.Tensor, combine: Combine, group: Any) -> None:
    """Step through a schedule in which a rank sends and receives at most one message a step.

    Runs on: every rank of the group.
    """
    rank = dist.get_rank(group)
    num_chunks, steps = _steps_of(name, dist.get_world_size(group), rank)
    scratch = torch.empty_like(flat)
    for sent, received in steps:
        works = []
        if received:
            mine = _part_of(flat, num_chunks, received)
            incoming = mine  # a copy arrives in place
            if received.operation == "reduce":
                incoming = scratch[: mine.numel()]
            works.append(_work(dist.irecv(incoming, group=group, group_src=received.src)))
        if sent:
            outgoing = _part_of(flat, num_chunks, sent)
            works.append(_work(dist.isend(outgoing, group=group, group_dst=sent.dst)))
        for work in works:
            work.wait()
        if received and received.operation == "reduce":
            # the lower rank's sum first, on both partners: the same bits, also for MIN of 0.0 and
            # -0.0
            if rank < received.src:
                combine(mine, incoming, out=mine)
            else:
                combine(incoming, mine, out=mine)


def _part_of(flat: torch.Tensor, num_chunks: int, message: ChunkMessage) -> torch.Tensor:
    """The elements of the chunks that a message carries."""
    # the first chunks, `longer` of them, have an element more
    length, longer = divmod(flat.numel(), num_chunks)
    first = message.chunks.start
    end = message.chunks.stop
    return flat[first * length + min(first, longer) : end * length + min(end, longer)]


@functools.cache
def _steps_of(name: str, size: int, rank: int) -> tuple[int, list[RankStep]]:
    """Into how many chunks the buffer is cut, and what one rank sends and receives in each step."""
    plan = schedule(name, size)
    steps: list[RankStep] = []
    for step in plan.steps:
        by_sender = {message.src: message for message in step}
        by_receiver = {message.dst: message for message in step}
        steps.append((by_sender.get(rank), by_receiver.get(rank)))
    return plan.num_chunks, steps


# --- around a ring ---


@all_reduce
def whole_ring(flat: torch.Tensor, combine: Combine, group: Any) -> None:
    """Every rank's tensor travels once around the ring, and each rank adds what passes by.

    It takes n - 1 steps and sends n - 1 times the data. Each rank adds in another order, so sums of
    floats differ in their last bits.
    """
    passing = flat.clone()
    arriving = torch.empty_like(flat)
    for _ in range(dist.get_world_size(group) - 1):
        receiving = receive_from_previous(arriving, group)
        sending = send_to_next(passing, group)
        receiving.wait()
        sending.wait()
        combine(flat, arriving, out=flat)
        passing, arriving = arriving, passing


@all_reduce
def pipelined_ring(flat: torch.Tensor, combine: Combine, group: Any) -> None:
    """The ring with each chunk in segments: one is added while the next ones are on their way."""
    reduce_around_ring(flat, combine, group)


def reduce_around_ring(flat: torch.Tensor, combine: Combine, group: Any) -> None:
    """Reduce `flat` in place, in segments that travel around the ring.

    Runs on: every rank of the group.
    """
    rank = dist.get_rank(group)
    n = dist.get_world_size(group)
    count = segments_of(flat.nbytes, n)
    chunks = [chunk.tensor_split(count) for chunk in flat.tensor_split(n)]
    # segments of the first n - 1 steps are added, and those of the last step are not passed on
    arrivals = _arrivals(chunks, rank)
    last_step = 2 * (n - 1) - 1
    scratch = [torch.empty_like(chunks[0][0]) for _ in range(IN_FLIGHT)]

    def expect(i: int) -> tuple[dist.Work, torch.Tensor]:
        """Begin to receive a segment; the work, and where its numbers will be."""
        step, segment = arrivals[i]
        # a complete segment may arrive in place: what it replaces had left before others could
        # complete it
        place = segment
        if step < n - 1:
            place = scratch[i % IN_FLIGHT][: segment.numel()]
        return receive_from_previous(place, group), place

    expected = [expect(i) for i in range(min(IN_FLIGHT, len(arrivals)))]
    sends = [send_to_next(segment, group) for segment in chunks[rank] if segment.numel()]
    for i, (step, segment) in enumerate(arrivals):
        work, place = expected[i]
        work.wait()
        if step < n - 1:
            combine(segment, place, out=segment)
        if i + IN_FLIGHT < len(arrivals):
            expected.append(expect(i + IN_FLIGHT))
        if step < last_step:
            sends.append(send_to_next(segment, group))
    for work in sends:
        work.wait()


def _arrivals(
    chunks: Sequence[Sequence[torch.Tensor]], rank: int
) -> list[tuple[int, torch.Tensor]]:
    """Every segment that arrives at a rank, in order, each with its step.

    Args:
        chunks: the segments of each chunk.
        rank: where they arrive.
    """
    n = len(chunks)
    arrivals = []
    for step in range(2 * (n - 1)):
        for segment in chunks[(rank - step - 1) % n]:
            if segment.numel():
                arrivals.append((step, segment))
    return arrivals


def send_to_next(tensor: torch.Tensor, group: Any) -> dist.Work:
    """Begin to send a tensor to the next rank of the ring."""
    next_rank = (dist.get_rank(group) + 1) % dist.get_world_size(group)
    return _work(dist.isend(tensor, group=group, group_dst=next_rank))


def receive_from_previous(tensor: torch.Tensor, group: Any) -> dist.Work:
    """Begin to receive a tensor from the previous rank of the ring."""
    previous = (dist.get_rank(group) - 1) % dist.get_world_size(group)
    return _work(dist.irecv(tensor, group=group, group_src=previous))


def _work(begun: dist.Work | None) -> dist.Work:
    """What isend or irecv returns, which is None only on a rank that is not in the group."""
    return cast(dist.Work, begun)  # `all_reduce` refuses a rank that is not in the group


ALL = (naive, whole_ring, ring, pipelined_ring, halving_doubling, recursive_doubling, tree)
