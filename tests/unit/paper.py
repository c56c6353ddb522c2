"""Ranks on paper: their calls, and what watchdogs would say, without any process."""

from dataclasses import replace
from typing import Any

from distlab.wire import messages
from distlab.wire.messages import DDP_FORWARD, CallRecord, MessageCount, NewGroup, RankStatus
from distlab.wire.source import Line

DOES = {
    "computes": messages.COMPUTING,
    "is_silent": messages.SILENT,
    "has_not_begun": messages.BETWEEN,
    "finishes": messages.IDLE,
}
MESSAGES = ("send", "isend", "recv", "irecv")
IN_C = ("init_rpc", "backward", "DistributedDataParallel", DDP_FORWARD, "init_process_group")


def ranks_of(text: str) -> tuple[int, ...]:
    """The ranks in "2", "0,2" or "0-2"."""
    first, _, last = text.partition("-")
    return tuple(range(int(first), int(last) + 1)) if last else tuple(map(int, first.split(",")))


class Paper:
    """A number of ranks that have finished, unless a step says what they do next.

    A step names ranks, what they call, a peer, and options: "4 ranks; 0 send 1 tag=7; 0-2 barrier;
    1 irecv any". A rank waits in what it calls, but not in isend, irecv, and a collective with
    `async`; "1 waits" then waits for the first of these. Further options: own_limit, for a call
    that ends by itself; group=b:0,2 for a group, its name b, of ranks 0 and 2; dropped, of an isend
    or irecv; unread, of an irecv whose rank has bytes that it does not read; gone, of a call whose
    group was destroyed; root and reduce_op, of a collective; members, local and within (how many
    groups the rank is in), of new_group. "0 calls 1 add" waits for a remote call; in "1 for 0 add
    recv 2" rank 1 serves it and waits in recv, in "1 for 0 add" it computes. A rank has one thread
    for that.
    """

    def __init__(self, text: str):
        size, *steps = text.split("; ")
        everyone = range(int(size.split()[0]))
        threads = 1 if " for " in text else 0
        self._statuses = {
            rank: RankStatus(rank, messages.IDLE, groups=1, threads=threads) for rank in everyone
        }
        self._begun: dict[int, list[CallRecord]] = {rank: [] for rank in everyone}
        for step in steps:
            ranks, what, *rest = step.split()
            words = [word for word in rest if "=" not in word]
            options = dict(word.split("=") for word in rest if "=" in word)
            for rank in ranks_of(ranks):
                self._step(rank, what, words, options)

    def at(self, rank: int, *lines: Line) -> None:
        """Where the rank is in a cell, outermost first, as the notebook counts its lines."""
        self._change(rank, lines=lines)

    def states(self, **fields: Any) -> dict[int, RankStatus]:
        """The statuses; `fields` are those that the steps do not say, such as is_quiescent."""
        return {rank: replace(status, **fields) for rank, status in self._statuses.items()}

    def _change(self, rank: int, **fields: Any) -> None:
        self._statuses[rank] = replace(self._statuses[rank], **fields)

    def _step(self, rank: int, what: str, words: list[str], options: dict[str, str]) -> None:
        group = options.get("group", "0")
        members = ranks_of(group.partition(":")[2]) if ":" in group else tuple(self._statuses)
        members = () if "gone" in words else members
        call = CallRecord(what, messages.OTHER, members, "own_limit" in words)
        if what == "for":
            self._serve(rank, int(words[0]), words[1], words[2:], options)
        elif what == "calls":
            self._wait(
                rank,
                replace(call, kind=messages.REMOTE, members=ranks_of(words[0]), function=words[1]),
            )
        elif what in DOES:
            self._change(rank, doing=DOES[what], call=None)
        elif what == "waits":
            self._wait(rank, self._begun[rank][0])
        elif what in IN_C:
            self._wait(rank, call)
        elif what == "new_group":
            self._new_group(rank, call, "local" in words, options)
        elif what in MESSAGES:
            self._message(rank, replace(call, kind=messages.MESSAGE, group=group), words, options)
        else:
            self._collective(
                rank,
                replace(call, kind=messages.COLLECTIVE, group=group, collective=what),
                words,
                options,
            )

    def _wait(self, rank: int, call: CallRecord) -> None:
        self._change(rank, doing=messages.COMMUNICATING, call=call)

    def _serve(
        self, rank: int, caller: int, function: str, does: list[str], options: dict[str, str]
    ) -> None:
        before = self._statuses[rank]
        if does:
            self._step(rank, does[0], does[1:], options)
        inner = self._statuses[rank]
        served = RankStatus(
            rank,
            inner.doing if does else messages.COMPUTING,
            inner.call if does else None,
            inner.lines,
        )
        serving = (*before.serving, replace(served, caller=caller, function=function))
        self._statuses[rank] = replace(inner, doing=before.doing, call=before.call, serving=serving)

    def _new_group(
        self, rank: int, call: CallRecord, is_local: bool, options: dict[str, str]
    ) -> None:
        members = ranks_of(options["members"]) if "members" in options else call.members
        status = self._statuses[rank]
        # a group that its members make alone is not counted
        number = 0 if is_local else status.groups
        within = int(options.get("within", 1))
        name = f"{members} {within}" if is_local else str(number)
        made = (*status.made, NewGroup(rank, name, members, within))
        self._change(rank, groups=status.groups + (not is_local), made=made)
        call = replace(call, kind=messages.NEW_GROUP, members=members, group=name, sequence=number)
        self._wait(rank, call)

    def _message(
        self, rank: int, call: CallRecord, words: list[str], options: dict[str, str]
    ) -> None:
        peer = None if words[0] == "any" else int(words[0])
        key = ("send" in call.op, call.group, peer, int(options.get("tag", 0)))
        traffic = {
            (one.is_send, one.group, one.peer, one.tag): one for one in self._statuses[rank].traffic
        }
        call = replace(call, is_send=key[0], peer=peer, tag=key[3], tensors=(("float32", (1,)),))
        before = traffic.get(key, MessageCount(*key, sequence=0))
        call = replace(call, sequence=before.sequence + 1)
        dropped, first = before.dropped, before.first_dropped
        if "dropped" in words:
            dropped += 1
            first = first or call.sequence
        traffic[key] = MessageCount(*key, call.sequence, dropped, first)
        self._change(rank, traffic=tuple(traffic.values()))
        if "unread" in words:
            self._change(rank, unread=8)
        if call.op in ("send", "recv"):
            self._wait(rank, call)
        else:
            self._begun[rank].append(call)

    def _collective(
        self, rank: int, call: CallRecord, words: list[str], options: dict[str, str]
    ) -> None:
        status = self._statuses[rank]
        turn = 1 + sum(old.group == call.group for old in status.history)
        root = int(options["root"]) if "root" in options else None
        tensors = () if call.op == "barrier" else (("float32", (2,)),)
        call = replace(
            call, sequence=turn, tensors=tensors, root=root, reduce_op=options.get("reduce_op", "")
        )
        self._change(rank, history=(*status.history, call))
        if "async" in words:
            self._begun[rank].append(call)
        else:
            self._wait(rank, call)
