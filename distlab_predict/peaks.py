"""What a journal of storages comes to: their peak, by kind and line, and what a GPU reserves.

Called by memory.py, in the process of a rank that is recorded; plain Python, without torch.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from distlab_predict.allocator import Allocator
from distlab_predict.held import Level, Made
from distlab_predict.nodes import Stream

LEVELS = 400  # times at which a picture has the memory


class Change(NamedTuple):
    """A storage gets memory, or loses it.

    Attributes:
        number: of the storage.
        stream: that its memory was taken on.
        size: in bytes; negative when it loses them.
        node: the index of the node that is called next.
    """

    number: int
    stream: Stream
    size: int
    node: int


Replay = Callable[[], Iterator[Change]]  # all changes, from the first one on


def most_reserved(changes: Iterable[Change], is_expandable: bool) -> tuple[int, int]:
    """Bytes that torch's allocator reserves in the end, and those that it needs at its most.

    Args:
        changes: of storages, in order.
        is_expandable: whether the allocator's segments are.
    """
    allocator = Allocator(is_expandable)
    needed = 0
    for number, stream, size, _ in changes:
        if size < 0:
            allocator.give_back(number)
        else:
            allocator.take(number, stream, size)
            needed = max(needed, allocator.held)
    return allocator.reserved, needed


def made_at_peak(replay: Replay, kinds: Sequence[str], lines: Sequence[str]) -> list[Made]:
    """What is there when the memory of each stream is largest, the largest part first.

    Args:
        replay: of the changes of storages.
        kinds, lines: of all storages, by their numbers.
    """
    ends = _changes_to_peak(replay())
    seen: Counter[Stream] = Counter()  # changes of each stream
    sizes: Counter[tuple[str, str]] = Counter()
    storages: Counter[tuple[str, str]] = Counter()
    for number, stream, size, _ in replay():
        if seen[stream] == ends[stream]:
            continue
        seen[stream] += 1
        key = lines[number], kinds[number]
        sizes[key] += size
        storages[key] += _sign(size)
    found = []
    for (line, kind), size in sizes.items():
        if size:
            found.append(Made(line, kind, storages[line, kind], size))
    return sorted(found, key=lambda made: made.num_bytes, reverse=True)


def _sign(number: int) -> int:
    """1 for what is positive, -1 for what is negative, 0 for 0."""
    if number > 0:
        return 1
    if number < 0:
        return -1
    return 0


def _changes_to_peak(changes: Iterable[Change]) -> Counter[Stream]:
    """How many changes of each stream there are until it holds most, for the first time."""
    sizes: Counter[Stream] = Counter()
    largest: Counter[Stream] = Counter()
    seen: Counter[Stream] = Counter()
    ends: Counter[Stream] = Counter()
    for _, stream, size, _ in changes:
        seen[stream] += 1
        sizes[stream] += size
        if sizes[stream] > largest[stream]:
            largest[stream] = sizes[stream]
            ends[stream] = seen[stream]
    return ends


def sizes_by_kind(made: Iterable[Made]) -> dict[str, int]:
    """Bytes of what is there by kind."""
    sizes: Counter[str] = Counter()
    for one in made:
        sizes[one.kind] += one.num_bytes
    return dict(sizes)


def levels_since(begin: int, replay: Replay, kinds: Sequence[str]) -> list[Level]:
    """What is there from a node on, at most LEVELS times.

    Args:
        begin: the index of the node.
        replay: of the changes of storages.
        kinds: of all storages, by their numbers.
    """
    highest = _highest_times(begin, replay())
    sizes: Counter[str] = Counter()
    levels = []
    for time, change in enumerate(replay()):
        sizes[kinds[change.number]] += change.size
        if time in highest:
            levels.append(Level(change.node, dict(sizes)))
    return levels


def _highest_times(begin: int, changes: Iterable[Change]) -> set[int]:
    """In each of LEVELS parts of the nodes after `begin`, the change after which there is most."""
    all_changes = list(changes)
    if not all_changes:
        return set()
    nodes = max(1, all_changes[-1].node - begin + 1)
    highest: dict[int, tuple[int, int]] = {}  # by part of the nodes: bytes, and the change
    total = 0
    for time, change in enumerate(all_changes):
        total += change.size
        if change.node >= begin:
            part = (change.node - begin) * LEVELS // nodes
            highest[part] = max(highest.get(part, (0, 0)), (total, time))
    return {time for _, time in highest.values()}
