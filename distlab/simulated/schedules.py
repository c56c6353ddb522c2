"""What each all-reduce sends, as data, step by step, and what that costs.

Runs anywhere; nothing here communicates. collectives.py asks for schedules and costs,
distlab_predict for costs, and distlab_course.algorithms steps through the schedules on the ranks.
The tests compare the schedules with the messages that are really sent, and the costs with the
schedules.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from distlab.arguments import one_of, whole_number

# hides the cost of a message; shorter and longer ones were slower at 4 to 64 MiB, 4 ranks
SEGMENT_BYTES = 1 << 21
ONE_CHUNK = range(1)  # a whole buffer that is not cut
ChunkSteps = list[list["ChunkMessage"]]


class Algorithm(NamedTuple):
    """An all-reduce on n ranks.

    Attributes:
        schedule: from n to the number of chunks, and the steps.
        cost: from n to the number of steps, and the share of the buffer that is sent one after
            another.
    """

    schedule: Callable[[int], tuple[int, ChunkSteps]]
    cost: Callable[[int], tuple[int, float]]


@dataclass(frozen=True)
class ChunkMessage:
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
    steps: tuple[tuple[ChunkMessage, ...], ...]


def schedule(name: str, world_size: int) -> Schedule:
    """Who sends which chunk to whom, step by step.

    Runs on: anywhere.

    Args:
        name: one of ALGORITHMS; the pipelined ring counts as one that does not cut its chunks.

    Raises:
        ArgumentError: no such algorithm, or no such number.
    """
    algorithm = _found(name, world_size)
    num_chunks, steps = algorithm.schedule(world_size)
    return Schedule(name, world_size, num_chunks, tuple(map(tuple, steps)))


def cost(name: str, num_bytes: int, world_size: int, alpha: float, beta: float) -> float:
    """Seconds of an all-reduce by its formula.

    The messages of a step travel at the same time, and each takes alpha + beta x its bytes.

    Runs on: anywhere. Source: Thakur, Rabenseifner and Gropp, Optimization of Collective
    Communication Operations in MPICH (2005).

    Args:
        name: one of ALGORITHMS.
        num_bytes: of the whole tensor.
        world_size: number of ranks.
        alpha: seconds of a message without bytes.
        beta: seconds for each byte sent.

    Raises:
        ArgumentError: no such algorithm, or no such number of ranks.
    """
    algorithm = _found(name, world_size)
    if num_bytes == 0:
        return 0.0
    steps, sent = algorithm.cost(world_size)
    segments = 1
    if name == "pipelined ring":
        segments = segments_of(int(num_bytes), world_size)
    return steps * segments * alpha + sent * num_bytes * beta


def segments_of(num_bytes: int, world_size: int) -> int:
    """How many segments the pipelined ring makes of each chunk.

    Runs on: anywhere.
    """
    bytes_of_segments = world_size * SEGMENT_BYTES  # one of each chunk
    rounded_up = -(-num_bytes // bytes_of_segments)
    return max(1, rounded_up)


def _found(name: str, world_size: int) -> Algorithm:
    """The algorithm of a name; ArgumentError if there is none, or for no number of ranks."""
    whole_number("world_size", world_size, 1)
    one_of("name", name, ALGORITHMS)
    return ALGORITHMS[name]


# --- schedules: (number of chunks, steps) for n ranks ---


def _naive(n: int) -> tuple[int, ChunkSteps]:
    up: ChunkSteps = []
    down: ChunkSteps = []
    for other in range(1, n):
        up.append([ChunkMessage(other, 0, ONE_CHUNK, "reduce")])
        down.append([ChunkMessage(0, other, ONE_CHUNK, "copy")])
    return 1, up + down


def _tree(n: int) -> tuple[int, ChunkSteps]:
    up: ChunkSteps = []
    down: ChunkSteps = []
    for distance in distances(n):
        to_parents = []
        to_children = []
        for child in range(distance, n, 2 * distance):
            parent = child - distance
            to_parents.append(ChunkMessage(child, parent, ONE_CHUNK, "reduce"))
            to_children.append(ChunkMessage(parent, child, ONE_CHUNK, "copy"))
        up.append(to_parents)
        down.insert(0, to_children)
    return 1, up + down


def _whole_ring(n: int) -> tuple[int, ChunkSteps]:
    steps: ChunkSteps = []
    for number in range(n - 1):
        # every rank hands on the tensor of the rank that is `number` before it
        step = []
        for r in range(n):
            next_rank = (r + 1) % n
            origin = (r - number) % n
            step.append(ChunkMessage(r, next_rank, ONE_CHUNK, "reduce", origin))
        steps.append(step)
    return 1, steps


def _ring(n: int) -> tuple[int, ChunkSteps]:
    def step(offset: int, operation: str) -> list[ChunkMessage]:
        """A step in which rank r sends chunk r + offset."""
        sent = []
        for r in range(n):
            next_rank = (r + 1) % n
            first = (r + offset) % n
            chunk = range(first, first + 1)
            sent.append(ChunkMessage(r, next_rank, chunk, operation))
        return sent

    reduce_scatter: ChunkSteps = []
    all_gather: ChunkSteps = []
    for number in range(n - 1):
        reduce_scatter.append(step(-number, "reduce"))
        all_gather.append(step(1 - number, "copy"))
    return n, reduce_scatter + all_gather


def _recursive_doubling(n: int) -> tuple[int, ChunkSteps]:
    power = power_below(n)
    steps: ChunkSteps = []
    for distance in distances(power):
        step = []
        for r in range(power):
            partner = r ^ distance
            step.append(ChunkMessage(r, partner, ONE_CHUNK, "reduce"))
        steps.append(step)
    return 1, _folded(n, 1, steps)


def _halving_doubling(n: int) -> tuple[int, ChunkSteps]:
    power = power_below(n)
    halving: ChunkSteps = []
    doubling: ChunkSteps = []
    blocks = [range(power) for _ in range(power)]  # the chunks that each rank still adds up
    for distance in reversed(distances(power)):
        for r, block in enumerate(blocks):
            keeps_upper_half = r & distance != 0
            blocks[r] = _half(block, keeps_upper_half)
        reducing = []
        copying = []
        for r in range(power):
            partner = r ^ distance
            reducing.append(ChunkMessage(r, partner, blocks[partner], "reduce"))
            copying.append(ChunkMessage(r, partner, blocks[r], "copy"))
        halving.append(reducing)
        doubling.insert(0, copying)
    return power, _folded(n, power, halving + doubling)


def _half(block: range, upper: bool) -> range:
    """One half of a block of chunks."""
    middle = len(block) // 2
    if upper:
        return block[middle:]
    return block[:middle]


def _folded(n: int, num_chunks: int, steps: ChunkSteps) -> ChunkSteps:
    """Steps between the first 2^k ranks, with a step before and one after for the other ranks.

    The step before adds their tensors to those of the first ranks, the one after gives them the
    result.
    """
    power = power_below(n)
    if n == power:
        return steps
    whole = range(num_chunks)
    before = []
    after = []
    for other in range(power, n):
        partner = other - power
        before.append(ChunkMessage(other, partner, whole, "reduce"))
        after.append(ChunkMessage(partner, other, whole, "copy"))
    return [before, *steps, after]


def power_below(n: int) -> int:
    """The largest power of two that is not above n."""
    return 1 << (n.bit_length() - 1)


def distances(n: int) -> list[int]:
    """1, 2, 4 ... below n."""
    return [1 << k for k in range(_log(n))]


# --- costs: steps, and the share of the buffer that is sent one after another, on n ranks ---


def _naive_cost(n: int) -> tuple[int, float]:
    messages = 2 * (n - 1)
    return messages, messages


def _tree_cost(n: int) -> tuple[int, float]:
    steps = 2 * _log(n)
    return steps, steps


def _whole_ring_cost(n: int) -> tuple[int, float]:
    return n - 1, n - 1


def _ring_cost(n: int) -> tuple[int, float]:
    steps = 2 * (n - 1)
    return steps, steps / n


def _doubling_cost(n: int) -> tuple[int, float]:
    doubling_steps = _log(power_below(n))
    steps = doubling_steps + _folding_steps(n)
    return steps, steps


def _halving_cost(n: int) -> tuple[int, float]:
    power = power_below(n)
    steps = 2 * _log(power) + _folding_steps(n)
    sent = 2 * (power - 1) / power + _folding_steps(n)
    return steps, sent


def _folding_steps(n: int) -> int:
    """How many steps `_folded` adds, each of which sends the whole buffer."""
    if n == power_below(n):
        return 0
    return 2


def _log(n: int) -> int:
    """log2(n), rounded up."""
    return (n - 1).bit_length()


ALGORITHMS: dict[str, Algorithm] = {
    "naive": Algorithm(_naive, _naive_cost),
    "whole ring": Algorithm(_whole_ring, _whole_ring_cost),
    "ring": Algorithm(_ring, _ring_cost),
    "pipelined ring": Algorithm(_ring, _ring_cost),
    "halving doubling": Algorithm(_halving_doubling, _halving_cost),
    "recursive doubling": Algorithm(_recursive_doubling, _doubling_cost),
    "tree": Algorithm(_tree, _tree_cost),
}
