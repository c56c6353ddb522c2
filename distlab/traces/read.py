"""Turns what the ranks recorded into a trace: calls with their ends, computation, and which calls
belong together.

Pure functions, called by notebook/tracing.py. Runs on the notebook's kernel.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf

from distlab.traces.computing import computation_of
from distlab.traces.ends import find_ends, find_waits
from distlab.traces.events import Contents, Event, Offset
from distlab.traces.matching import match_collectives, match_messages, match_remote
from distlab.wire.messages import REMOTE, SERVED
from distlab.wire.recorded import Recorded, RecordedCall, TorchRow

Clock = Callable[[float], float]  # from ns of a rank's clock to seconds of the trace


def read(recorded: Mapping[int, Recorded], offsets: Mapping[int, Offset] | None = None) -> Contents:
    """Put together what each rank recorded, by rank, on the notebook's clock; the first event
    begins at 0.
    """
    ahead = {rank: round(1e9 * offset.seconds) for rank, offset in (offsets or {}).items()}
    starts = [
        i.start - ahead.get(rank, 0)
        for rank, own in recorded.items()
        for i in (*own.rows, *own.calls)
    ]
    zero = min(starts, default=0)
    rows: dict[int, list[TorchRow]] = {}
    calls: list[Event] = []
    computation: list[Event] = []

    for rank, own in recorded.items():

        def clock(time: float, began: float = zero + ahead.get(rank, 0)) -> float:
            return (time - began) / 1e9

        rows[rank] = rows_of(own, clock)
        main = [row for row in rows[rank] if row.thread == 0]
        of_rank = sorted(
            (event_of(rank, call, clock) for call in own.calls), key=lambda event: event.start
        )
        find_ends(
            of_rank, [row for row in rows[rank] if row.name.startswith("gloo:") and row.thread != 0]
        )
        find_waits(of_rank, main)
        calls += of_rank
        computation += computation_of(rank, main, of_rank)
    messages = sorted(
        [*match_messages(calls, recorded), *match_remote(calls)], key=lambda message: message.left
    )
    collectives = match_collectives(calls, recorded)
    last = max((row.end for of_rank in rows.values() for row in of_rank), default=0.0)
    waits = []
    for event in calls:
        if event.end == inf:
            event.end = max(last, event.start)
        waits += [
            replace(event, kind="wait", start=s, end=e, blocking=True) for s, e in event.call.waits
        ]
    events = sorted([*calls, *waits, *computation], key=lambda event: (event.start, event.rank))
    return events, messages, collectives, rows


# --- the calls of one rank ---


def rows_of(recorded: Recorded, clock: Clock) -> list[TorchRow]:
    """The profiler's rows in the order of their starts, outer ones first."""
    rows = [row._replace(start=clock(row.start), end=clock(row.end)) for row in recorded.rows]
    return sorted(rows, key=lambda row: (row.start, -row.end))


def event_of(rank: int, recorded: RecordedCall, clock: Clock) -> Event:
    """A call as an event; its end is infinite if this rank never knew that it was complete."""
    waits = [(clock(start), clock(end)) for start, end in recorded.waits]
    call = replace(
        recorded, start=clock(recorded.start), posted=clock(recorded.posted), waits=waits
    )
    kind, op, tag = (
        {REMOTE: "remote", SERVED: "serve"}.get(call.method, "collective"),
        call.op,
        None,
    )
    if call.method in ("send", "recv", "recv_anysource"):
        kind, tag = call.method[:4], call.tag
        op = kind if call.blocking else f"i{kind}"
    end, size = (
        clock(recorded.end) if recorded.end else inf,
        None if kind in ("remote", "serve") else call.num_bytes,
    )
    what = {
        "group": call.group[2],
        "peer": call.peer,
        "tag": tag,
        "num_bytes": size,
        "failed": call.failed,
    }
    # a function that is served does wait for it
    blocking = call.blocking and not (kind == "remote" and call.elsewhere)
    return Event(rank, kind, op, call.start, end, blocking, call=call, **what)
