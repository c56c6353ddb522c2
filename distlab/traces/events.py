"""What a trace consists of: events of ranks, messages between them, collectives of several ranks.

Plain values, made by read.py and virtual.py, drawn by plotting/timelines.py. Runs anywhere. Times
are in seconds since the first event of the trace, on one clock.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from distlab.wire.recorded import RecordedCall, TorchRow

COMPUTING_KINDS = ("compute", "forward", "backward", "optimizer", "serve")
COMMUNICATING_KINDS = ("send", "recv", "collective", "remote")

Part = tuple[str, float, float]  # what goes on, from when to when
Moment = tuple[float, float, set[str]]  # from when to when, and all that goes on


@dataclass(frozen=True)
class Offset:
    """How far a rank's clock is ahead of that of the trace: `seconds`, give or take `error`."""

    seconds: float = 0.0
    error: float = 0.0


@dataclass(eq=False)
class Event:
    """What one rank did from `start` to `end`.

    Attributes:
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

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start

    @property
    def waiting(self) -> float:
        """Seconds of it in which a partner had not arrived yet, as far as this is known."""
        if self.ready is None:
            return 0.0
        return max(0.0, min(self.ready, self.end) - self.start)

    @property
    def parts(self) -> list[Part]:
        """Its pieces: computation is one of its kind, a call is "wait" and then "move"."""
        if self.kind in COMPUTING_KINDS:
            return [(self.kind, self.start, self.end)]
        ready = self.start + self.waiting
        pieces = []
        if ready > self.start:
            pieces.append(("wait", self.start, ready))
        if self.end > ready or not pieces:
            pieces.append(("move", ready, self.end))
        return pieces

    @property
    def ends(self) -> tuple[int | None, ...]:
        """Source and destination of a message, or the root of a collective that has one."""
        if self.kind in ("send", "remote"):
            return self.rank, self.peer
        if self.kind in ("recv", "serve"):
            return self.peer, self.rank
        if self.peer is None:
            return ()
        return (self.peer,)


@dataclass(eq=False)
class CallEvent(Event):
    """A call that communicates, from a rank's record.

    Attributes:
        call: what the rank recorded of it, with times as those of the event.
    """

    call: RecordedCall = field(kw_only=True, repr=False)


@dataclass(frozen=True)
class Message:
    """One send and the recv that matched it, or one of them that nothing matched.

    A remote call has two messages: one to the start of the function, and one back from its end.

    Attributes:
        src: a rank; None for a recv from any rank that got nothing.
        dst: a rank.
        tag: 0 for a remote call.
        group: the ranks of the process group; () for a remote call.
        num_bytes: its size; None if this is not known.
        send: the sender's event; None if no rank sent it.
        recv: the receiver's event; None if it was not received.
        traced: whether both ranks were recorded; if not, the other half is not missing but unknown.
        times: of a remote call, when the message left and arrived, in seconds.
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
    def halves(self) -> list[Event]:
        """The send and the recv, as far as they are there; at least one of them is."""
        return [half for half in (self.send, self.recv) if half is not None]

    @property
    def left(self) -> float:
        """When its data could leave, in seconds: as soon as both sides were there."""
        if self.times is not None:
            return self.times[0]
        first = self.halves[0]
        if first.ready is None or first.ready == inf:
            return first.start
        return first.ready

    @property
    def arrived(self) -> float:
        """When the receiver knew that it had arrived, in seconds; unmatched, its half's end."""
        if self.times is not None:
            return self.times[1]
        return self.halves[-1].end


@dataclass(frozen=True)
class Collective:
    """One collective of a group.

    Attributes:
        op: what the first of the ranks called.
        group: the ranks of the group.
        events: what each rank that took part did, by rank.
        complete: whether every rank of the group took part, as far as the ranks were recorded.
    """

    op: str
    group: tuple[int, ...]
    events: tuple[Event, ...]
    complete: bool

    @property
    def came(self) -> float | None:
        """When the last rank arrived, if all others waited for it.

        None if it is not complete, and for one in which ranks need only the root.
        """
        if not self.complete:
            return None
        last = max(event.start for event in self.events)
        all_waited = all(event.ready == last for event in self.events)
        return last if all_waited else None


class Contents(NamedTuple):
    """What a trace holds; see Trace.

    Attributes:
        events: in the order in which they began.
        messages: in the order in which they left.
        collectives: in the order in which they began.
        rows: the profiler's own, by rank.
    """

    events: list[Event]
    messages: list[Message]
    collectives: list[Collective]
    rows: dict[int, list[TorchRow]]


def pack_into_rows(events: Iterable[Any], most: int | None = None) -> list[list[Any]]:
    """As few rows as possible without overlaps in a row.

    Args:
        events: events, or whatever else has a `start` and an `end`.
        most: how many rows there may be: what does not fit is in the last one. None for any number.
    """
    rows: list[list[Any]] = []
    for event in sorted(events, key=lambda event: event.start):
        free = [row for row in rows if row[-1].end <= event.start]
        if free:
            free[0].append(event)
        elif len(rows) == most:
            rows[-1].append(event)
        else:
            rows.append([event])
    return rows


def moments(parts: Iterable[Part]) -> Iterator[Moment]:
    """Cut the time of parts, which may overlap, where from then on something else goes on."""
    # at one time, starts come first: what goes on without a gap is not cut
    begins = 0
    ends = 1
    changes = []
    for what, start, end in parts:
        changes.append((start, begins, what))
        changes.append((end, ends, what))
    changes.sort()

    since = 0.0
    going: set[str] = set()
    parts_of: Counter[str] = Counter()  # how many parts of a kind go on
    for time, change, what in changes:
        if change == begins:
            parts_of[what] += 1
        else:
            parts_of[what] -= 1
        goes_on = parts_of[what] > 0
        went_on = what in going
        if goes_on == went_on:
            continue
        if going and time > since:
            yield since, time, {*going}
        since = time
        if goes_on:
            going.add(what)
        else:
            going.remove(what)
