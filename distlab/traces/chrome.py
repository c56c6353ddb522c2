"""A trace as a file that Perfetto (ui.perfetto.dev) and chrome://tracing open: a process for each rank.

Pure functions, called by `Trace.to_chrome`. Each rank has a track of its calls, a further one for each call that
overlaps another or is in flight, and one for each thread with the profiler's own rows. Messages are arrows.

Source: "Trace Event Format", the Chromium project.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distlab.traces.events import Event, pack

if TYPE_CHECKING:
    from distlab.traces.trace import Trace

THREADS = 100  # number of the first thread's track; those of calls count up from 0, where those that block are
Item = dict[str, Any]


def chrome(trace: Trace) -> Item:
    """The file's contents, to be written as JSON. Times are in microseconds."""
    items: list[Item] = []
    tracks: dict[Event, int] = {}
    for rank in trace.ranks:
        items += [_name("process", rank, 0, f"rank {rank}"), _name("thread", rank, 0, "calls")]
        items.append(_name("thread", rank, THREADS, "torch, main thread"))
        for row in trace.rows.get(rank, ()):
            category = "user_annotation" if row.annotated else "cpu_op"
            items.append(_slice(rank, THREADS + row.thread, category, row.name, row.start, row.end))
        own = [event for event in trace.events if event.rank == rank]
        calls = pack([event for event in own if event.blocking]) + pack([event for event in own if not event.blocking])
        tracks |= {event: track for track, row in enumerate(calls) for event in row}
    for event, track in tracks.items():
        name = f"wait for {event.op}" if event.kind == "wait" else event.op
        items.append(_slice(event.rank, track, event.kind, name, event.start, event.end) | {"args": _details(event)})
    for number, message in enumerate(trace.messages):
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
