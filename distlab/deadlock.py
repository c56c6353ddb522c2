"""Who waits for whom, and whether the wait can end: pure functions over what the ranks say of themselves.

Called by cell.py in the notebook's kernel with the answers of state.py; nothing here starts, stops or asks a process.

The judgement is a proof, not a guess. A rank that waits in a call needs others: the peer of a message, or the members
of a group that have not called the collective yet. It is stuck when one that it needs (any source: all that it needs)
has finished or is stuck itself; ranks that need each other in a circle are stuck together. A rank that computes, that
does not answer, or whose call ends by itself can still go on, and so can all that need it. There is a deadlock when
every rank that has not finished is stuck, and lookout.py calls it one only after nothing has moved for a while.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distlab.agreement import disagreement
from distlab.diagnosis import line_from
from distlab.errors import Line, rank_list

IDLE, COMPUTING, COMMUNICATING = "idle", "computing", "communicating"
BETWEEN, SILENT = "between", "silent"


@dataclass(frozen=True)
class State:
    """What one rank does; see state.summary for the fields.

    `doing` is "silent" for a rank that does not answer, and "between" for an idle one with work to do. `file` is where
    the last of `lines` is, "" for the %%px cell.
    """

    rank: int
    doing: str
    call: Mapping[str, Any] | None = None
    lines: tuple[Line, ...] = ()
    file: str = ""
    seconds: float | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    groups: int = 0
    history: tuple[Mapping[str, Any], ...] = ()
    traffic: tuple[tuple[Any, ...], ...] = ()
    mark: tuple[Any, ...] = ()
    quiet: bool = False
    rounds: tuple[int, ...] = ()

    @classmethod
    def of(cls, rank: int, answer: Mapping[str, Any] | None, with_work: bool = False) -> State:
        """A rank's answer on the line, None for none; `with_work`: it has not answered all that it was sent."""
        if answer is None or "mark" not in answer:
            return cls(rank, SILENT)
        return cls(
            rank,
            BETWEEN if with_work and answer["doing"] == IDLE else answer["doing"],
            answer["call"],
            tuple(line_from(*line) for line in answer["lines"]),
            _file(*answer["lines"][-1]) if answer["lines"] else "",
            answer["seconds"],
            answer["counts"],
            answer["groups"],
            tuple(answer["history"]),
            tuple(tuple(row) for row in answer["traffic"]),
            tuple(answer["mark"]),
            answer["quiet"],
            tuple(answer["rounds"]),
        )


@dataclass(frozen=True)
class Need:
    """What a waiting rank needs: all of `ranks`, or one when `one_suffices`; `clash`: why it cannot be, a sentence."""

    ranks: tuple[int, ...] = ()
    one_suffices: bool = False
    clash: str = ""


def _file(filename: str, number: int, text: str, place: str, is_cell: bool) -> str:
    return "" if is_cell else filename


def unmoved(before: Mapping[int, State], now: Mapping[int, State]) -> bool:
    """Whether nothing happened on any rank between two looks, and nothing is about to.

    gloo's own threads have run in between: what they may have had in hand at the first look is delivered.
    """
    return before.keys() == now.keys() and all(_unmoved(before[rank], state) for rank, state in now.items())


def _unmoved(before: State, now: State) -> bool:
    delivered = len(now.rounds) == len(before.rounds) and all(map(int.__gt__, now.rounds, before.rounds))
    return now.doing != SILENT and now.quiet and before.quiet and now.mark == before.mark and delivered


def proof(states: Mapping[int, State]) -> dict[int, Need] | None:
    """For every rank that has not finished, why it never will; None while one of them may go on.

    Args:
        states: of every rank of the cluster.
    """
    if any(s.doing not in (IDLE, COMMUNICATING) for s in states.values()):
        return None
    needs = {r: need(s, states) for r, s in states.items() if s.doing == COMMUNICATING}
    if not needs or any(n is None for n in needs.values()):
        return None
    stuck = set(needs)
    while True:
        lost = stuck | {r for r, s in states.items() if s.doing == IDLE}
        can_go_on = {r for r in stuck if not _hopeless(needs[r], lost)}
        if not can_go_on:
            return needs if stuck == set(needs) else None
        stuck -= can_go_on


def _hopeless(wanted: Need, lost: set[int]) -> bool:
    if wanted.clash:
        return True
    if wanted.one_suffices:
        return set(wanted.ranks) <= lost
    return bool(set(wanted.ranks) & lost)


def need(state: State, states: Mapping[int, State]) -> Need | None:
    """What a waiting rank needs; None when it has it, or its call ends by itself, so that it goes on."""
    call = state.call or {}
    if call.get("own_limit") or not call.get("members"):  # a group that is gone has no members
        return None
    if call["kind"] == "message":
        return _need_of_message(state, states)
    if call["kind"] == "collective":
        return _need_of_collective(state, states)
    others = [s for r, s in states.items() if r in call["members"] and r != state.rank]
    if call["op"] == "new_group" and call["sequence"]:
        return _need_of_new_group(state, others)
    elsewhere = tuple(s.rank for s in others if s.call is None or s.call["op"] != call["op"])
    if elsewhere or call["op"] == "new_group":
        return Need(elsewhere) if elsewhere else None
    what = "backward() for the others' gradients" if call["op"] == "backward" else f"{call['op']} for the others"
    return Need(clash=f"Every rank waits in {what}.")


def _need_of_new_group(state: State, others: Sequence[State]) -> Need | None:
    """The members that have made fewer groups, or none when others are at a later one, which has another name."""
    made = state.call["sequence"]
    missing, ahead = [s.rank for s in others if s.groups < made], [s.rank for s in others if s.groups > made]
    if missing:
        return Need(tuple(missing))
    rule = "every rank must call new_group, also for a group that it is not in"
    if not ahead:
        return None
    further = f"{rank_list(ahead)} {'have' if len(ahead) > 1 else 'has'} made more of them"
    return Need(clash=f"Rank {state.rank} waits in its new_group number {made - 1}, and {further}: {rule}.")


def _need_of_message(state: State, states: Mapping[int, State]) -> Need | None:
    """The peer, or all that may be it, unless there is a message, or a recv, for the call already."""
    call, peer = state.call, state.call["peer"]
    receiver = peer if call["is_send"] else state.rank
    if not {receiver, state.rank if peer is None else peer} <= states.keys():
        return None  # a peer that no rank is: nothing can be said of it
    members = [r for r in call["members"] if r in states]
    sent = {r: _count(states[r], True, call, receiver) for r in members}
    kept = {r: sent[r] - _count(states[r], True, call, receiver, dropped=True) for r in members}
    expected = {r: _count(states[receiver], False, call, r) for r in members}
    from_any = _count(states[receiver], False, call, None)

    def served(coming: Mapping[int, int]) -> bool:
        spare = sum(max(0, coming[r] - expected[r]) for r in members)  # what only a recv from any source can take
        if call["is_send"]:
            return call["sequence"] <= expected[state.rank] or spare <= from_any
        return spare >= from_any if peer is None else coming[peer] >= call["sequence"] + from_any

    peers = tuple(r for r in members if r != state.rank) if peer is None else (peer,)
    if not peers:
        return Need(clash=f"Rank {state.rank} waits for a message from any other rank of a group that has no other.")
    if not served(sent):
        return Need(peers, one_suffices=peer is None, clash="" if peer is None else _wrong_tag(state, states[peer]))
    if call["is_send"] or served(kept):
        return None
    lost = [r for r in peers if kept[r] < sent[r]]
    return Need(peers, one_suffices=peer is None, clash=_let_go(lost, state.rank))


def _let_go(lost: Sequence[int], receiver: int) -> str:
    whose = f"{rank_list(lost)} did not keep what isend returned, and the message to rank {receiver} went with it"
    return f"{whose[:1].upper()}{whose[1:]}: keep it, and call its wait()."


def _wrong_tag(state: State, other: State) -> str:
    """What to say when the two ends of a message wait for each other with different tags."""
    call, theirs = state.call, other.call
    if theirs is None or theirs["kind"] != "message":
        return ""
    if (theirs["peer"], theirs["group"]) != (state.rank, call["group"]):
        return ""
    if theirs["is_send"] == call["is_send"] or theirs["tag"] == call["tag"]:
        return ""
    sender, receiver = (state, other) if call["is_send"] else (other, state)
    tags = sender.call["tag"], receiver.call["tag"]
    return f"Rank {sender.rank} sends with tag {tags[0]}, but rank {receiver.rank} waits for tag {tags[1]}."


def _count(state: State, is_send: bool, call: Mapping[str, Any], peer: int | None, dropped: bool = False) -> int:
    """How many messages of the call's group and tag a rank has begun to send to, or receive from, a peer (None: any).

    Args:
        dropped: only sends that nobody can wait for any more.
    """
    key = (is_send, call["group"], peer, call["tag"])
    return sum(row[5 if dropped else 4] for row in state.traffic if row[:4] == key)


def _need_of_collective(state: State, states: Mapping[int, State]) -> Need | None:
    call = state.call
    others = [r for r in call["members"] if r != state.rank and r in states]
    missing = tuple(r for r in others if states[r].counts.get(call["group"], 0) < call["sequence"])
    differ = disagreement({state.rank: call, **_same_turn(call, [states[r] for r in others])})
    if differ:
        return Need(missing, clash=differ[:1].upper() + differ[1:])
    return Need(missing) if missing else None


def _same_turn(call: Mapping[str, Any], states: Sequence[State]) -> dict[int, Mapping[str, Any]]:
    """What other ranks called, or call, as the collective with the same number in the same group."""
    turn = (call["group"], call["sequence"])
    return {s.rank: old for s in states for old in s.history if (old["group"], old["sequence"]) == turn}
