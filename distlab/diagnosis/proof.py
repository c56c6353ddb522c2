"""Who waits for whom, and whether the wait can end: pure functions over the statuses of the ranks.

Runs on the notebook's kernel, called by cell.py, ranks.py, display.py and report.py.

The judgement is a proof, not a guess. A rank that waits in a call needs others: the peer of a
message, or the members of a group that have not called the collective yet. A rank that computes,
that does not answer, whose call ends by itself, or for which all that it needs has been begun can
still go on, and so can each rank that needs it. Where no rank can, no rank will begin anything any
more: that is a deadlock. cell.py calls it one only after nothing has moved for a while.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations

from distlab.diagnosis.matching import disagreement
from distlab.diagnosis.needs import Need
from distlab.diagnosis.new_groups import need_of_new_group
from distlab.diagnosis.point_to_point import blocked_by_dropped, lost_irecv, need_of_message
from distlab.wire import messages
from distlab.wire.messages import COLLECTIVE, MESSAGE, Answer, CallRecord, RankStatus
from distlab.words import rank_list


def status_of(rank: int, answer: Answer | None, with_work: bool = False) -> RankStatus:
    """What a rank is doing, from its answer to a question.

    Args:
        rank: the rank.
        answer: None where none came.
        with_work: whether it still owes a reply.
    """
    if answer is None or answer.status is None:
        return RankStatus(rank, messages.SILENT)
    return (
        replace(answer.status, doing=messages.BETWEEN)
        if with_work and answer.status.idle
        else answer.status
    )


def unmoved(before: Mapping[int, RankStatus], now: Mapping[int, RankStatus]) -> bool:
    """Whether nothing happened on any rank between two looks, and nothing is about to.

    gloo's own threads have run in between: what they had in hand at the first look has been
    delivered.
    """
    if before.keys() != now.keys() or not all(
        _unmoved(before[rank], state) for rank, state in now.items()
    ):
        return False
    under_way = any(state.unread or state.unsent for state in (*before.values(), *now.values()))
    return not under_way or _is_stuck(before, now)


def _unmoved(before: RankStatus, now: RankStatus) -> bool:
    delivered = len(now.gloo_wakeups) == len(before.gloo_wakeups) and all(
        map(int.__gt__, now.gloo_wakeups, before.gloo_wakeups)
    )
    return (
        now.doing != messages.SILENT
        and now.is_quiescent
        and before.is_quiescent
        and now.fingerprint == before.fingerprint
        and delivered
    )


def _is_stuck(before: Mapping[int, RankStatus], now: Mapping[int, RankStatus]) -> bool:
    """Whether the bytes in the sockets stay where they are: gloo does not read a message whose
    irecv was dropped.
    """
    stay = all(
        (before[rank].unread, before[rank].unsent) == (one.unread, one.unsent)
        for rank, one in now.items()
    )
    return stay and any(
        lost_irecv(sender, receiver, now) for sender, receiver in permutations(now, 2)
    )


def proof(states: Mapping[int, RankStatus]) -> dict[int, Need] | None:
    """For every rank that has not finished, why it never will; None while any of them may go on.

    Args:
        states: of every rank of the cluster.
    """
    if any(s.doing not in (messages.IDLE, messages.COMMUNICATING) for s in states.values()):
        return None
    needs = {r: need(s, states) for r, s in states.items() if s.doing == messages.COMMUNICATING}
    others = [
        need(one, states)
        for state in states.values()
        for one in (*state.serving, *state.other_threads)
    ]
    if not needs or any(n is None for n in (*needs.values(), *others)):
        return None
    return needs


def need(state: RankStatus, states: Mapping[int, RankStatus]) -> Need | None:
    """What a waiting rank needs; None if it has that, or if its call ends by itself, so that it
    goes on.
    """
    call = state.call
    # a group that was destroyed has no members
    if call is None or call.own_limit or not call.members:
        return None
    if call.kind == MESSAGE:
        return need_of_message(state, states)
    if call.kind == COLLECTIVE:
        return need_of_collective(state, states)
    # their own statuses decide whether those can act
    if call.kind in (messages.REMOTE, messages.WAITING):
        known = tuple(rank for rank in call.members if rank in states)
        return Need(known) if known else None
    if call.kind == messages.NEW_GROUP:
        return need_of_new_group(state, states)
    others = [s for r, s in states.items() if r in call.members and r != state.rank]
    if elsewhere := tuple(s.rank for s in others if s.call is None or s.call.op != call.op):
        return Need(elsewhere)
    ends = call.op in ("init_rpc", "shutdown")  # once all have called it
    return None if ends else Need(clash=f"Every rank waits in {call.op} for the others.")


def need_of_collective(state: RankStatus, states: Mapping[int, RankStatus]) -> Need | None:
    call = state.call
    others = [r for r in call.members if r != state.rank and r in states]
    begun = {
        r: {old.sequence: old for old in states[r].history if old.group == call.group}
        for r in others
    }
    missing = tuple(r for r in others if max(begun[r], default=0) < call.sequence)
    same = {r: calls[call.sequence] for r, calls in begun.items() if call.sequence in calls}
    # no group is left where a rank has destroyed it
    same = {r: theirs for r, theirs in same.items() if theirs.members}
    clash = disagreement({state.rank: call, **same})
    if missing or clash:
        return Need(missing, clash)
    return blocked_by_dropped(call, [state.rank, *others], states)


def why_unmatched(rank: int, call: CallRecord, states: Mapping[int, RankStatus]) -> str:
    """Why nothing matches an operation that a rank has begun: the other side has begun fewer; "" if
    it has not.
    """
    missing = need(replace(states[rank], call=call), states)
    if missing is None or not missing.ranks:
        return ""
    if call.kind == MESSAGE:
        return "was never received" if call.is_send else "nothing was sent for it"
    return f"was not called by {rank_list(missing.ranks)}"
