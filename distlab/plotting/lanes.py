"""Events on the lanes of ranks as rectangles: rows for what is in flight, and columns where bars would be too narrow.

Pure functions, called by `scenes`. Lengths are in pixels; y points down; times are in seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from distlab.trace.events import COMPUTING, Event

RANGE = 16  # height of the row of named ranges
THIN, COLUMN = 2.0, 5.0  # a bar is drawn at least this wide; narrower ones that crowd share columns of this width
MOST_ROWS = 3  # of calls in flight; more are drawn on top of each other in one


@dataclass(frozen=True)
class Sizes:
    """Heights of a lane's bars, of a row of calls in flight, and of the room below a lane."""

    bar: float
    row: float
    gap: float


def sizes(ranks: int) -> Sizes:
    """For that many lanes: the more there are, the lower they are."""
    return Sizes(30, 15, 34) if ranks <= 4 else Sizes(26, 14, 26) if ranks <= 8 else Sizes(16, 7, 17)


Box = tuple[float, float, float, float]  # left and right in seconds, top and bottom in pixels


@dataclass
class Lane:
    """The place of one rank: its bars begin at `top`; `rows` are the calls in flight, each row's not overlapping."""

    rank: int
    sizes: Sizes
    top: float = 0.0
    ranges: list[Event] = field(default_factory=list)
    bars: list[Event] = field(default_factory=list)
    rows: list[list[Event]] = field(default_factory=list)
    crowd: int = 0  # how many calls were in flight at once, if that was too many for rows

    @property
    def bottom(self) -> float:
        """Where its last row ends."""
        return self.top + self.sizes.bar + len(self.rows) * self.sizes.row

    @property
    def bar_span(self) -> tuple[float, float]:
        """Top and bottom of its bars."""
        return self.top, self.top + self.sizes.bar

    def row_span(self, place: int) -> tuple[float, float]:
        """Top and bottom of a row of calls in flight."""
        top = self.bar_span[1] + place * self.sizes.row
        return top + 2, top + self.sizes.row

    def spans(self) -> Iterator[tuple[int, tuple[float, float]]]:
        """Top and bottom of each of its events, by the id() of the event."""
        yield from ((id(event), self.bar_span) for event in self.bars)
        for place, row in enumerate(self.rows):
            yield from ((id(event), self.row_span(place)) for event in row)


def lay_out(ranks: Sequence[int], events: Sequence[Event]) -> dict[int, Lane]:
    """A lane for each rank, from the top down, with room between for arrows.

    Args:
        events: those that are seen.
    """
    lanes = {rank: Lane(rank, sizes(len(ranks))) for rank in ranks}
    flying: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind == "range":
            lanes[event.rank].ranges.append(event)
        elif event.blocking:
            lanes[event.rank].bars.append(event)
        else:
            flying[event.rank].append(event)
    top = 0.0
    for rank, lane in lanes.items():
        lane.rows = pack(flying[rank])
        if len(lane.rows) > MOST_ROWS:
            lane.rows, lane.crowd = [flying[rank]], len(lane.rows)
        lane.top = top + (RANGE if lane.ranges else 0)
        top = lane.bottom + lane.sizes.gap
    return lanes


def pack(events: Sequence[Event]) -> list[list[Event]]:
    """As few rows as needed so that the events of a row do not overlap."""
    rows: list[list[Event]] = []
    for event in sorted(events, key=lambda event: event.start):
        row = next((row for row in rows if row[-1].end <= event.start), None)
        if row is None:
            rows.append(row := [])
        row.append(event)
    return rows


def parts(event: Event) -> list[tuple[str, float, float]]:
    """An event as pieces of one look each: look, start and end. A call is cut where it stops to wait."""
    if event.kind in COMPUTING:
        return [(event.kind, event.start, event.end)]
    cut = event.start + event.waiting
    pieces = [("wait", event.start, cut), ("move", cut, event.end)]
    return [piece for piece in pieces if piece[2] > piece[1]] or [("move", event.start, event.end)]


def boxes(
    events: Sequence[Event], span: tuple[float, float], view: tuple[float, float], pixel: float
) -> tuple[dict[str, list[Box]], int]:
    """Rectangles for the bars of one row, by look, and the number of columns that stand for several bars.

    Bars that are wide enough are drawn as they are. Of the others, one that is alone is drawn a little wider; where
    they crowd, each column of pixels shows what share of its time went where.
    """
    found: dict[str, list[Box]] = defaultdict(list)
    crowds: dict[int, list[tuple[str, float, float]]] = defaultdict(list)
    step = COLUMN * pixel
    for event in events:
        for look, start, end in parts(event):
            start, end = max(start, view[0]), min(end, view[1])
            if end - start >= step:
                found[look].append((start, end, *span))
            elif end >= start:
                crowds[int((start - view[0]) / step)].append((look, start, end))
    columns = 0
    for place, pieces in crowds.items():
        left = view[0] + place * step
        if len(pieces) == 1:
            look, start, end = pieces[0]
            found[look].append((start, max(end, start + THIN * pixel), *span))
        else:
            columns += 1
            _stack(found, pieces, (left, left + step), span)
    return found, columns


def _stack(
    found: dict[str, list[Box]],
    pieces: Sequence[tuple[str, float, float]],
    column: tuple[float, float],
    span: tuple[float, float],
) -> None:
    """Add a column of boxes whose heights are the looks' shares of its time, from the bottom up."""
    shares: dict[str, float] = defaultdict(float)
    for look, start, end in pieces:
        shares[look] += end - start
    total = max(sum(shares.values()), column[1] - column[0])
    bottom = span[1]
    for look in sorted(shares):
        top = bottom - shares[look] / total * (span[1] - span[0])
        found[look].append((*column, top, bottom))
        bottom = top
