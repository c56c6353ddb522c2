"""From what the ranks recorded to the contents of a trace: pure functions, called by trace/__init__.py.

Runs on the notebook's kernel.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from distlab.trace.blocks import blocks_of
from distlab.trace.clocks import Offset
from distlab.trace.events import Collective, Event, Message
from distlab.trace.matching import Pair, match_collectives, match_messages
from distlab.trace.reading import COLUMNS, Call, Row, calls_of, rows_of


@dataclass(frozen=True)
class Contents:
    """What a trace holds. `rows` are the profiler's own, by rank, in ns of the same clock."""

    events: list[Event] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    rows: dict[int, list[Row]] = field(default_factory=dict)
    main: dict[int, int] = field(default_factory=dict)  # thread of the cells, by rank


def assemble(recorded: Mapping[int, Mapping[str, Any]], offsets: Mapping[int, Offset]) -> Contents:
    """Put together what each rank recorded, by rank, on the clock of a rank without an offset."""
    clocks = {rank: offsets.get(rank, Offset()) for rank in recorded}
    zero = _first(recorded, clocks)
    rows = {rank: rows_of(told, clocks[rank], zero) for rank, told in recorded.items()}
    calls = [call for rank, told in recorded.items() for call in calls_of(rank, told, rows[rank], clocks[rank], zero)]
    pairs = match_messages(calls, recorded)
    groups = match_collectives(calls, recorded)
    last = max((row.end for of_rank in rows.values() for row in of_rank), default=0)
    found = {id(call): _event(call, last) for call in calls}
    events = list(found.values())
    for call in calls:
        events += [_wait(call, start, end) for start, end in call.waits]
    for rank, told in recorded.items():
        main = [row for row in rows[rank] if row.thread == told["main"]]
        blocks, ranges = blocks_of(main, [call for call in calls if call.rank == rank])
        events += [Event(rank, block.kind, block.op, block.start / 1e9, block.end / 1e9) for block in blocks]
        events += [Event(rank, "range", row.name, row.start / 1e9, row.end / 1e9) for row in ranges]
    events.sort(key=lambda event: (event.start, event.rank))
    messages = sorted((_message(pair, found) for pair in pairs), key=lambda message: message.left)
    collectives = [_collective(together, complete, found) for together, complete in groups]
    return Contents(events, messages, collectives, rows, {rank: told["main"] for rank, told in recorded.items()})


def _first(recorded: Mapping[int, Mapping[str, Any]], clocks: Mapping[int, Offset]) -> int:
    """When the first event began, in ns of the trace's clock."""
    starts = []
    for rank, told in recorded.items():
        numbers = array("q")
        numbers.frombytes(told["rows"])
        times = [*numbers[2::COLUMNS], *(call["start"] for call in told["calls"] if call["start"] >= 0)]
        starts += [clocks[rank].correct(told["begin"] + min(times))] if times else []
    return min(starts, default=0)


def _seconds(time: float | None) -> float | None:
    return time if time in (None, inf) else time / 1e9


def _event(call: Call, last: int) -> Event:
    end = last if call.end is None else call.end
    times = {"start": call.start / 1e9, "end": max(end, call.start) / 1e9, "ready": _seconds(call.ready)}
    what = {"group": call.group, "peer": call.peer, "tag": call.tag, "num_bytes": call.num_bytes}
    return Event(call.rank, call.kind, call.op, **times, **what, blocking=call.blocking, failed=call.failed)


def _wait(call: Call, start: int, end: int) -> Event:
    what = {"group": call.group, "peer": call.peer, "tag": call.tag, "num_bytes": call.num_bytes}
    ready = _seconds(call.ready)
    return Event(call.rank, "wait", call.op, start / 1e9, end / 1e9, ready=ready, failed=call.failed, **what)


def _message(pair: Pair, events: Mapping[int, Event]) -> Message:
    half = pair.send or pair.recv
    src, dst = (half.rank, half.peer) if half.kind == "send" else (half.peer, half.rank)
    send, recv = (events[id(call)] if call is not None else None for call in (pair.send, pair.recv))
    return Message(src, dst, half.tag, half.group, half.num_bytes or 0, send, recv, pair.traced)


def _collective(calls: list[Call], complete: bool, events: Mapping[int, Event]) -> Collective:
    op = calls[0].op
    return Collective(op, calls[0].group, tuple(events[id(call)] for call in calls), complete)
