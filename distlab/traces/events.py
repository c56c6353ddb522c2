"""What a trace consists of: events of the ranks, messages between them, collectives that they did
together.

Plain values, made by read.py and virtual.py, drawn by plotting/timelines.py. Times are in seconds
since the first event of the trace, on one clock.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any

from distlab.wire.recorded import RecordedCall, TorchRow

COMPUTING = ("compute", "forward", "backward", "optimizer", "serve")
COMMUNICATING = ("send", "recv", "collective", "remote")


Part = tuple[str, float, float]  # what goes on, from when to when
Moment = tuple[float, float, set[str]]  # from when to when, and all that goes on


@dataclass(frozen=True)
class Offset:
    """How far a rank's clock is ahead of that of the trace: `seconds`, to within `error` seconds."""

    seconds: float = 0.0
    error: float = 0.0


@dataclass(eq=False)
class Event:
    """What one rank did from `start` to `end`.

    Args:
        rank: in the world.
        kind: "send", "recv" or "collective", whose `end` is when it was complete; "wait" for a call
            that was made before; "compute", "forward", "backward" or "optimizer", many torch calls
            taken together; "remote" for a remote call, "serve" for a function that is run for
            another rank.
        op: what the program called, for example "isend" or "all_reduce".
        start: in seconds.
        end: in seconds.
        blocking: whether the rank's main thread did nothing else meanwhile.
        ready: when the partners that it needs had arrived, so that data could move, in seconds;
            infinite if one never arrived, None if this is not known.
        group: the ranks in the world of the process group.
        peer: the other rank of a send or recv, the root of a collective; None if there is none, or
            it is not known.
        tag: of a send or recv.
        num_bytes: what the rank gave, or received into; None if this is not known.
        failed: whether it raised.
        call: what the rank recorded of it, times as above; None for computation.
    """

    rank: int
    kind: str
    op: str
    start: float
    end: float
    blocking: bool = True
    ready: float | None = None
    group: tuple[int, ...] = ()
    peer: int | None = None
    tag: int | None = None
    num_bytes: int | None = None
    failed: bool = False
    call: RecordedCall | None = field(default=None, repr=False)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start

    @property
    def waiting(self) -> float:
        """Seconds of it in which a partner had not arrived yet, as far as this is known."""
        return 0.0 if self.ready is None else max(0.0, min(self.ready, self.end) - self.start)

    @property
    def parts(self) -> list[Part]:
        """Its pieces, each of one kind, with start and end: a call is "wait" and then "move",
        computation one piece.
        """
        if self.kind in COMPUTING:
            return [(self.kind, self.start, self.end)]
        cut = self.start + self.waiting
        pieces = [("wait", self.start, cut), ("move", cut, self.end)]
        return [piece for piece in pieces if piece[2] > piece[1]] or [
            ("move", self.start, self.end)
        ]

    @property
    def ends(self) -> tuple[int | None, ...]:
        """Source and destination of a message; the root of a collective, if it has one."""
        if self.kind in ("send", "recv", "remote", "serve"):
            return (
                (self.rank, self.peer)
                if self.kind in ("send", "remote")
                else (self.peer, self.rank)
            )
        return () if self.peer is None else (self.peer,)


@dataclass(frozen=True)
class Message:
    """One send and the recv that matched it, or only one of them: it was not received, or nothing
    came.

    A remote call has two: one to the start of the function, and one back from its end; `times` are
    their start and end in seconds. `src` is None for a recv from any rank that got nothing.
    `traced`: whether both ranks were recorded; if not, the other half is not missing but unknown.
    """

    src: int | None
    dst: int
    tag: int
    group: tuple[int, ...]
    num_bytes: int | None
    send: Event | None
    recv: Event | None
    traced: bool = True
    times: tuple[float, float] | None = None

    @property
    def matched(self) -> bool:
        """Whether both halves are there."""
        return self.send is not None and self.recv is not None

    @property
    def left(self) -> float:
        """When its data could leave, in seconds: as soon as both sides were there."""
        if self.times:
            return self.times[0]
        half = self.send or self.recv
        return half.start if half.ready in (None, inf) else half.ready

    @property
    def arrived(self) -> float:
        """When the receiver knew that it had arrived, in seconds; for a message that is not
        matched, its only end.
        """
        return self.times[1] if self.times else (self.recv or self.send).end


@dataclass(frozen=True)
class Collective:
    """One collective of a group: what each rank that took part did, by rank.

    `complete`: whether every rank of the group did, as far as the ranks were recorded.
    """

    op: str
    group: tuple[int, ...]
    events: tuple[Event, ...]
    complete: bool

    @property
    def came(self) -> float | None:
        """When the last rank arrived, for which all others waited; None for one in which they only
        need the root.
        """
        last = max(event.start for event in self.events)
        return last if self.complete and all(event.ready == last for event in self.events) else None


# the rows by rank
Contents = tuple[list[Event], list[Message], list[Collective], dict[int, list[TorchRow]]]


def pack(events: Iterable[Any], most: int | None = None) -> list[list[Any]]:
    """As few rows as possible without overlaps in a row; what does not fit into `most` rows is in
    the last one.

    Args:
        events: events, or whatever else has a `start` and an `end`.
    """
    rows: list[list[Any]] = []
    for event in sorted(events, key=lambda event: event.start):
        row = next((row for row in rows if row[-1].end <= event.start), None)
        if row is None and len(rows) != most:
            rows.append([event])
        else:
            (row or rows[-1]).append(event)
    return rows


def moments(parts: Iterable[Part]) -> Iterator[Moment]:
    """Cut the time of parts, which may overlap, where from then on something else goes on."""
    changes = sorted(
        change for what, start, end in parts for change in ((start, 0, what), (end, 1, what))
    )
    since, going, times_over = 0.0, set(), Counter()
    # at one time, starts come first: what goes on without a gap is not cut
    for time, ends, what in changes:
        times_over[what] += -1 if ends else 1
        if (times_over[what] > 0) != (what in going):
            if going and time > since:
                yield since, time, {*going}
            since = time
            going ^= {what}
