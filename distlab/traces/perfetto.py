"""A trace as a file for Perfetto (ui.perfetto.dev), a viewer of traces in a browser.

Called by Trace.to_chrome on the notebook's kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from distlab.traces.events import Event, pack_into_rows
from distlab.wire.recorded import TorchRow

if TYPE_CHECKING:
    from distlab.traces.trace import Trace

# in a file for Perfetto, number of the first thread's track; those of calls count up from 0
THREADS = 100
DETAILS = ("group", "peer", "tag", "num_bytes", "waiting", "failed")  # of an event in such a file


def perfetto_items(trace: Trace) -> Iterator[dict[str, Any]]:
    """What a file for Perfetto contains, with times in microseconds: a process for each rank.

    Each rank has a track for its calls, further ones for calls that overlap others or are in
    flight, and one for each thread with the profiler's own rows. Messages are arrows. Source:
    "Trace Event Format", the Chromium project.
    """
    tracks: dict[Event, int] = {}
    for rank in trace.ranks:
        yield {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}}
        for row in trace.rows.get(rank, ()):
            yield _slice(rank, THREADS + row.thread, row.name, row)
        tracks |= _tracks([event for event in trace.events if event.rank == rank])
    for event, track in tracks.items():
        name = f"wait for {event.op}" if event.kind == "wait" else event.op
        args = {detail: getattr(event, detail) for detail in DETAILS}
        yield _slice(event.rank, track, name, event) | {"args": args}
    matched = [message for message in trace.messages if message.matched]
    for number, message in enumerate(matched):
        send, recv = message.halves
        yield _end_of_arrow("s", number, send, tracks[send], message.left)
        yield _end_of_arrow("f", number, recv, tracks[recv], message.arrived)


def _tracks(events: Sequence[Event]) -> dict[Event, int]:
    """The track of each event of a rank: those that do not block are below those that do."""
    blocking = pack_into_rows(event for event in events if event.blocking)
    in_flight = pack_into_rows(event for event in events if not event.blocking)
    tracks = {}
    for track, row in enumerate(blocking + in_flight):
        for event in row:
            tracks[event] = track
    return tracks


def _end_of_arrow(phase: str, number: int, event: Event, track: int, time: float) -> dict[str, Any]:
    """One end of a message's arrow, which has to be inside the slice of its event."""
    inside = min(max(time, event.start), event.end - 1e-9)
    arrow = {"ph": phase, "bp": "e", "cat": "message", "name": "message", "id": number}
    return {**arrow, "pid": event.rank, "tid": track, "ts": inside * 1e6}


def _slice(rank: int, track: int, name: str, what: Event | TorchRow) -> dict[str, Any]:
    times = {"ts": what.start * 1e6, "dur": (what.end - what.start) * 1e6}
    return {"ph": "X", "pid": rank, "tid": track, "name": name, **times}
