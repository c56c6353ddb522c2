"""Which recv took which send, which calls were one collective, and from when on data could move.

Pure functions, called by trace/assemble.py. They fill in `ready`, and `end` where only the partner knew it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import inf

from distlab.trace.reading import UNKNOWN, Call, family

ROOTED = ("broadcast", "scatter", "reduce", "gather")


@dataclass
class Pair:
    """A send and the recv that took it, or one of them alone."""

    send: Call | None
    recv: Call | None
    traced: bool


def match_messages(calls: Sequence[Call], traced: Collection[int]) -> list[Pair]:
    """Pair sends with recvs: the n-th send with the n-th recv of the same source, destination, tag and group.

    Args:
        calls: of every rank, in the order of their starts.
        traced: the ranks that were recorded.
    """
    queues: dict[tuple, tuple[list[Call], list[Call]]] = defaultdict(lambda: ([], []))
    for call in calls:
        if call.kind in ("send", "recv"):
            ends = (call.rank, call.peer) if call.kind == "send" else (call.peer, call.rank)
            # a call that raised took part in nothing: no partner is looked for
            key = (*ends, call.tag, call.key, id(call) if call.failed else None)
            queues[key][call.kind == "recv"].append(call)
    pairs = []
    for (src, dst, *_), (sends, recvs) in queues.items():
        known = {src, dst} <= {*traced}
        pairs += [Pair(send, recv, known or src is None) for send, recv in _together(sends, recvs)]
    for pair in pairs:
        _settle(pair)
    return pairs


def _together(sends: list[Call], recvs: list[Call]) -> Iterator[tuple[Call | None, Call | None]]:
    """Pair by number, which counts messages from before the trace too; by order where a recv has none."""
    if any(call.sequence is None for call in recvs):
        yield from zip_longest(sends, recvs)
        return
    by_number = [{call.sequence: call for call in calls} for calls in (sends, recvs)]
    for number in sorted({*by_number[0], *by_number[1]}):
        yield by_number[0].get(number), by_number[1].get(number)


def _settle(pair: Pair) -> None:
    send, recv = pair.send, pair.recv
    if send is None or recv is None:
        (send or recv).ready = inf if pair.traced else None
        return
    send.ready = recv.ready = max(send.start, recv.start)
    if not send.blocking and recv.end is not None:
        # wait() may come long after the receiver had it all
        send.end = min(send.end or recv.end, max(recv.end, send.posted))
    if recv.end is None:
        recv.end = send.end


def match_collectives(calls: Sequence[Call], traced: Collection[int]) -> list[tuple[list[Call], bool]]:
    """The calls that were one collective, and whether every rank of the group was in it.

    The n-th collective of a group on one rank belongs to the n-th on the others; if these are different ones, no
    partner is known.
    """
    by_group: dict[tuple, dict[int, list[Call]]] = defaultdict(lambda: defaultdict(list))
    for call in calls:
        if call.kind == "collective" and call.key != UNKNOWN:
            by_group[call.key][call.rank].append(call)
    found = [([call], False) for call in calls if call.kind == "collective" and call.key == UNKNOWN]
    for (*_, group), by_rank in by_group.items():
        for together in zip_longest(*by_rank.values()):
            present = [call for call in together if call is not None]
            for name in dict.fromkeys(family(call.method) for call in present):
                alike = [call for call in present if family(call.method) == name]
                found.append((alike, {call.rank for call in alike} >= {*group}))
                _set_ready(alike, group, traced)
    return sorted(found, key=lambda item: min(call.start for call in item[0]))


def _set_ready(calls: Sequence[Call], group: Sequence[int], traced: Collection[int]) -> None:
    entered = {call.rank: call.start for call in calls}
    for call in calls:
        root = call.peer if family(call.method) in ROOTED else None
        # a rank that is not the root needs the root only, the root needs all of them
        needed = [root] if root is not None and root != call.rank else group
        if {*needed} <= entered.keys():
            call.ready = max(call.start, *(entered[rank] for rank in needed))
        elif {*needed} <= {*traced}:
            call.ready = inf
