"""A trace as a file for Perfetto (ui.perfetto.dev), a viewer of traces in a browser.

Called by Trace.to_chrome on the notebook's kernel. Source: "Trace Event Format", the Chromium
project.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from distlab.traces.events import Event, Message, pack_into_rows
from distlab.wire.recorded import TorchRow

THREADS = 100  # the track of a rank's first thread; those of calls count up from 0
DETAILS = ("group", "peer", "tag", "num_bytes", "waiting", "failed")  # of an event
MICROSECONDS = 1e6  # of a second

PerfettoItem = dict[str, Any]  # a slice, one end of an arrow, or a name, as the format has it


def perfetto_items(
    ranks: Sequence[int],
    events: Sequence[Event],
    messages: Sequence[Message],
    rows: Mapping[int, Sequence[TorchRow]],
) -> Iterator[PerfettoItem]:
    """What a file for Perfetto contains, with times in microseconds: a process for each rank.

    Each rank has a track for its calls, further ones for calls that overlap others or are in
    flight, and one for each thread with the profiler's own rows. Messages are arrows.

    Args:
        ranks: those that were recorded.
        events: what they did.
        messages: of which those with both halves become arrows.
        rows: the profiler's, by rank.
    """
    tracks: dict[Event, int] = {}
    for rank in ranks:
        yield {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}}
        for row in rows.get(rank, ()):
            yield _slice(rank, THREADS + row.thread, row.name, row)
        events_of_rank = [event for event in events if event.rank == rank]
        tracks |= _tracks(events_of_rank)
    for event, track in tracks.items():
        yield _slice_of_event(event, track)
    number = 0
    for message in messages:
        if message.matched:
            send, recv = message.halves
            yield _end_of_arrow("s", number, send, tracks[send], message.left)
            yield _end_of_arrow("f", number, recv, tracks[recv], message.arrived)
            number += 1


def _tracks(events: Sequence[Event]) -> dict[Event, int]:
    """The track of each event of a rank: those that do not block are below those that do."""
    blocking = [event for event in events if event.blocking]
    in_flight = [event for event in events if not event.blocking]
    tracks = {}
    for track, row in enumerate(pack_into_rows(blocking) + pack_into_rows(in_flight)):
        for event in row:
            tracks[event] = track
    return tracks


def _slice_of_event(event: Event, track: int) -> PerfettoItem:
    name = event.op
    if event.kind == "wait":
        name = f"wait for {event.op}"
    item = _slice(event.rank, track, name, event)
    item["args"] = {detail: getattr(event, detail) for detail in DETAILS}
    return item


def _slice(rank: int, track: int, name: str, what: Event | TorchRow) -> PerfettoItem:
    return {
        "ph": "X",
        "pid": rank,
        "tid": track,
        "name": name,
        "ts": what.start * MICROSECONDS,
        "dur": (what.end - what.start) * MICROSECONDS,
    }


def _end_of_arrow(phase: str, number: int, event: Event, track: int, time: float) -> PerfettoItem:
    """One end of a message's arrow, which has to be inside the slice of its event."""
    not_too_early = max(time, event.start)
    inside = min(not_too_early, event.end - 1e-9)
    return {
        "ph": phase,
        "bp": "e",
        "cat": "message",
        "name": "message",
        "id": number,
        "pid": event.rank,
        "tid": track,
        "ts": inside * MICROSECONDS,
    }
