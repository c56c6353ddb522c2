"""A trace as a file that Perfetto (ui.perfetto.dev) and chrome://tracing open: a process for each rank.

Pure functions, called by `Trace.to_chrome`. Each rank has a track of its calls, one of what is in flight for each call
that overlaps another, and one for each thread with the profiler's own rows. Messages are arrows.

Source: "Trace Event Format", the Chromium project.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from distlab.trace.assemble import Contents
from distlab.trace.events import Event, Message
from distlab.trace.reading import Row

CALLS, FLIGHT, THREADS = 0, 1, 100  # numbers of the tracks; those of threads and of what is in flight count up


def chrome(contents: Contents, ranks: Sequence[int]) -> dict[str, Any]:
    """The file's contents, to be written as JSON. Times are in microseconds."""
    items: list[dict[str, Any]] = []
    tracks: dict[int, tuple[int, int]] = {}
    for rank in ranks:
        items += _names(rank)
        mine = [event for event in contents.events if event.rank == rank]
        placed = dict(_tracks(mine))
        tracks |= {key: (rank, track) for key, track in placed.items()}
        items += [_slice(event, placed[id(event)]) for event in mine]
        items += _threads(rank, contents.rows.get(rank, ()), contents.main.get(rank, -1))
    for number, message in enumerate(contents.messages):
        items += _flow(number, message, tracks)
    return {"traceEvents": items, "displayTimeUnit": "ms"}


def _names(rank: int) -> list[dict[str, Any]]:
    process = {"ph": "M", "pid": rank}
    return [
        {**process, "name": "process_name", "args": {"name": f"rank {rank}"}},
        {**process, "name": "process_sort_index", "args": {"sort_index": rank}},
        {**process, "name": "thread_name", "tid": CALLS, "args": {"name": "calls"}},
        {**process, "name": "thread_sort_index", "tid": CALLS, "args": {"sort_index": CALLS}},
    ]


def _tracks(events: Sequence[Event]) -> Iterator[tuple[int, int]]:
    """The track of each event, by its id(): on one track slices must lie inside of each other or apart."""
    stacks: dict[int, list[float]] = defaultdict(list)
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        track = CALLS if event.blocking else FLIGHT
        while not _fits(stacks[track], event):
            track += 1
        stacks[track].append(event.end)
        yield id(event), track


def _fits(ends: list[float], event: Event) -> bool:
    """Whether an event lies inside of the open slices of a track; those that have ended are taken off."""
    while ends and ends[-1] <= event.start:
        ends.pop()
    return not ends or event.end <= ends[-1]


def _slice(event: Event, track: int) -> dict[str, Any]:
    what = {
        "group": list(event.group),
        "peer": event.peer,
        "tag": event.tag,
        "bytes": event.num_bytes,
        "waiting (µs)": round(event.waiting * 1e6, 3),
        "failed": event.failed,
    }
    name = f"wait for {event.op}" if event.kind == "wait" else event.op
    times = {"ts": event.start * 1e6, "dur": event.seconds * 1e6}
    given = {key: value for key, value in what.items() if value not in (None, [], False, 0.0)}
    return {"ph": "X", "pid": event.rank, "tid": track, "cat": event.kind, "name": name, **times, "args": given}


def _threads(rank: int, rows: Sequence[Row], main: int) -> Iterator[dict[str, Any]]:
    """The profiler's own rows, a track for each thread."""
    for thread in sorted({row.thread for row in rows}):
        name = {"name": "torch, main thread" if thread == main else f"torch, thread {thread}"}
        yield {"ph": "M", "pid": rank, "tid": THREADS + thread, "name": "thread_name", "args": name}
    for row in rows:
        times = {"ts": row.start / 1e3, "dur": (row.end - row.start) / 1e3}
        category = "user_annotation" if row.annotated else "cpu_op"
        yield {"ph": "X", "pid": rank, "tid": THREADS + row.thread, "cat": category, "name": row.name, **times}


def _flow(number: int, message: Message, tracks: Mapping[int, tuple[int, int]]) -> list[dict[str, Any]]:
    """The arrow of a message: from inside of its send's slice to inside of its recv's."""
    if not message.matched:
        return []
    what = {"cat": "message", "name": "message", "id": number}
    ends = []
    for phase, event, time in (("s", message.send, message.left), ("f", message.recv, message.arrived)):
        rank, track = tracks[id(event)]
        inside = min(max(time, event.start), event.end - 1e-9)
        ends.append({**what, "ph": phase, "bp": "e", "pid": rank, "tid": track, "ts": inside * 1e6})
    return ends
