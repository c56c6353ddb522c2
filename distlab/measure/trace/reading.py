"""From what the ranks recorded to the contents of a trace: which calls they made, when these were over, who met whom.

Pure functions, called by `Trace`. Runs on the notebook's kernel.
"""

from __future__ import annotations

import re
from bisect import bisect, bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from math import inf

from distlab.measure.trace.computing import FUNCTIONAL, computation_of
from distlab.measure.trace.events import Collective, Event, Message
from distlab.wire.recorded import Call, Group, Recorded, Row

NEAR = 20e-6  # seconds by which the clocks of the profiler and of the flight recorder may differ
SOON = 200e-6  # seconds within which a call that C++ has begun gives its thread back

Contents = tuple[list[Event], list[Message], list[Collective], dict[int, list[Row]]]
Clock = Callable[[float], float]  # from ns of the machine's clock to seconds of the trace


def read(recorded: Mapping[int, Recorded]) -> Contents:
    """Put together what each rank recorded, by rank; the first of it begins at 0."""
    zero = min((item.start for told in recorded.values() for item in (*told.rows, *told.calls)), default=0)
    rows: dict[int, list[Row]] = {}
    calls: list[Event] = []
    computation: list[Event] = []

    def clock(time: float) -> float:
        return (time - zero) / 1e9

    for rank, told in recorded.items():
        rows[rank] = rows_of(told, clock)
        main = [row for row in rows[rank] if row.thread == 0]
        of_rank = sorted((event_of(rank, call, clock) for call in told.calls), key=lambda event: event.start)
        find_ends(of_rank, [row for row in rows[rank] if row.name.startswith("gloo:") and row.thread != 0])
        find_waits(of_rank, main)
        calls += of_rank
        computation += computation_of(rank, main, of_rank)
    messages = match_messages(calls, recorded)
    collectives = match_collectives(calls, recorded)
    last = max((row.end for of_rank in rows.values() for row in of_rank), default=0.0)
    waits = []
    for event in calls:
        if event.end == inf:
            event.end = max(last, event.start)
        waits += [replace(event, kind="wait", start=s, end=e, blocking=True) for s, e in event.call.waits]
    events = sorted([*calls, *waits, *computation], key=lambda event: (event.start, event.rank))
    return events, messages, collectives, rows


# --- the calls of one rank ---


def rows_of(told: Recorded, clock: Clock) -> list[Row]:
    """The profiler's rows in the order of their starts, outer ones first; the thread of the cells is number 0."""
    rows = [
        Row(name, annotated, 0 if thread == told.main else thread, clock(start), clock(end), number)
        for name, annotated, thread, start, end, number in told.rows
    ]
    return sorted(rows, key=lambda row: (row.start, -row.end))


def event_of(rank: int, told: Call, clock: Clock) -> Event:
    """A call as an event; its end is infinite where this rank never knew that it was complete."""
    waits = [(clock(start), clock(end)) for start, end in told.waits]
    call = replace(told, start=clock(told.start), posted=clock(told.posted), waits=waits)
    kind, op, tag = "collective", call.op, None
    if call.method in ("send", "recv", "recv_anysource"):
        kind, tag = call.method[:4], call.tag
        op = kind if call.blocking else f"i{kind}"
    end = clock(told.end) if told.end else inf
    what = {"group": call.group[2], "peer": call.peer, "tag": tag, "num_bytes": call.num_bytes, "failed": call.failed}
    return Event(rank, kind, op, call.start, end, call.blocking, call=call, **what)


def family(name: str) -> str:
    """What the names of one collective in ProcessGroup, in the flight recorder and in gloo have in common."""
    return re.sub(r"^gloo:|_|base|coalesced|single|into|tensor|sparse", "", name)


def find_ends(events: Sequence[Event], rows: Sequence[Row]) -> None:
    """When collectives that did not block were complete: gloo's threads take the calls of a group in their order.

    gloo makes a reduce_scatter out of all_reduces; its end is taken to be the end of the first one.
    """
    queues: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind == "collective" and not event.blocking:
            queues[family(event.call.method).replace("reducescatter", "allreduce")].append(event)
    group_of_thread: dict[int, Group] = {}
    for row in rows:
        queue = queues[family(row.name)]
        begun = (event for event in queue if event.start <= row.start + NEAR)
        event = next((e for e in begun if group_of_thread.get(row.thread, e.call.group) == e.call.group), None)
        if event is not None:
            group_of_thread[row.thread] = event.call.group
            event.end = row.end
            queue.remove(event)


def find_waits(events: Sequence[Event], main: Sequence[Row]) -> None:
    """Waits of torch's for collectives that it called: where the main thread did nothing until one was complete.

    If it had done nothing since the call, the call itself was blocking. Functional collectives have their own wait.
    """
    starts, ends = busy(main)
    functional = [row for row in main if row.name.startswith(FUNCTIONAL)]
    for event in events:
        call = event.call
        if event.kind != "collective" or event.blocking or call.waits or call.elsewhere or event.end == inf:
            continue
        before, after = bisect(starts, call.start), bisect_left(starts, event.end - NEAR)
        idle_since = ends[after - 1] if after else inf
        if any(row.start <= call.start <= row.end for row in functional):
            said = (row for row in functional if row.name.endswith("::wait_tensor"))
            call.waits = [(row.start, row.end) for row in said if row.start <= event.end <= row.end]
        elif before and call.posted < ends[before - 1] and idle_since < event.end:
            event.blocking = idle_since < call.posted + SOON
            if not event.blocking:
                call.waits = [(idle_since, starts[after] if after < len(starts) else event.end)]


def busy(main: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Starts and ends of the times in which the main thread was in a torch call, whatever the program named."""
    starts: list[float] = []
    ends: list[float] = []
    for row in main:
        if row.annotated:
            continue
        if ends and row.start <= ends[-1]:
            ends[-1] = max(ends[-1], row.end)
        else:
            starts.append(row.start)
            ends.append(row.end)
    return starts, ends


# --- who met whom ---


def match_messages(calls: Sequence[Event], traced: Collection[int]) -> list[Message]:
    """Pair sends with recvs: the n-th send with the n-th recv of the same source, destination, tag and group.

    It fills in `ready`, and `end` where only the partner knew it.

    Args:
        calls: of every rank, in the order of their starts.
        traced: the ranks that were recorded.
    """
    queues: dict[tuple, tuple[list[Event], list[Event]]] = defaultdict(lambda: ([], []))
    for event in calls:
        if event.kind in ("send", "recv"):
            # a call that raised took part in nothing: no partner is looked for
            key = (*event.ends, event.tag, event.call.group, event if event.failed else None)
            queues[key][event.kind == "recv"].append(event)
    messages = []
    for (src, dst, tag, *_), (sends, recvs) in queues.items():
        known = src is None or {src, dst} <= {*traced}
        for send, recv in _pairs(sends, recvs):
            _settle(send, recv, known)
            half = send or recv
            messages.append(Message(src, dst, tag, half.group, half.num_bytes, send, recv, known))
    return sorted(messages, key=lambda message: message.left)


def _pairs(sends: list[Event], recvs: list[Event]) -> Iterator[tuple[Event | None, Event | None]]:
    """Pair by number, which counts messages from before the trace too; by order where a recv has none."""
    if any(event.call.sequence == 0 for event in recvs):
        yield from zip_longest(sends, recvs)
        return
    by_number = [{event.call.sequence: event for event in events} for events in (sends, recvs)]
    for number in sorted({*by_number[0], *by_number[1]}):
        yield by_number[0].get(number), by_number[1].get(number)


def _settle(send: Event | None, recv: Event | None, known: bool) -> None:
    if send is None or recv is None:
        (send or recv).ready = inf if known else None
        return
    send.ready = recv.ready = max(send.start, recv.start)
    if not send.blocking and recv.end != inf:
        # wait() may come long after the receiver had it all
        send.end = min(send.end, max(recv.end, send.call.posted))
    if recv.end == inf:
        recv.end = send.end


def match_collectives(calls: Sequence[Event], traced: Collection[int]) -> list[Collective]:
    """The calls that were one collective, in the order in which these began; it fills in `ready`.

    The n-th collective of a group on one rank belongs to the n-th on the others; if these are different ones, no
    partner is known.
    """
    counts: Counter[tuple[int, Group]] = Counter()
    together: dict[tuple[Group, int, str], list[Event]] = defaultdict(list)
    for event in calls:
        if event.kind == "collective":
            group = event.call.group
            together[group, counts[event.rank, group], family(event.call.method)].append(event)
            counts[event.rank, group] += 1
    return meet([(group, alike) for ((*_, group), *_), alike in together.items()], traced)


def meet(calls: Sequence[tuple[Sequence[int], Sequence[Event]]], traced: Collection[int]) -> list[Collective]:
    """Each group with the calls that were one collective of it, in the order in which these began."""
    found = []
    for group, alike in calls:
        entered = {event.rank: event.start for event in alike}
        for event in alike:
            # a rank that is not the root needs the root only, the root needs all of them
            needed = {event.peer} if event.peer not in (None, event.rank) else {*group}
            if needed <= entered.keys():
                event.ready = max([event.start, *(entered[rank] for rank in needed)])
            else:
                event.ready = inf if needed <= {*traced} else None
        found.append(Collective(alike[0].op, group, tuple(alike), entered.keys() >= {*group}))
    return sorted(found, key=lambda collective: min(event.start for event in collective.events))
