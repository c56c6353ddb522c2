"""What each all-reduce sends, as data: who sends which chunk to whom, step by step, and what that
costs.

Runs anywhere; nothing here communicates. distlab_course.algorithms steps through these on the
ranks. The tests compare the schedules with the messages that are really sent, and the costs with
the schedules.
"""

from collections.abc import Callable
from dataclasses import dataclass

from distlab.arguments import one_of, whole_number

# hides the cost of a message; shorter and longer ones were slower at 4 to 64 MiB, 4 ranks
SEGMENT_BYTES = 1 << 21
Steps = list[list["Message"]]
Maker = Callable[[int], tuple[int, Steps]]
Shares = Callable[[int], tuple[int, float]]


@dataclass(frozen=True)
class Message:
    """One message of a schedule.

    Attributes:
        src, dst: ranks.
        chunks: which chunks of the buffer it carries.
        operation: "reduce" if dst adds it to its own, "copy" if it replaces that.
        origin: the rank whose own tensor it carries; None when it carries what src has added up so
            far.
    """

    src: int
    dst: int
    chunks: range
    operation: str
    origin: int | None = None


@dataclass(frozen=True)
class Schedule:
    """All messages of an algorithm: step after step, those of a step at the same time.

    The buffer counts as `num_chunks` equal chunks; if it does not divide evenly, the first ones
    have one more element.
    """

    name: str
    world_size: int
    num_chunks: int
    steps: tuple[tuple[Message, ...], ...]


def schedule(name: str, world_size: int) -> Schedule:
    """Who sends which chunk to whom, step by step.

    Runs on: anywhere.

    Args:
        name: one of ALGORITHMS; the pipelined ring counts as one that does not cut its chunks.

    Raises:
        ArgumentError: no such algorithm, or no such number.
    """
    make, _ = _found(name, world_size)
    num_chunks, steps = make(world_size)
    return Schedule(name, world_size, num_chunks, tuple(tuple(step) for step in steps))


def cost(name: str, num_bytes: int, world_size: int, alpha: float, beta: float) -> float:
    """Seconds of an all-reduce when messages of a step travel at the same time, each at alpha +
    beta x its bytes.

    Runs on: anywhere. Source: Thakur, Rabenseifner and Gropp, Optimization of Collective
    Communication Operations in MPICH (2005).

    Args:
        name: one of ALGORITHMS. num_bytes: of the whole tensor.
        alpha: seconds of a message without bytes, beta: seconds a byte sent.

    Raises:
        ArgumentError: no such algorithm, or no such number of ranks.
    """
    _, shares = _found(name, world_size)
    if num_bytes == 0:
        return 0.0
    steps, sent = shares(world_size)
    count = segments_of(int(num_bytes), world_size) if name == "pipelined ring" else 1
    return steps * count * alpha + sent * num_bytes * beta


def segments_of(num_bytes: int, world_size: int) -> int:
    """How many segments the pipelined ring makes of each chunk.

    Runs on: anywhere.
    """
    return max(1, -(-num_bytes // (world_size * SEGMENT_BYTES)))


def _found(name: str, world_size: int) -> tuple[Maker, Shares]:
    """The schedule and the cost of an algorithm, for a number of ranks."""
    whole_number("world_size", world_size, 1)
    return ALGORITHMS[one_of("name", name, ALGORITHMS)]


# --- schedules: (number of chunks, steps) for n ranks ---


def _naive(n: int) -> tuple[int, Steps]:
    up = [[Message(src, 0, range(1), "reduce")] for src in range(1, n)]
    return 1, up + [[Message(0, dst, range(1), "copy")] for dst in range(1, n)]


def _tree(n: int) -> tuple[int, Steps]:
    edges = [[(r, r - d) for r in range(d, n, 2 * d)] for d in distances(n)]
    up = [[Message(child, parent, range(1), "reduce") for child, parent in step] for step in edges]
    return 1, up + [
        [Message(parent, child, range(1), "copy") for child, parent in step]
        for step in reversed(edges)
    ]


def _whole_ring(n: int) -> tuple[int, Steps]:
    return 1, [
        [Message(r, (r + 1) % n, range(1), "reduce", (r - s) % n) for r in range(n)]
        for s in range(n - 1)
    ]


def _ring(n: int) -> tuple[int, Steps]:
    def step(first: int, operation: str) -> list[Message]:
        """One in which rank r sends chunk r + first."""
        chunks = [(r + first) % n for r in range(n)]
        return [
            Message(r, (r + 1) % n, range(chunk, chunk + 1), operation)
            for r, chunk in enumerate(chunks)
        ]

    phases = [(-s, "reduce") for s in range(n - 1)] + [(1 - s, "copy") for s in range(n - 1)]
    return n, [step(*phase) for phase in phases]


def _recursive_doubling(n: int) -> tuple[int, Steps]:
    power = power_below(n)
    steps = [
        [Message(r, r ^ d, range(1), "reduce") for r in range(power)] for d in distances(power)
    ]
    return 1, _folded(n, 1, steps)


def _halving_doubling(n: int) -> tuple[int, Steps]:
    power = power_below(n)
    blocks, halving, doubling = [range(power)] * power, [], []
    for d in reversed(distances(power)):
        kept = [
            block[len(block) // 2 :] if r & d else block[: len(block) // 2]
            for r, block in enumerate(blocks)
        ]
        halving.append([Message(r, r ^ d, kept[r ^ d], "reduce") for r in range(power)])
        doubling.insert(0, [Message(r, r ^ d, kept[r], "copy") for r in range(power)])
        blocks = kept
    return power, _folded(n, power, halving + doubling)


def _folded(n: int, num_chunks: int, steps: Steps) -> Steps:
    """Steps between the first 2^k ranks; a step before brings in the other ranks, one after gives
    them the result.
    """
    power, whole = power_below(n), range(num_chunks)
    if n == power:
        return steps
    before = [Message(r, r - power, whole, "reduce") for r in range(power, n)]
    return [before, *steps, [Message(r - power, r, whole, "copy") for r in range(power, n)]]


def power_below(n: int) -> int:
    """The largest power of two that is not above n."""
    return 1 << (n.bit_length() - 1)


def distances(n: int) -> list[int]:
    """1, 2, 4 ... below n."""
    return [1 << k for k in range(_log(n))]


# --- costs: steps, and the share of the buffer that is sent one after another, on n ranks ---


def _doubling_cost(n: int) -> tuple[int, float]:
    steps = _log(power_below(n)) + 2 * (n > power_below(n))
    return steps, steps


def _halving_cost(n: int) -> tuple[int, float]:
    power, extra = power_below(n), n > power_below(n)
    return 2 * _log(power) + 2 * extra, 2 * (power - 1) / power + 2 * extra


def _log(n: int) -> int:
    """log2(n), rounded up."""
    return (n - 1).bit_length()


_RING = (_ring, lambda n: (2 * (n - 1), 2 * (n - 1) / n))
# by name: the schedule for n ranks, and its cost
ALGORITHMS: dict[str, tuple[Maker, Shares]] = {
    "naive": (_naive, lambda n: (2 * (n - 1), 2 * (n - 1))),
    "whole ring": (_whole_ring, lambda n: (n - 1, n - 1)),
    "ring": _RING,
    "pipelined ring": _RING,
    "halving doubling": (_halving_doubling, _halving_cost),
    "recursive doubling": (_recursive_doubling, _doubling_cost),
    "tree": (_tree, lambda n: (2 * _log(n), 2 * _log(n))),
}
