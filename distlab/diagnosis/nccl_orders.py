"""Orders of calls that gloo allows, and NCCL does not.

NCCL runs what a rank calls in the order of the calls; gloo looks for whatever fits. Pure functions
over what the ranks have seen, called by portability.py on the notebook's kernel.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from distlab.wire.portability import Seen, SeenCollective, SeenMessage
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


class _Step(NamedTuple):
    """A collective, and the rank that began it right before another one."""

    node: tuple[GroupKey, int]
    rank: int


def groups_in_a_circle(seen: AllSeen) -> list[OnRank]:
    """Lines of collectives of several groups that the ranks began in different orders.

    Each collective is a node, and a rank that begins one after another draws an arrow from the
    first to the second. If the arrows make a circle, no order of all collectives suits every rank.

    Returns:
        The lines on the circle, in the order in which each of its ranks begins them; none if all
        ranks can have the same order.
    """
    before: defaultdict[tuple[GroupKey, int], list[_Step]] = defaultdict(list)
    lines: dict[tuple[int, tuple[GroupKey, int]], Line | None] = {}
    for rank, one in seen.items():
        begun = [call for call in one.collectives if len(call.group[2]) > 1]
        for call in begun:
            lines[rank, _node(call)] = call.line
        for first, second in pairwise(begun):
            before[_node(second)].append(_Step(_node(first), rank))
    circle = _circle(before, {node for _, node in lines})
    return _each_once(OnRank(rank, lines[rank, node]) for node, rank in circle)


def _node(call: SeenCollective) -> tuple[GroupKey, int]:
    return call.group, call.number


def _circle(
    before: Mapping[tuple[GroupKey, int], Sequence[_Step]], nodes: set[tuple[GroupKey, int]]
) -> list[_Step]:
    """The steps of a circle: for each of its arrows the first node and the second, with the rank.

    Empty if there is none.
    """
    left = _in_circles(before, nodes)
    if not left:
        return []
    # every node that is left has one before it that is left: going back must meet itself
    node = min(left)
    way: list[tuple[_Step, tuple[GroupKey, int]]] = []
    visited: dict[tuple[GroupKey, int], int] = {}
    while node not in visited:
        visited[node] = len(way)
        step = next(step for step in before[node] if step.node in left)
        way.append((step, node))
        node = step.node
    steps = []
    arrows = reversed(way[visited[node] :])
    for rank, of_rank in groupby(arrows, key=lambda arrow: arrow[0].rank):
        ordered = list(of_rank)
        first, _ = ordered[0]
        _, last = ordered[-1]
        steps += [first, _Step(last, rank)]
    return steps


def _in_circles(
    before: Mapping[tuple[GroupKey, int], Sequence[_Step]], nodes: set[tuple[GroupKey, int]]
) -> set[tuple[GroupKey, int]]:
    """The nodes that are left when those without an arrow to them are taken away, again and again.

    They are on circles, or behind one.
    """
    arrows: Counter[tuple[GroupKey, int]] = Counter()
    after: defaultdict[tuple[GroupKey, int], list[tuple[GroupKey, int]]] = defaultdict(list)
    for node, steps in before.items():
        arrows[node] = len(steps)
        for step in steps:
            after[step.node].append(node)
    free = [node for node in nodes if not arrows[node]]
    left = set(nodes)
    while free:
        node = free.pop()
        left.discard(node)
        for following in after[node]:
            arrows[following] -= 1
            if not arrows[following]:
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
