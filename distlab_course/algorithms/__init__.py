"""All-reduce, nine times: the algorithms that labs 05 and 11 build, finished.

    from distlab_course import algorithms
    algorithms.ALL_REDUCE["ring"](tensor)             # on every rank, in place, as dist.all_reduce
    algorithms.schedule("ring", 4).steps              # who sends which chunk to whom, step by step
    algorithms.cost("ring", 1 << 20, 4, alpha, beta)  # seconds by the cost model

The functions run on the ranks, under torchrun as well; the rest runs anywhere. All but "shared
memory" are made of torch.distributed's point-to-point calls. What the functions share, and what may
be passed to them, is in call.py.

Every rank ends with the same bits, also where rounding makes the result depend on the order of the
additions, but for "whole ring": there each rank adds in an order of its own.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from distlab.simulated.schedules import ChunkMessage, Schedule, cost, schedule
from distlab_course.algorithms import by_messages
from distlab_course.algorithms.call import Combine, all_reduce
from distlab_course.algorithms.shared_memory import Segment, reduce_in, segment_of, shared_memory

# up to here the number of messages counts, above it the bytes that each rank sends
LATENCY_BOUND_BYTES = 1 << 18


@all_reduce
def best(flat: torch.Tensor, combine: Combine, group: Any) -> None:
    """Shared memory on one machine; elsewhere the ring, or for small tensors fewer messages."""
    segment = segment_of(group)
    if isinstance(segment, Segment):
        reduce_in(segment, flat, combine)
    elif flat.nbytes <= LATENCY_BOUND_BYTES:
        by_messages.follow("recursive doubling", flat, combine, group)
    else:
        by_messages.reduce_around_ring(flat, combine, group)


def holdings(plan: Schedule) -> list[list[list[frozenset[int]]]]:
    """Whose tensors are in each sum: holdings(plan)[steps done][rank][chunk].

    Runs on: anywhere.
    """
    own = [[frozenset({rank})] * plan.num_chunks for rank in range(plan.world_size)]
    states = [own]
    for step in plan.steps:
        states.append(_after_step(step, states[-1]))
    return states


def _after_step(
    step: Sequence[ChunkMessage], before: list[list[frozenset[int]]]
) -> list[list[frozenset[int]]]:
    """Whose tensors are in each sum after a step: _after_step(step, before)[rank][chunk]."""
    after = [list(chunks) for chunks in before]
    for message in step:
        for chunk in message.chunks:
            if message.origin is None:
                sent = before[message.src][chunk]
            else:  # one rank's tensor, which others pass on
                sent = frozenset({message.origin})
            if message.operation == "reduce":
                after[message.dst][chunk] |= sent
            else:
                after[message.dst][chunk] = sent
    return after


# by its name in words: "halving doubling" is halving_doubling
ALL_REDUCE: dict[str, Callable[..., Any]] = {
    function.__name__.replace("_", " "): function
    for function in (*by_messages.ALL, shared_memory, best)
}

__all__ = ["ALL_REDUCE", "ChunkMessage", "Schedule", "cost", "holdings", "schedule"]
