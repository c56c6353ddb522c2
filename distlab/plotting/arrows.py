"""Messages as arrows between the lanes of ranks: one each, or a thicker one for several where they would crowd.

Pure functions, called by `scenes`. Times are in seconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distlab.plotting.lanes import Lane
from distlab.trace.events import Message

CROSSINGS, TOGETHER = 48, 20  # arrows that may pass between two lanes before they are taken together, and after


@dataclass(frozen=True)
class Arrow:
    """From (left, tail) to (arrived, head), of `src`'s colour; it stands for messages of `sizes` bytes."""

    src: int
    dst: int
    left: float
    tail: float
    arrived: float
    head: float
    sizes: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many messages it stands for."""
        return len(self.sizes)


def arrows(messages: Sequence[Message], lanes: Mapping[int, Lane], view: tuple[float, float]) -> list[Arrow]:
    """An arrow for each message of the view, or for several of the same two ranks that left close to each other."""
    places = {rank: place for place, rank in enumerate(lanes)}
    spans = {key: span for lane in lanes.values() for key, span in lane.spans()}
    seen = [m for m in messages if m.matched and m.src != m.dst and id(m.send) in spans and id(m.recv) in spans]
    seen = [m for m in seen if m.arrived >= view[0] and m.left <= view[1]]
    crossings: Counter[int] = Counter()
    for message in seen:
        first, last = sorted((places[message.src], places[message.dst]))
        crossings.update(range(first, last))
    worst = max(crossings.values(), default=0)
    if worst <= CROSSINGS:
        return [_arrow([message], places, spans) for message in seen]
    # as many slices of time as leave the busiest gap with about as many arrows as it can bear
    slices = max(1, TOGETHER // _pairs_at_worst(seen, places, crossings))
    groups: dict[tuple, list[Message]] = defaultdict(list)
    for message in seen:
        when = min(slices - 1, max(0, int((message.left - view[0]) / (view[1] - view[0]) * slices)))
        groups[message.src, message.dst, when].append(message)
    return [_arrow(together, places, spans) for together in groups.values()]


def _pairs_at_worst(messages: Sequence[Message], places: Mapping[int, int], crossings: Counter[int]) -> int:
    """How many pairs of ranks have messages through the busiest gap."""
    gap = crossings.most_common(1)[0][0]
    ends = {(places[m.src], places[m.dst]) for m in messages}
    return sum(min(pair) <= gap < max(pair) for pair in ends)


def _arrow(messages: Sequence[Message], places: Mapping[int, int], spans: Mapping[int, tuple[float, float]]) -> Arrow:
    """One arrow, that of the message in the middle: from the sender's bar to the edge of the receiver's."""
    one = messages[len(messages) // 2]
    top, bottom = spans[id(one.send)]
    upper, lower = spans[id(one.recv)]
    head = upper if places[one.src] < places[one.dst] else lower
    sizes = tuple(message.num_bytes for message in messages)
    return Arrow(one.src, one.dst, one.left, (top + bottom) / 2, one.arrived, head, sizes)
