"""All-reduce around a ring, of whole buffers, and of chunks in segments. Each rank sends to the next rank only.

Runs on every rank. The ring of chunks is in scheduled.py. Its source: Patarasuk and Yuan, Bandwidth Optimal All-reduce
Algorithms for Clusters of Workstations (2009); for deep learning, Baidu's and DeepSpeech's allreduce (2017).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from distlab.course.algorithms.call import Peers, all_reduce

SEGMENT_BYTES = 1 << 21  # hides the cost of a message; shorter and longer ones were slower at 4 to 64 MiB, 4 ranks
IN_FLIGHT = 8  # segments that may be on their way to a rank before it has added them


@all_reduce
def whole_ring(flat: torch.Tensor, combine: Callable[..., torch.Tensor], peers: Peers) -> None:
    """Every rank's tensor travels once around the ring, and each rank adds what passes by: n - 1 steps.

    It sends n - 1 times the data, and each rank adds in another order: sums of floats differ in their last bits.
    """
    rank, n = peers.rank, peers.size
    passing, arriving = flat.clone(), torch.empty_like(flat)
    for _ in range(n - 1):
        works = [peers.irecv(arriving, (rank - 1) % n), peers.isend(passing, (rank + 1) % n)]
        for work in works:
            work.wait()
        combine(flat, arriving, out=flat)
        passing, arriving = arriving, passing


@all_reduce
def pipelined_ring(flat: torch.Tensor, combine: Callable[..., torch.Tensor], peers: Peers) -> None:
    """The ring with each chunk in segments: one is added while the next ones are on their way."""
    rank, n = peers.rank, peers.size
    count = segments(flat.numel() * flat.element_size(), n)
    chunks = [chunk.tensor_split(count) for chunk in flat.tensor_split(n)]
    steps = range(2 * (n - 1))
    # every segment that arrives here; those of the first n - 1 steps are added, those of the last one not passed on
    arrivals = [(s, segment) for s in steps for segment in chunks[(rank - s - 1) % n] if segment.numel()]
    scratch = [torch.empty_like(chunks[0][0]) for _ in range(IN_FLIGHT)]

    def expect(i: int) -> tuple[dist.Work, torch.Tensor]:
        step, segment = arrivals[i]
        # a complete segment may arrive in place: what it replaces had left before others could complete it
        place = scratch[i % IN_FLIGHT][: segment.numel()] if step < n - 1 else segment
        return peers.irecv(place, (rank - 1) % n), place

    def pass_on(segment: torch.Tensor) -> dist.Work:
        return peers.isend(segment, (rank + 1) % n)

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


def segments(num_bytes: int, world_size: int) -> int:
    """How many segments the pipelined ring makes of each chunk.

    Runs on: anywhere.
    """
    return max(1, -(-num_bytes // (world_size * SEGMENT_BYTES)))
