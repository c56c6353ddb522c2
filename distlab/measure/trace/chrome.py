"""A trace as a file that Perfetto (ui.perfetto.dev) and chrome://tracing open: a process for each rank.

Pure functions, called by `Trace.to_chrome`. Each rank has a track of its calls, one of what is in flight for each call
that overlaps another, and one for each thread with the profiler's own rows. Messages are arrows.

Source: "Trace Event Format", the Chromium project.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from distlab.measure.trace.events import Event, Message
from distlab.wire.recorded import Row

CALLS, FLIGHT, THREADS = 0, 1, 100  # numbers of tracks; those of threads are added, and what is in flight counts up
Item = dict[str, Any]


def chrome(
    ranks: Sequence[int], events: Sequence[Event], messages: Sequence[Message], rows: Mapping[int, Sequence[Row]]
) -> Item:
    """The file's contents, to be written as JSON. Times are in microseconds."""
    items: list[Item] = []
    tracks: dict[Event, int] = {}
    for rank in ranks:
        items += [_name("process", rank, 0, f"rank {rank}"), _name("thread", rank, CALLS, "calls")]
        items.append(_name("thread", rank, THREADS, "torch, main thread"))
        for row in rows.get(rank, ()):
            category = "user_annotation" if row.annotated else "cpu_op"
            items.append(_slice(rank, THREADS + row.thread, category, row.name, row.start, row.end))
        tracks |= _tracks([event for event in events if event.rank == rank])
    for event, track in tracks.items():
        name = f"wait for {event.op}" if event.kind == "wait" else event.op
        items.append(_slice(event.rank, track, event.kind, name, event.start, event.end) | {"args": _details(event)})
    for number, message in enumerate(messages):
        if message.matched:
            for phase, event, time in (("s", message.send, message.left), ("f", message.recv, message.arrived)):
                inside = min(max(time, event.start), event.end - 1e-9)
                what = {"ph": phase, "bp": "e", "cat": "message", "name": "message", "id": number}
                items.append({**what, "pid": event.rank, "tid": tracks[event], "ts": inside * 1e6})
    return {"traceEvents": items, "displayTimeUnit": "ms"}


def _name(what: str, rank: int, track: int, name: str) -> Item:
    return {"ph": "M", "pid": rank, "tid": track, "name": f"{what}_name", "args": {"name": name}}


def _slice(rank: int, track: int, category: str, name: str, start: float, end: float) -> Item:
    times = {"ts": start * 1e6, "dur": (end - start) * 1e6}
    return {"ph": "X", "pid": rank, "tid": track, "cat": category, "name": name, **times}


def _details(event: Event) -> Item:
    what = {"group": event.group, "peer": event.peer, "tag": event.tag, "bytes": event.num_bytes}
    return {**what, "waiting (µs)": round(event.waiting * 1e6, 3), "failed": event.failed}


def _tracks(events: Sequence[Event]) -> dict[Event, int]:
    """The track of each event: on one track slices must lie inside of each other or apart."""
    placed: dict[Event, int] = {}
    stacks: dict[int, list[float]] = defaultdict(list)  # by track: the ends of the slices that are open
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        track = CALLS if event.blocking else FLIGHT
        while not _fits(stacks[track], event):
            track += 1
        stacks[track].append(event.end)
        placed[event] = track
    return placed


def _fits(ends: list[float], event: Event) -> bool:
    """Whether an event lies inside of the open slices of a track; those that have ended are taken off."""
    while ends and ends[-1] <= event.start:
        ends.pop()
    return not ends or event.end <= ends[-1]
