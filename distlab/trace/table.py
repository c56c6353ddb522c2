"""What a trace comes to, as a table: each kind of call with its group, partners, bytes, number and times.

Pure functions, called by `Trace.table`.
"""

from __future__ import annotations

import html
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from distlab.timing import format_seconds
from distlab.trace.events import COMMUNICATING, COMPUTING, Event

MOST_ROWS = 24  # that are shown; all of them are in `Table.rows`
HEADS = ("op", "group", "peers", "bytes", "calls", "total", "waiting", "median")


@dataclass(frozen=True)
class Row:
    """Calls that are alike, of all ranks together.

    Args:
        op: what was called; or "compute", "forward", "backward", "optimizer".
        group: the ranks of the process group; empty for computation.
        peers: (source, destination) of a message, (root,) of a collective that has one; empty for others.
        num_bytes: of one call; None when it is not known, or does not apply.
        seconds: of each call, on each rank.
        waiting: seconds of them all in which a partner had not come.
    """

    op: str
    group: tuple[int, ...]
    peers: tuple[int | None, ...]
    num_bytes: int | None
    seconds: tuple[float, ...]
    waiting: float

    @property
    def calls(self) -> int:
        """How many they are."""
        return len(self.seconds)

    @property
    def total(self) -> float:
        """Their seconds, added up over the ranks."""
        return sum(self.seconds)

    @property
    def median(self) -> float:
        """The seconds of one."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Table:
    """Rows, those that took longest first. Shown as text or HTML."""

    rows: tuple[Row, ...]
    ranks: tuple[int, ...]

    def __repr__(self) -> str:
        cells = [HEADS, *(_cells(row, self.ranks) for row in self.rows[:MOST_ROWS])]
        widths = [max(len(line[i]) for line in cells) for i in range(len(HEADS))]
        lines = []
        for line in cells:
            padded = (c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
            lines.append("  ".join(padded).rstrip())
        return "\n".join([*lines, *self._rest()])

    def _repr_html_(self) -> str:
        def line(cells: Sequence[str], tag: str) -> str:
            sides = ("left" if i < 3 else "right" for i in range(len(cells)))
            body = (
                f'<{tag} style="text-align:{s}">{html.escape(c)}</{tag}>' for c, s in zip(cells, sides, strict=True)
            )
            return f"<tr>{''.join(body)}</tr>"

        body = "".join(line(_cells(row, self.ranks), "td") for row in self.rows[:MOST_ROWS])
        rest = "".join(f"<p>{html.escape(text)}</p>" for text in self._rest())
        return f"<table><thead>{line(HEADS, 'th')}</thead><tbody>{body}</tbody></table>{rest}"

    def _rest(self) -> list[str]:
        left = len(self.rows) - MOST_ROWS
        return [f"and {left} more rows, in .rows"] if left > 0 else []


def tabulate(events: Sequence[Event], ranks: Sequence[int]) -> Table:
    """Add up events that are alike: the same op, group, partners and bytes."""
    alike: dict[tuple, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind in COMMUNICATING:
            alike[event.op, event.group, _peers(event), event.num_bytes].append(event)
        elif event.kind in COMPUTING:
            alike[event.kind, (), (), None].append(event)
    rows = [
        Row(*key, tuple(event.seconds for event in found), sum(event.waiting for event in found))
        for key, found in alike.items()
    ]
    return Table(tuple(sorted(rows, key=lambda row: -row.total)), tuple(ranks))


def _peers(event: Event) -> tuple[int | None, ...]:
    if event.kind == "send":
        return (event.rank, event.peer)
    if event.kind == "recv":
        return (event.peer, event.rank)
    return () if event.peer is None else (event.peer,)


def _cells(row: Row, ranks: Sequence[int]) -> tuple[str, ...]:
    group = "all" if row.group == tuple(ranks) else ", ".join(map(str, row.group))
    peers = " → ".join("any" if peer is None else str(peer) for peer in row.peers)
    if len(row.peers) == 1:
        peers = f"root {peers}"
    num_bytes = "" if row.num_bytes is None else f"{row.num_bytes:,}"
    times = (format_seconds(seconds).strip() for seconds in (row.total, row.waiting, row.median))
    return row.op, group, peers, num_bytes, f"{row.calls:,}", *times
