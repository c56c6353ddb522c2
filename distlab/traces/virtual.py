"""The contents of a trace of a simulated cluster: the results of simulation.py as events, messages
and collectives.

A pure function, called by notebook/tracing.py. Runs on the notebook's kernel. Nothing is
estimated here: every time is the model's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from distlab.simulated.events import Callback, Collective, PointToPoint
from distlab.simulated.simulation import Operation, Result, Transfer
from distlab.traces.events import Contents, Event, Message
from distlab.traces.matching import meet
from distlab.words import grouped


def read(result: Result, ranks: Sequence[int]) -> Contents:
    """What `ranks` did, in seconds since the first began something."""
    begun = (
        Operation(rank, *one, inf) for rank, rest in enumerate(result.unfinished) for one in rest
    )
    known = (one for one in (*result.operations, *begun) if one.rank in ranks)
    operations = [one for one in known if not isinstance(one.event, Callback)]
    spans = [span for span in result.spans if span.rank in ranks and span.end > span.begin]
    zero = min((one.begin for one in (*operations, *spans)), default=0.0)
    last = max((span.end for span in (*spans, *result.transfers)), default=zero)
    waits = {(span.rank, span.op): span.begin for span in spans}
    calls = {}
    for one in operations:
        blocking = waits.get((one.rank, one.event.op)) == one.begin
        calls[one.rank, one.event.op] = _event(one, blocking, zero, last)
    events = list(calls.values())
    for span in spans:
        if span.op is None:
            events.append(
                Event(span.rank, "compute", "compute", span.begin - zero, span.end - zero)
            )
        elif (call := calls.get((span.rank, span.op))) is not None and not call.blocking:
            when = {"start": span.begin - zero, "end": span.end - zero}
            events.append(replace(call, kind="wait", blocking=True, ready=None, **when))
    messages = sorted(_messages(result.transfers, calls, zero), key=lambda message: message.left)
    own = (
        (one.event, calls[one.rank, one.event.op])
        for one in operations
        if isinstance(one.event, Collective)
    )
    together = grouped(((collective.group, collective.count), call) for collective, call in own)
    collectives = meet([(alike[0].group, alike) for alike in together.values()], ranks)
    return sorted(events, key=lambda event: (event.start, event.rank)), messages, collectives, {}


def _event(one: Operation, blocking: bool, zero: float, last: float) -> Event:
    start, end, event = one.begin - zero, min(one.end, last) - zero, one.event
    if isinstance(event, PointToPoint):
        kind = "send" if event.sends else "recv"
        op, tag = kind if blocking else f"i{kind}", event.channel[1]
        return Event(
            one.rank, kind, op, start, end, blocking, inf, (), event.peer, tag, event.num_bytes
        )
    root = None if event.root is None else event.members[event.root]
    # for the others: by member, or one number
    size = event.sent[0] if event.name == "all_reduce" else sum(event.sent)
    return Event(
        one.rank,
        "collective",
        event.name,
        start,
        end,
        blocking,
        inf,
        event.members,
        root,
        None,
        size,
    )


def _messages(
    transfers: Sequence[Transfer], calls: dict[tuple[int, int], Event], zero: float
) -> Iterator[Message]:
    """What was sent and received, and what only one of them was; `ready` of both is when the
    message left.
    """
    alone = {key: call for key, call in calls.items() if call.kind in ("send", "recv")}
    for one in transfers:
        send, recv = alone.pop((one.src, one.send), None), alone.pop((one.dst, one.recv), None)
        halves = [half for half in (send, recv) if half is not None]
        for half in halves:
            half.ready = one.begin - zero
        if halves:  # else it is of a collective, or between ranks that were not recorded
            yield Message(
                one.src, one.dst, halves[0].tag, (), one.num_bytes, send, recv, len(halves) == 2
            )
    for call in alone.values():
        ends = (call, None) if call.kind == "send" else (None, call)
        yield Message(*call.ends, call.tag, (), call.num_bytes, *ends)
