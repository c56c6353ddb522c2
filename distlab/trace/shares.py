"""Where the time of each rank went: computing, communicating, waiting for others. Pure functions of a trace's events.

Called by `Trace.shares`; drawn by plotting/shares.py. Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from distlab.trace.events import COMMUNICATING, COMPUTING, Event

Span = tuple[float, float]


@dataclass(frozen=True)
class Shares:
    """Seconds of one rank between the first and the last event of a trace; together they are all of its time.

    Args:
        compute: it computed, and nothing of its own was on its way.
        hidden: it computed while its data were on their way: communication that costs no time.
        communicate: it did not compute, and data were on their way.
        wait: it did not compute, and a partner had not come yet.
        other: none of these: plain Python, or nothing.
    """

    compute: float
    hidden: float
    communicate: float
    wait: float
    other: float

    @property
    def total(self) -> float:
        """All of its time."""
        return self.compute + self.hidden + self.communicate + self.wait + self.other


def shares_of(events: Sequence[Event], rank: int) -> Shares:
    """Where the time of a rank went.

    Runs on: anywhere.
    """
    if not events:
        return Shares(0.0, 0.0, 0.0, 0.0, 0.0)
    whole = [(min(event.start for event in events), max(event.end for event in events))]
    own = [event for event in events if event.rank == rank]
    computing = union((event.start, event.end) for event in own if event.kind in COMPUTING)
    calls = [event for event in own if event.kind in COMMUNICATING]
    moving = union((_moves(event), event.end) for event in calls)
    waiting = union((event.start, _moves(event)) for event in calls)
    idle = without(whole, computing)
    moves, waits = common(idle, moving), without(common(idle, waiting), moving)
    hidden = length(common(computing, moving))
    rest = length(idle) - length(moves) - length(waits)
    return Shares(length(computing) - hidden, hidden, length(moves), length(waits), max(0.0, rest))


def _moves(event: Event) -> float:
    """From when on the data of a call could move."""
    ready = event.start if event.ready is None else event.ready
    return min(max(ready, event.start), event.end) if ready != inf else event.end


def union(spans: Iterable[Span]) -> list[Span]:
    """The same times as spans that do not touch, in order."""
    merged: list[Span] = []
    for start, end in sorted(span for span in spans if span[1] > span[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def common(one: Sequence[Span], other: Sequence[Span]) -> list[Span]:
    """The times that are in both."""
    both = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return union(both)


def without(one: Sequence[Span], other: Sequence[Span]) -> list[Span]:
    """The times of `one` that are not in `other`."""
    ends = [-inf, *(time for span in union(other) for time in span), inf]
    return common(one, list(zip(ends[::2], ends[1::2], strict=True)))


def length(spans: Iterable[Span]) -> float:
    """Seconds in all."""
    return sum(end - start for start, end in spans)
