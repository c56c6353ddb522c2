"""Which calls of several ranks belong together: messages, remote calls, collectives.

Called by read.py and virtual.py. Runs on the notebook's kernel. What a rank cannot know alone is
filled into its events here: `ready`, and where only the partner knew them, `end` and `peer`.
"""

from collections.abc import Collection, Hashable, Iterator, Sequence
from math import inf
from typing import cast

from distlab.traces.ends import family
from distlab.traces.events import CallEvent, Collective, Event, Message
from distlab.wire.recorded import GroupKey

# --- messages ---


def match_messages(calls: Sequence[CallEvent], traced: Collection[int]) -> Iterator[Message]:
    """Pair sends with recvs of the same source, destination, tag and group, the n-th with the n-th.

    `ready` of their events is filled in here, and `end` where only the partner knew it.

    Args:
        calls: of every rank, in the order of their starts.
        traced: the ranks that were recorded.
    """
    for alike in _possible_partners(calls):
        src, dst = route_of(alike[0])
        both_traced = src is None or (src in traced and dst in traced)
        for send, recv in _pairs(alike):
            if send is not None and recv is not None:
                half = send
                _fill_in_times(send, recv)
            else:
                half = _the_one(send, recv)
                half.ready = inf if both_traced else None
            yield Message(
                src=src,
                dst=dst,
                tag=half.tag or 0,
                group=half.group,
                num_bytes=half.num_bytes,
                send=send,
                recv=recv,
                traced=both_traced,
            )


def _possible_partners(calls: Sequence[CallEvent]) -> list[list[CallEvent]]:
    """Sends and recvs with the same source, destination, tag and group.

    A call that raised took part in nothing, so it is alone: otherwise the next message would be
    paired with it.
    """
    alike: dict[Hashable, list[CallEvent]] = {}
    for place, event in enumerate(calls):
        if event.kind not in ("send", "recv"):
            continue
        key: Hashable = (route_of(event), event.tag, event.call.group)
        if event.failed:
            key = place  # which no other call has
        alike.setdefault(key, []).append(event)
    return list(alike.values())


def route_of(half: Event) -> tuple[int | None, int]:
    """Source and destination; the source of a recv from any rank that got nothing is None."""
    if half.kind == "recv":
        return half.peer, half.rank
    return half.rank, cast(int, half.peer)  # every send has a destination


def _pairs(alike: Sequence[CallEvent]) -> list[tuple[CallEvent | None, CallEvent | None]]:
    """Pair possible partners by number, or by order if a recv has no number.

    The numbers count from the building of the group, so messages from before the trace count too:

        before the trace | in the trace
        send 1, send 2   | send 3           pairs with recv 3, and recv 2 has no partner here
        recv 1           | recv 2, recv 3
    """
    sends = [half for half in alike if half.kind == "send"]
    recvs = [half for half in alike if half.kind == "recv"]
    numbered = all(recv.call.sequence != 0 for recv in recvs)
    send_by_number = _by_number(sends, numbered)
    recv_by_number = _by_number(recvs, numbered)
    pairs = []
    for number in sorted({*send_by_number, *recv_by_number}):
        send = send_by_number.get(number)
        recv = recv_by_number.get(number)
        pairs.append((send, recv))
    return pairs


def _by_number(halves: list[CallEvent], numbered: bool) -> dict[int, CallEvent]:
    """Halves by their own numbers, or by their places."""
    if numbered:
        return {half.call.sequence: half for half in halves}
    return dict(enumerate(halves))


def _fill_in_times(send: CallEvent, recv: CallEvent) -> None:
    """Fill in what one side of a message tells of the other.

    Data can move once both sides are there. An isend is over when its receiver has it all, which
    may be long before the sender calls wait(); not before it has returned, though. A recv whose end
    the rank never knew, because it did not wait, ends with the send.

        sender    [isend].....................[wait]      the end of isend is that of recv
        receiver       [recv            ]
    """
    ready = max(send.start, recv.start)
    send.ready = ready
    recv.ready = ready
    if not send.blocking and recv.end != inf:
        after_return = max(recv.end, send.call.posted)
        send.end = min(send.end, after_return)
    if recv.end == inf:
        recv.end = send.end


def _the_one(send: CallEvent | None, recv: CallEvent | None) -> CallEvent:
    """The half that is there, of a message that is not matched."""
    return cast(CallEvent, send or recv)  # no message is without both


# --- remote calls ---


def match_remote(calls: Sequence[CallEvent]) -> Iterator[Message]:
    """The two messages of each remote call that was traced on both sides.

        caller    [remote                      ]
                    \\ there               back /
        callee       [serve                  ]

    `ready` is filled in here, and who the callee is, which only the callee's record tells.
    """
    served = {}
    for event in calls:
        if event.kind == "serve":
            served[event.peer, event.call.sequence] = event
    for asked in calls:
        if asked.kind != "remote":
            continue
        answer = served.get((asked.rank, asked.call.sequence))
        if answer is None:
            continue
        asked.peer = answer.rank
        yield _remote_message(asked, answer, asked.start, answer.start)
        only_makes_an_rref = asked.end <= asked.start
        if not only_makes_an_rref:
            asked.ready = answer.end
            yield _remote_message(answer, asked, answer.end, asked.end)


def _remote_message(send: Event, recv: Event, left: float, arrived: float) -> Message:
    """One way of a remote call; by clocks that differ, it may seem to arrive before it left."""
    return Message(
        src=send.rank,
        dst=recv.rank,
        tag=0,
        group=(),
        num_bytes=None,
        send=send,
        recv=recv,
        times=(left, max(left, arrived)),
    )


# --- collectives ---


def match_collectives(calls: Sequence[CallEvent], traced: Collection[int]) -> list[Collective]:
    """Put together the calls that were one collective, in the order in which these began.

    `ready` of their events is filled in here. The n-th collective of a group on one rank belongs to
    the n-th on the others. If their names differ, the program is wrong, and no partner is known:

        rank 0    all_reduce    all_reduce         the second ones are two collectives,
        rank 1    all_reduce    barrier            and neither is complete
    """
    by_rank_and_group: dict[tuple[int, GroupKey], list[CallEvent]] = {}
    for event in calls:
        if event.kind == "collective":
            place = event.rank, event.call.group
            by_rank_and_group.setdefault(place, []).append(event)
    together: dict[tuple[GroupKey, int, str], list[CallEvent]] = {}
    for (_, group), events in by_rank_and_group.items():
        for number, event in enumerate(events):
            key = group, number, family(event.call.method)
            together.setdefault(key, []).append(event)
    found = []
    for (group, _, _), alike in together.items():
        _, _, ranks = group
        found.append((ranks, alike))
    return meet(found, traced)


def meet(
    calls: Sequence[tuple[tuple[int, ...], Sequence[Event]]], traced: Collection[int]
) -> list[Collective]:
    """Make the collectives of these calls, in the order in which they began.

    `ready` of their events is filled in here.

    Args:
        calls: for each collective, the ranks of its group and their calls.
        traced: the ranks that were recorded.
    """
    found = []
    for group, alike in calls:
        entered = {event.rank: event.start for event in alike}
        for event in alike:
            event.ready = _ready(event, group, entered, traced)
        complete = all(rank in entered for rank in group)
        collective = Collective(alike[0].op, group, tuple(alike), complete)
        found.append(collective)
    found.sort(key=_first_start)
    return found


def _first_start(collective: Collective) -> float:
    return min(event.start for event in collective.events)


def _ready(
    event: Event, group: tuple[int, ...], entered: dict[int, float], traced: Collection[int]
) -> float | None:
    """When the partners that a rank needs in a collective had arrived; see Event.ready.

    A rank that is not the root needs the root only; the root needs all of them, as do all ranks
    where there is no root.
    """
    needed: Collection[int] = group
    if event.peer is not None and event.peer != event.rank:
        needed = [event.peer]
    if all(rank in entered for rank in needed):
        arrivals = [entered[rank] for rank in needed]
        return max([event.start, *arrivals])
    if all(rank in traced for rank in needed):
        return inf
    return None
