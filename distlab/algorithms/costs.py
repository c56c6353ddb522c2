"""What an all-reduce costs by the alpha-beta model, and how much it sends in all.

Runs anywhere; nothing here communicates. The tests compare the formulas with the schedules, and those with the messages
that are really sent.
"""

from __future__ import annotations

from collections.abc import Callable

from distlab.algorithms.rings import segments
from distlab.algorithms.schedules import check, power_below, schedule
from distlab.algorithms.segment import slot_bytes


def traffic(name: str, num_bytes: int, world_size: int) -> tuple[int, float]:
    """How many messages all ranks send together, and how many bytes in them.

    This, not `cost`, counts where more ranks than cores take turns. For "shared memory" it is what ranks read from each
    other's slots.

    Runs on: anywhere.
    """
    plan = schedule(name, world_size, segments(num_bytes, world_size) if name == "pipelined ring" else 1)
    messages = [message for step in plan.steps for message in step]
    return len(messages), sum(len(message.chunks) for message in messages) * num_bytes / plan.num_chunks


def cost(name: str, num_bytes: int, world_size: int, alpha: float, beta: float, gamma: float = 0.0) -> float:
    """Seconds of an all-reduce when messages of a step travel at the same time, each at alpha + beta x its bytes.

    Runs on: anywhere. Source: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in
    MPICH (2005).

    Args:
        name: one of ALL_REDUCE but "best", which is one of the others. num_bytes: of the whole tensor.
        alpha: seconds of a message without bytes, beta: seconds a byte sent, gamma: seconds a byte added up. For
            "shared memory": seconds of a meeting, seconds a byte copied, seconds a byte added up.

    Raises:
        ArgumentError: no such algorithm, or no such number of ranks.
    """
    check(name, world_size)
    if world_size == 1 or num_bytes == 0:
        return 0.0
    steps, sent, added = COSTS[name](world_size, num_bytes)
    return steps * alpha + sent * beta + added * gamma


# --- costs: (messages, bytes sent, bytes added up) one after another, for n ranks and m bytes ---


def _log(n: int) -> int:
    """log2(n), rounded up."""
    return (n - 1).bit_length()


def _doubling_cost(n: int, m: float) -> tuple[float, float, float]:
    k, extra = _log(power_below(n)), n > power_below(n)
    return k + 2 * extra, (k + 2 * extra) * m, (k + extra) * m


def _halving_cost(n: int, m: float) -> tuple[float, float, float]:
    p, extra = power_below(n), n > power_below(n)
    share = (p - 1) / p
    return 2 * _log(p) + 2 * extra, (2 * share + 2 * extra) * m, (share + extra) * m


def _pipelined_cost(n: int, m: float) -> tuple[float, float, float]:
    k, share = segments(int(m), n), (n - 1) / n
    # all but the last segment of a chunk is added while others travel
    return 2 * (n - 1) * k, 2 * share * m, share * m / k


def _shared_memory_cost(n: int, m: float) -> tuple[float, float, float]:
    large, small = slot_bytes(n)
    if m <= small:
        return 1, m, (n - 1) * m
    return 2 * -(-m // large), (2 * n - 1) / n * m, (n - 1) / n * m


COSTS: dict[str, Callable[[int, float], tuple[float, float, float]]] = {
    "naive": lambda n, m: (2 * (n - 1), 2 * (n - 1) * m, (n - 1) * m),
    "whole ring": lambda n, m: (n - 1, (n - 1) * m, (n - 1) * m),
    "ring": lambda n, m: (2 * (n - 1), 2 * (n - 1) / n * m, (n - 1) / n * m),
    "pipelined ring": _pipelined_cost,
    "halving doubling": _halving_cost,
    "recursive doubling": _doubling_cost,
    "tree": lambda n, m: (2 * _log(n), 2 * _log(n) * m, _log(n) * m),
    "shared memory": _shared_memory_cost,
}
