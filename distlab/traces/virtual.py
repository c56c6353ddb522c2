"""The contents of a trace of a simulated cluster, from the results of simulation.py.

A pure function, called by notebook/tracing.py, and by checking/judging.py for a right answer. Runs
on the notebook's kernel, or where an answer is judged. Nothing is estimated here: every time is the
model's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from math import inf

from distlab.simulated.events import Callback, CollectiveCall, PointToPoint
from distlab.simulated.results import Operation, Result, Span, Transfer
from distlab.traces.events import Collective, Contents, Event, Message
from distlab.traces.matching import meet, route_of

Calls = dict[tuple[int, int], Event]  # by rank and number of the operation


def from_simulation(result: Result, ranks: Sequence[int]) -> Contents:
    """What `ranks` did, in seconds since the first began something."""
    operations = _operations_of(result, ranks)
    spans = [span for span in result.spans if span.rank in ranks and span.end > span.begin]
    begins = [operation.begin for operation in operations]
    begins += [span.begin for span in spans]
    zero = min(begins, default=0.0)
    ends = [span.end for span in spans]
    ends += [transfer.end for transfer in result.transfers]
    last = max(ends, default=zero)

    waited_at_once = {(span.rank, span.op) for span in result.spans if span.at_once}
    calls: Calls = {}
    for operation in operations:
        key = operation.rank, operation.event.op
        start = operation.begin - zero
        end = min(operation.end, last) - zero
        calls[key] = _event(operation, key in waited_at_once, start, end)
    happened = list(calls.values())
    for span in spans:
        event = _event_of_span(span, calls, zero)
        if event is not None:
            happened.append(event)
    happened.sort(key=lambda event: (event.start, event.rank))

    messages = list(_messages(result.transfers, calls, zero))
    messages.sort(key=lambda message: message.left)
    collectives = _collectives_of_groups(operations, calls, ranks)
    return Contents(happened, messages, collectives, rows={})


def _operations_of(result: Result, ranks: Collection[int]) -> list[Operation]:
    """What `ranks` began, callbacks aside; what has not ended ends at infinity."""
    operations = list(result.operations)
    for rank, left_over in enumerate(result.unfinished):
        for event, begin in left_over:
            if not isinstance(event, Callback):
                operations.append(Operation(rank, event, begin, inf))
    return [one for one in operations if one.rank in ranks]


def _event(operation: Operation, blocking: bool, start: float, end: float) -> Event:
    """An operation as an event; `ready` is not known yet."""
    event = operation.event
    if isinstance(event, PointToPoint):
        kind = "send" if event.sends else "recv"
        _, tag = event.channel
        return Event(
            rank=operation.rank,
            kind=kind,
            op=kind if blocking else f"i{kind}",
            start=start,
            end=end,
            blocking=blocking,
            ready=inf,
            peer=event.peer,
            tag=tag,
            num_bytes=event.num_bytes,
        )
    root = None
    if event.root is not None:
        root = event.members[event.root]
    return Event(
        rank=operation.rank,
        kind="collective",
        op=event.name,
        start=start,
        end=end,
        blocking=blocking,
        ready=inf,
        group=event.members,
        peer=root,
        num_bytes=_bytes_given(event),
    )


def _bytes_given(event: CollectiveCall) -> int:
    """The bytes that a rank gives into a collective."""
    if event.name == "all_reduce":
        return event.sent[0]  # the other number is the size of an element
    return sum(event.sent)  # by member, or one number


def _event_of_span(span: Span, calls: Calls, zero: float) -> Event | None:
    """What a rank computed, or waited for, as an event.

    Returns:
        None for a wait for something that is no call, or for a call that blocked, which shows it.
    """
    start = span.begin - zero
    end = span.end - zero
    if span.op is None:
        return Event(span.rank, "compute", "compute", start, end)
    call = calls.get((span.rank, span.op))
    if call is None or call.blocking:
        return None
    return replace(call, kind="wait", blocking=True, ready=None, start=start, end=end)


def _messages(transfers: Sequence[Transfer], calls: Calls, zero: float) -> Iterator[Message]:
    """What was sent and received, and what was only sent, or only received.

    When its data could leave is filled into the events here.
    """
    alone = {key: call for key, call in calls.items() if call.kind in ("send", "recv")}
    for transfer in transfers:
        send = alone.pop((transfer.src, transfer.send), None)
        recv = alone.pop((transfer.dst, transfer.recv), None)
        halves = [half for half in (send, recv) if half is not None]
        if not halves:
            continue  # it is of a collective, or between ranks that were not recorded
        for half in halves:
            half.ready = transfer.begin - zero
        yield Message(
            src=transfer.src,
            dst=transfer.dst,
            tag=halves[0].tag or 0,
            group=(),
            num_bytes=transfer.num_bytes,
            send=send,
            recv=recv,
            traced=len(halves) == 2,
        )
    for call in alone.values():
        src, dst = route_of(call)
        yield Message(
            src=src,
            dst=dst,
            tag=call.tag or 0,
            group=(),
            num_bytes=call.num_bytes,
            send=call if call.kind == "send" else None,
            recv=call if call.kind == "recv" else None,
        )


def _collectives_of_groups(
    operations: Sequence[Operation], calls: Calls, ranks: Sequence[int]
) -> list[Collective]:
    """The collectives of groups: what their ranks called with the same number."""
    together: dict[tuple[str, int], list[Event]] = {}
    for operation in operations:
        event = operation.event
        if isinstance(event, CollectiveCall):
            call = calls[operation.rank, event.op]
            together.setdefault((event.group, event.count), []).append(call)
    groups_and_calls = [(alike[0].group, alike) for alike in together.values()]
    return meet(groups_and_calls, ranks)
