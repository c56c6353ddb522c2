"""Who waits for whom, and whether the wait can end, by the statuses of the ranks.

No process is asked. Runs on the notebook's kernel, called by cell.py, ranks.py and live.py, and by
report.py, stuck.py and ddp_passes.py beside it.

The judgement is a proof, not a guess. A rank that waits in a call needs others: the peer of a
message, or the members of a group that have not called the collective yet. A rank that computes,
that does not answer, whose call ends by itself, or for which all that it needs has been begun can
still go on, and so can each rank that needs it. Where no rank can, no rank will begin anything any
more: that is a deadlock. cell.py calls it one only after nothing has moved for a while.
"""

from dataclasses import replace
from itertools import permutations

from distlab.diagnosis.dropped_work import blocked_by_dropped, lost_irecv
from distlab.diagnosis.matching import disagreement
from distlab.diagnosis.needs import Need, Waiting, waiter_in
from distlab.diagnosis.new_groups import need_of_new_group
from distlab.diagnosis.own_worlds import need_of_own_world
from distlab.diagnosis.point_to_point import need_of_message, why_unmatched_message
from distlab.wire import messages
from distlab.wire.messages import Answer, CallRecord, RankStatus, States
from distlab.words import rank_list

# What a rank does that begins nothing more. Of the last two that is not known: whoever judges what
# a job has left says so in words.
AT_REST = (messages.IDLE, messages.COMMUNICATING, messages.OUTSIDE, messages.UNKNOWN)
# calls of RPC that end as soon as every rank has called them
END_TOGETHER = ("init_rpc", "shutdown")


def status_of(rank: int, answer: Answer | None, with_work: bool = False) -> RankStatus:
    """What a rank is doing, from its answer to a question.

    Args:
        rank: the rank.
        answer: its answer, or None if none came.
        with_work: whether the rank still owes a reply.
    """
    if answer is None or answer.status is None:
        return RankStatus(rank, messages.SILENT)
    if with_work and answer.status.idle:
        return replace(answer.status, doing=messages.BETWEEN)
    return answer.status


# --- whether anything moves ---


def unmoved(before: States, now: States) -> bool:
    """Whether nothing happened on any rank between two looks, and nothing is about to happen.

    gloo's own threads have run in between, so they have delivered what they had at the first look.

    Args:
        before: the statuses at the first look, by rank.
        now: the statuses at the second look.
    """
    if before.keys() != now.keys():
        return False
    if not all(_unmoved(before[rank], state) for rank, state in now.items()):
        return False
    if _has_bytes_under_way(before) or _has_bytes_under_way(now):
        return _is_stuck(before, now)
    return True


def _unmoved(before: RankStatus, now: RankStatus) -> bool:
    """Whether nothing happened on one rank between two looks."""
    if now.doing == messages.SILENT:
        return False
    if not (before.is_quiescent and now.is_quiescent):
        return False
    return now.fingerprint == before.fingerprint and _gloo_has_run(before, now)


def _gloo_has_run(before: RankStatus, now: RankStatus) -> bool:
    """Whether each of gloo's threads on a rank has run between two looks."""
    if len(now.gloo_wakeups) != len(before.gloo_wakeups):
        return False  # a thread began or ended
    for earlier, later in zip(before.gloo_wakeups, now.gloo_wakeups, strict=True):
        if later <= earlier:
            return False
    return True


def _has_bytes_under_way(states: States) -> bool:
    """Whether the sockets of any rank hold bytes."""
    return any(state.unread or state.unsent for state in states.values())


def _is_stuck(before: States, now: States) -> bool:
    """Whether the bytes in the sockets will stay there.

    gloo does not read a message whose irecv was dropped, nor anything that comes after it.
    """
    for rank, state in now.items():
        if (before[rank].unread, before[rank].unsent) != (state.unread, state.unsent):
            return False
    for sender, receiver in permutations(now, 2):
        if lost_irecv(sender, receiver, now) is not None:
            return True
    return False


# --- whether any rank can go on ---


def proof(states: States) -> dict[int, Need] | None:
    """For every rank that has not finished, why it never will; None while any of them may go on.

    Args:
        states: the statuses of every rank of the cluster.
    """
    needs = {}
    for rank, state in states.items():
        if state.doing not in AT_REST:
            return None
        # a thread that can go on may send what another rank needs
        for thread in (*state.serving, *state.other_threads):
            if need_of(thread, states) is None:
                return None
        if state.doing == messages.COMMUNICATING:
            needed = need_of(state, states)
            if needed is None:
                return None
            needs[rank] = needed
    return needs or None


def need_of(state: RankStatus, states: States) -> Need | None:
    """What a waiting rank needs, or None if it can go on.

    It can go on if it has what it needs, or if its call ends by itself.

    Args:
        state: the status of the rank, or of one of its threads.
        states: the statuses of every rank, by rank.
    """
    waiter = waiter_in(state)
    if waiter is None or waiter.call.own_limit:
        return None
    if not waiter.call.members:
        return None  # its group was destroyed
    kind = waiter.call.kind
    if kind == messages.MESSAGE:
        return need_of_message(waiter, states)
    if kind == messages.COLLECTIVE:
        return need_of_collective(waiter, states)
    if kind == messages.NEW_GROUP:
        return need_of_new_group(waiter, states)
    if kind == messages.OWN_WORLD:
        return need_of_own_world(waiter, states)
    if kind in (messages.REMOTE, messages.WAITING):
        return _need_of_named_ranks(waiter, states)
    return _need_of_every_member(waiter, states)


def need_of_collective(waiter: Waiting, states: States) -> Need | None:
    """The members that have not called this collective yet, or how its calls differ."""
    call = waiter.call
    others = [rank for rank in call.members if rank != waiter.rank and rank in states]
    missing = []
    calls = {waiter.rank: call}
    for rank in others:
        newest = 0
        for old in states[rank].history:
            if old.group != call.group:
                continue
            newest = max(newest, old.sequence)
            # one without members is of a group that the rank has destroyed since
            if old.sequence == call.sequence and old.members:
                calls[rank] = old
        if newest < call.sequence:
            missing.append(rank)
    clash = disagreement(calls)
    if missing or clash:
        return Need(tuple(missing), clash)
    return blocked_by_dropped(call, [waiter.rank, *others], states)


def _need_of_named_ranks(waiter: Waiting, states: States) -> Need | None:
    """The ranks that a remote call, or a wait of the learner's own, names.

    Whether these ranks can act is decided by their own statuses.
    """
    known = tuple(rank for rank in waiter.call.members if rank in states)
    return Need(known) if known else None


def _need_of_every_member(waiter: Waiting, states: States) -> Need | None:
    """The members that do not wait in the same function, of a wait that C++ makes."""
    op = waiter.call.op
    elsewhere = []
    for rank, state in states.items():
        if rank not in waiter.call.members or rank == waiter.rank:
            continue
        if state.call is None or state.call.op != op:
            elsewhere.append(rank)
    if elsewhere:
        return Need(tuple(elsewhere))
    if op in END_TOGETHER:
        return None
    return Need(clash=f"Every rank waits in {op} for the others.")


def why_unmatched(rank: int, call: CallRecord, states: States) -> str:
    """Why nothing matches an operation that a rank has begun, or "" if something does.

    Nothing matches it if the other side has begun fewer of its kind.

    Args:
        rank: the rank that has begun the operation.
        call: the operation.
        states: the statuses of every rank, by rank.
    """
    state = replace(states[rank], call=call)
    missing = need_of(state, states)
    if missing is None or not missing.ranks:
        return ""
    if call.kind == messages.MESSAGE:
        return why_unmatched_message(Waiting(state, call), states)
    return f"was not called by {rank_list(missing.ranks)}"
