"""Turns what the ranks recorded into a trace: calls with their ends, computation, their partners.

Called by notebook/tracing.py. Runs on the notebook's kernel. The events of a rank are made here
from its own record (ends.py, computing.py); then matching.py finds which of them belong together,
and fills in what only the partners knew.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf

from distlab.traces.computing import computation_of
from distlab.traces.ends import ends_by_gloo, waits_by_torch
from distlab.traces.events import CallEvent, Contents, Event, Offset
from distlab.traces.matching import match_collectives, match_messages, match_remote
from distlab.wire.messages import REMOTE, SERVED
from distlab.wire.recorded import Recorded, RecordedCall, TorchRow

MAIN_THREAD = 0  # the one of the cells, as a TorchRow has it
# the kind of an event, by the method of ProcessGroup
KINDS_OF_MESSAGES = {"send": "send", "recv": "recv", "recv_anysource": "recv"}
KINDS_OF_REMOTE_CALLS = {REMOTE: "remote", SERVED: "serve"}

Clock = Callable[[float], float]  # from ns of a rank's clock to seconds of the trace


def from_recordings(
    recorded: Mapping[int, Recorded], offsets: Mapping[int, Offset] | None = None
) -> Contents:
    """Put together what each rank recorded, on the notebook's clock; the first event begins at 0.

    Args:
        recorded: by rank.
        offsets: by rank, for those whose clock is another one.
    """
    clocks = clocks_of(recorded, offsets or {})
    rows: dict[int, list[TorchRow]] = {}
    calls: list[CallEvent] = []
    computation: list[Event] = []
    for rank, own in recorded.items():
        clock = clocks[rank]
        rows[rank] = rows_on_clock(own, clock)
        main = [row for row in rows[rank] if row.thread == MAIN_THREAD]
        gloo = [row for row in rows[rank] if _is_of_gloos_thread(row)]
        calls_of_rank = calls_of(rank, own, main, gloo, clock)
        calls += calls_of_rank
        computation += computation_of(rank, main, calls_of_rank)

    messages = [*match_messages(calls, recorded), *match_remote(calls)]
    messages.sort(key=lambda message: message.left)
    collectives = match_collectives(calls, recorded)
    end_what_is_in_flight(calls, rows)
    events = [*calls, *waits_of(calls), *computation]
    events.sort(key=lambda event: (event.start, event.rank))
    return Contents(events, messages, collectives, rows)


def _is_of_gloos_thread(row: TorchRow) -> bool:
    return row.thread != MAIN_THREAD and row.name.startswith("gloo:")


def clocks_of(recorded: Mapping[int, Recorded], offsets: Mapping[int, Offset]) -> dict[int, Clock]:
    """A clock for each rank, on which what any rank did first is at 0."""
    ahead = dict.fromkeys(recorded, 0)  # of the notebook's clock, in ns
    for rank, offset in offsets.items():
        ahead[rank] = round(1e9 * offset.seconds)
    starts: list[float] = []  # on the notebook's clock
    for rank, own in recorded.items():
        starts += [row.start - ahead[rank] for row in own.rows]
        starts += [call.start - ahead[rank] for call in own.calls]
    zero = min(starts, default=0)
    clocks = {}
    for rank in recorded:
        clocks[rank] = clock_from(zero + ahead[rank])
    return clocks


def clock_from(began: float) -> Clock:
    """A clock that is at 0 at this time, in ns of the rank's clock."""
    return lambda time: (time - began) / 1e9


def rows_on_clock(recorded: Recorded, clock: Clock) -> list[TorchRow]:
    """The profiler's rows in the order of their starts, outer ones first."""
    rows = []
    for row in recorded.rows:
        start = clock(row.start)
        end = clock(row.end)
        rows.append(row._replace(start=start, end=end))
    rows.sort(key=lambda row: (row.start, -row.end))
    return rows


# --- the calls of one rank ---


def calls_of(
    rank: int,
    recorded: Recorded,
    main: Sequence[TorchRow],
    gloo: Sequence[TorchRow],
    clock: Clock,
) -> list[CallEvent]:
    """A rank's calls in the order of their starts, with all that its own record tells of them.

    Args:
        rank: of the events.
        recorded: the rank's record.
        main: rows of the main thread.
        gloo: rows of gloo's threads.
        clock: of the rank.
    """
    events = [event_of(rank, call, clock) for call in recorded.calls]
    events.sort(key=lambda event: event.start)
    for event, end in ends_by_gloo(events, gloo):
        event.end = end
    for event, wait in waits_by_torch(events, main):
        event.blocking = wait.blocked
        event.call.waits = wait.waits
    return events


def event_of(rank: int, recorded: RecordedCall, clock: Clock) -> CallEvent:
    """A call as an event; its end is infinite if this rank never knew that it was complete."""
    call = _on_clock(recorded, clock)
    end = inf
    if recorded.end:
        end = clock(recorded.end)
    _, _, ranks = call.group
    event = CallEvent(
        rank=rank,
        kind="collective",
        op=call.op,
        start=call.start,
        end=end,
        blocking=call.blocking,
        group=ranks,
        peer=call.peer,
        num_bytes=call.num_bytes,
        failed=call.failed,
        call=call,
    )
    if call.method in KINDS_OF_MESSAGES:
        kind = KINDS_OF_MESSAGES[call.method]
        event.kind = kind
        event.op = kind if call.blocking else f"i{kind}"
        event.tag = call.tag
    elif call.method in KINDS_OF_REMOTE_CALLS:
        event.kind = KINDS_OF_REMOTE_CALLS[call.method]
        event.num_bytes = None
        # the main thread does not wait for a call that another thread made; a function that is
        # served does wait for it
        if call.method == REMOTE and call.elsewhere:
            event.blocking = False
    return event


def _on_clock(recorded: RecordedCall, clock: Clock) -> RecordedCall:
    """A copy of a call with the times of an event, its end aside."""
    waits = []
    for start, end in recorded.waits:
        waits.append((clock(start), clock(end)))
    return replace(
        recorded, start=clock(recorded.start), posted=clock(recorded.posted), waits=waits
    )


# --- when all is known ---


def end_what_is_in_flight(calls: Sequence[CallEvent], rows: Mapping[int, list[TorchRow]]) -> None:
    """Let calls whose end nobody knows end with the trace, so that they can be drawn."""
    last = 0.0
    for rows_of_rank in rows.values():
        for row in rows_of_rank:
            last = max(last, row.end)
    for event in calls:
        if event.end == inf:
            event.end = max(last, event.start)


def waits_of(calls: Sequence[CallEvent]) -> list[Event]:
    """The waits for calls that did not block, as events like the calls."""
    waits: list[Event] = []
    for event in calls:
        for start, end in event.call.waits:
            waits.append(replace(event, kind="wait", start=start, end=end, blocking=True))
    return waits
