"""Which calls of several ranks belong together: messages, remote calls, collectives.

Pure functions, called by read.py and virtual.py. Runs on the notebook's kernel.
"""

from collections.abc import Collection, Iterator, Sequence
from math import inf

from distlab.traces.ends import family
from distlab.traces.events import Collective, Event, Message
from distlab.words import grouped


def match_messages(calls: Sequence[Event], traced: Collection[int]) -> Iterator[Message]:
    """Pair sends with recvs: the n-th send with the n-th recv of the same source, destination, tag
    and group.

    It fills in `ready`, and `end` where only the partner knew it.

    Args:
        calls: of every rank, in the order of their starts.
        traced: the ranks that were recorded.
    """
    halves = [event for event in calls if event.kind in ("send", "recv")]
    # a call that raised took part in nothing: it has no partner
    alike = grouped(
        ((*half.ends, half.tag, half.call.group, half if half.failed else None), half)
        for half in halves
    )
    for (src, dst, tag, *_), both in alike.items():
        known = src is None or {src, dst} <= {*traced}
        sends, recvs = ([half for half in both if half.kind == kind] for kind in ("send", "recv"))
        for send, recv in _pairs(sends, recvs):
            _fill_in(send, recv, known)
            half = send or recv
            yield Message(src, dst, tag, half.group, half.num_bytes, send, recv, known)


def _pairs(sends: list[Event], recvs: list[Event]) -> list[tuple[Event | None, Event | None]]:
    """Pair by number, which also counts messages before the trace; by order if a recv has no
    number.
    """
    counted = all(event.call.sequence for event in recvs)
    first, second = (
        {event.call.sequence if counted else place: event for place, event in enumerate(events)}
        for events in (sends, recvs)
    )
    return [(first.get(number), second.get(number)) for number in sorted({*first, *second})]


def _fill_in(send: Event | None, recv: Event | None, known: bool) -> None:
    if send is None or recv is None:
        (send or recv).ready = inf if known else None
        return
    send.ready = recv.ready = max(send.start, recv.start)
    if not send.blocking and recv.end != inf:
        # wait() may come long after the receiver had it all
        send.end = min(send.end, max(recv.end, send.call.posted))
    if recv.end == inf:
        recv.end = send.end


def match_remote(calls: Sequence[Event]) -> Iterator[Message]:
    """The two messages of each remote call that was traced on both sides; it fills in `ready`, and
    the callee.
    """
    served = {(event.peer, event.call.sequence): event for event in calls if event.kind == "serve"}
    for asked in calls:
        answer = served.get((asked.rank, asked.call.sequence)) if asked.kind == "remote" else None
        if answer is None:
            continue
        ends = {"tag": 0, "group": (), "num_bytes": None}
        asked.peer, there = answer.rank, (asked.start, max(asked.start, answer.start))
        yield Message(asked.rank, answer.rank, send=asked, recv=answer, times=there, **ends)
        if asked.end > asked.start:  # and not only an RRef
            asked.ready, back = answer.end, (answer.end, max(asked.end, answer.end))
            yield Message(answer.rank, asked.rank, send=answer, recv=asked, times=back, **ends)


def match_collectives(calls: Sequence[Event], traced: Collection[int]) -> list[Collective]:
    """The calls that were one collective, in the order in which these began; it fills in `ready`.

    The n-th collective of a group on one rank belongs to the n-th on the others; if their names
    differ, no partner is known.
    """
    own = grouped(
        ((event.rank, event.call.group), event) for event in calls if event.kind == "collective"
    )
    numbered = [(group, *pair) for (_, group), events in own.items() for pair in enumerate(events)]
    together = grouped(
        ((group, number, family(event.call.method)), event) for group, number, event in numbered
    )
    return meet([(group, alike) for ((*_, group), *_), alike in together.items()], traced)


def meet(
    calls: Sequence[tuple[Sequence[int], Sequence[Event]]], traced: Collection[int]
) -> list[Collective]:
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
