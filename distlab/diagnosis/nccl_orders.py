"""Orders of calls that gloo allows, and NCCL does not.

NCCL runs what a rank calls in the order of the calls; gloo looks for whatever fits. Pure functions
over what the ranks have seen, called by portability.py on the notebook's kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from distlab.wire.portability import Seen, SeenMessage
from distlab.wire.recorded import GroupKey
from distlab.wire.source import Line
from distlab.words import grouped

AllSeen = Mapping[int, Seen]  # what each rank has seen


class OnRank(NamedTuple):
    """A line of one rank.

    Attributes:
        rank: the rank.
        line: the program's line; None if there is none.
    """

    rank: int
    line: Line | None


class Direction(NamedTuple):
    """The messages of a group from one rank to another one."""

    group: GroupKey
    source: int
    destination: int


# --- groups ---


class _Node(NamedTuple):
    """A collective of a group, by its number there; all ranks of the group have it."""

    group: GroupKey
    number: int


class _Arrow(NamedTuple):
    """Two collectives of which a rank began the second right after the first."""

    first: _Node
    second: _Node
    rank: int


def groups_in_a_circle(seen: AllSeen) -> list[OnRank]:
    """Lines of collectives of several groups that the ranks began in different orders.

    A rank that begins one collective after another draws an arrow from the first to the second. If
    the arrows of all ranks make a circle, no order of all collectives suits every rank.

    Returns:
        The lines on the circle, in the order in which each of its ranks begins them; none if all
        ranks can have the same order.
    """
    arrows: list[_Arrow] = []
    lines: dict[tuple[int, _Node], Line | None] = {}
    for rank, one in seen.items():
        begun = []
        for call in one.collectives:
            if len(call.group[2]) > 1:
                node = _Node(call.group, call.number)
                begun.append(node)
                lines[rank, node] = call.line
        arrows += [_Arrow(first, second, rank) for first, second in pairwise(begun)]
    found = []
    for rank, of_rank in groupby(_circle(arrows), key=lambda arrow: arrow.rank):
        ordered = list(of_rank)
        found.append(OnRank(rank, lines[rank, ordered[0].first]))
        found.append(OnRank(rank, lines[rank, ordered[-1].second]))
    return _each_once(found)


def _circle(arrows: Sequence[_Arrow]) -> list[_Arrow]:
    """Arrows that make a circle, each beginning where the one before ends; none if none do."""
    left = _in_circles(arrows)
    if not left:
        return []
    arrow_to = {arrow.second: arrow for arrow in arrows if {arrow.first, arrow.second} <= left}
    # each node that is left has an arrow from another one: going back along them meets itself
    node = min(left)
    way: list[_Arrow] = []
    begins_at: dict[_Node, int] = {}
    while node not in begins_at:
        begins_at[node] = len(way)
        way.append(arrow_to[node])
        node = arrow_to[node].first
    return list(reversed(way[begins_at[node] :]))


def _in_circles(arrows: Sequence[_Arrow]) -> set[_Node]:
    """The nodes that are left when those without an arrow to them are taken away, again and again.

    They are on circles, or behind one.
    """
    arrows_to = Counter(arrow.second for arrow in arrows)
    after = grouped((arrow.first, arrow.second) for arrow in arrows)
    left = set(arrows_to) | set(after)
    free = [node for node in left if not arrows_to[node]]
    while free:
        node = free.pop()
        left.discard(node)
        for following in after.get(node, ()):
            arrows_to[following] -= 1
            if not arrows_to[following]:
                free.append(following)
    return left


# --- messages ---


def tags_in_other_order(seen: AllSeen) -> list[OnRank]:
    """Lines of messages between two ranks that are received in another order than they are sent.

    gloo finds them by their tags. Only where all messages of a direction were sent and received.
    """
    found = []
    for direction, (sent, received) in _directions(seen).items():
        tags_sent = [message.tag for message in sent]
        tags_received = [message.tag for message in received]
        if tags_sent == tags_received or sorted(tags_sent) != sorted(tags_received):
            continue
        for send, recv in zip(sent, received, strict=True):
            if send.tag != recv.tag:
                found += [
                    OnRank(direction.source, send.line),
                    OnRank(direction.destination, recv.line),
                ]
    return _each_once(found)


def messages_that_block_each_other(seen: AllSeen) -> list[OnRank]:
    """Lines where two ranks both send to each other first, or both receive first, and go on.

    gloo carries out at once whatever fits; NCCL runs the messages of two ranks one after another,
    but for those that one batch_isend_irecv has begun.
    """
    found: list[OnRank] = []
    directions = _directions(seen)
    for direction, (sent, received) in directions.items():
        group, first, second = direction
        back = directions.get(Direction(group, second, first))
        if back is None or first > second or len(sent) != len(received):
            continue
        if len(back[0]) != len(back[1]):
            continue
        found += _blocking_pair(seen, group, first, second)
    return _each_once(found)


def _blocking_pair(seen: AllSeen, group: GroupKey, first: int, second: int) -> list[OnRank]:
    """The lines at which neither of two ranks can go on; none if both come to the end."""
    own = _turns(seen[first].messages, group, second)
    others = _turns(seen[second].messages, group, first)
    while own and others:
        here = own[0]
        there = others[0]
        moved = _meet(here, there) + _meet(there, here)
        if not here:
            own.pop(0)
        if not there:
            others.pop(0)
        if not moved:
            ours = [OnRank(first, message.line) for message in here]
            return ours + [OnRank(second, message.line) for message in there]
    return []


def _meet(senders: list[SeenMessage], receivers: list[SeenMessage]) -> int:
    """Take away what one side sends and the other one receives now; how many messages."""
    sends = [message for message in senders if message.is_send]
    recvs = [message for message in receivers if not message.is_send]
    number = min(len(sends), len(recvs))
    for message in sends[:number]:
        senders.remove(message)
    for message in recvs[:number]:
        receivers.remove(message)
    return number


def _turns(messages: Iterable[SeenMessage], group: GroupKey, peer: int) -> list[list[SeenMessage]]:
    """The messages with a peer, in their order; those of one batch have one turn together."""
    turns: list[list[SeenMessage]] = []
    newest = 0
    for message in messages:
        if message.group != group or message.peer != peer:
            continue
        if message.batch and message.batch == newest:
            turns[-1].append(message)
        else:
            turns.append([message])
        newest = message.batch
    return turns


def _directions(
    seen: AllSeen,
) -> dict[Direction, tuple[list[SeenMessage], list[SeenMessage]]]:
    """The messages of each direction, as sent and as received.

    Without those to ranks that have received from any source: nobody knows which they took.
    """
    sent = []
    received = []
    for rank, one in seen.items():
        for message in one.messages:
            if message.is_send:
                sent.append((Direction(message.group, rank, message.peer), message))
            else:
                received.append((Direction(message.group, message.peer, rank), message))
    by_sender = grouped(sent)
    by_receiver = grouped(received)
    found = {}
    for direction in by_sender.keys() & by_receiver.keys():
        if not _takes_from_any(seen[direction.destination], direction.group):
            found[direction] = (by_sender[direction], by_receiver[direction])
    return found


def _takes_from_any(one: Seen, group: GroupKey) -> bool:
    return any(call.method == "recv_anysource" and call.group == group for call in one.calls)


def _each_once(found: Iterable[OnRank]) -> list[OnRank]:
    return list(dict.fromkeys(found))
