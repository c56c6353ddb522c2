"""What a trace comes to: a table of its calls, and where the time of each rank went. Pure functions of its events.

Called by `Trace.table` and `Trace.shares`; `plotting.time_shares` draws the shares. Times are in seconds.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from distlab.measure.tables import Table
from distlab.measure.trace.events import COMMUNICATING, COMPUTING, Event
from distlab.plotting.units import format_seconds

MOST_ROWS = 24  # that are shown
HEADS = ("op", "group", "peers", "bytes", "calls", "total", "waiting", "median")


def tabulate(events: Sequence[Event], ranks: Sequence[int], title: str) -> Table:
    """Add up events that are alike, those that took longest first: the same op, group, partners and bytes."""
    alike: dict[tuple, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind in COMMUNICATING:
            alike[event.op, event.group, event.ends, event.num_bytes].append(event)
        elif event.kind in COMPUTING:
            alike[event.kind, (), (), None].append(event)
    longest = sorted(alike.items(), key=lambda found: -sum(event.seconds for event in found[1]))
    rows = []
    for (op, group, ends, num_bytes), found in longest[:MOST_ROWS]:
        seconds = [event.seconds for event in found]
        times = (sum(seconds), sum(event.waiting for event in found), statistics.median(seconds))
        members = "all" if group == tuple(ranks) else ", ".join(map(str, group))
        peers = " → ".join("any" if peer is None else str(peer) for peer in ends)
        peers = f"root {peers}" if len(ends) == 1 else peers
        size = "" if num_bytes is None else f"{num_bytes:,}"
        shown = (format_seconds(time).strip() for time in times)
        rows.append((op, members, peers, size, f"{len(found):,}", *shown))
    left = len(longest) - MOST_ROWS
    notes = (f"and {left} more rows; every call is in .events of the trace",) if left > 0 else ()
    return Table(title, HEADS, tuple(rows), "lllrrrrr", notes)


class Shares(NamedTuple):
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


def shares_of(events: Sequence[Event], rank: int) -> Shares:
    """Where the time of a rank went.

    Runs on: anywhere.
    """
    changes: list[tuple[float, str, int]] = []
    for event in events:
        if event.rank == rank and event.kind in (*COMPUTING, *COMMUNICATING):
            for part, start, end in event.parts:
                changes += [(start, part, 1), (end, part, -1)]
    going: Counter[str] = Counter()  # what the rank does at a time, and how often
    seconds: Counter[str] = Counter()
    last = min((event.start for event in events), default=0.0)
    over = max((event.end for event in events), default=0.0)
    for time, part, change in [*sorted(changes), (over, "", 0)]:
        seconds[_share(going)] += time - last
        going[part] += change
        last = time
    return Shares(*(seconds[name] for name in Shares._fields))


def _share(going: Counter[str]) -> str:
    if any(going[kind] for kind in COMPUTING):
        return "hidden" if going["move"] else "compute"
    return "communicate" if going["move"] else "wait" if going["wait"] else "other"
