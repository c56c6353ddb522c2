"""Who waits for whom, and whether the wait can end: pure functions over the statuses of the ranks.

Runs on the notebook's kernel, called by cell.py, ranks.py and report.py; on ranks by groups.py.

The judgement is a proof, not a guess. A rank that waits in a call needs others: the peer of a
message, or the members of a group that have not called the collective yet. A rank that computes,
that does not answer, whose call ends by itself, or for which all that it needs has been begun can
still go on, and so can each rank that needs it. Where no rank can, no rank will begin anything any
more: that is a deadlock. cell.py calls it one only after nothing has moved for a while.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from distlab.diagnosis.matching import by_value, disagreement
from distlab.wire import messages
from distlab.wire.messages import (
    COLLECTIVE,
    MESSAGE,
    Answer,
    CallRecord,
    MessageCount,
    NewGroup,
    RankStatus,
)
from distlab.words import grouped, rank_list

RULE_OF_GROUPS = (
    "every rank must call new_group, even for a group that it is not in, and in the same order"
)
DIFFERENT_GROUPS = "The ranks do not make the same group"  # how `words_of_groups` begin
MOST_GROUPS = 4  # that are named in one sentence


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


@dataclass(frozen=True)
class Need:
    """What a waiting rank needs.

    Attributes:
        ranks: all or any of them.
        clash: why that can never happen, a sentence.
    """

    ranks: tuple[int, ...] = ()
    clash: str = ""


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
        _lost_irecv(sender, receiver, now) for sender, receiver in permutations(now, 2)
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
        return _need_of_message(state, states)
    if call.kind == COLLECTIVE:
        return _need_of_collective(state, states)
    # their own statuses decide whether those can act
    if call.kind in (messages.REMOTE, messages.WAITING):
        known = tuple(rank for rank in call.members if rank in states)
        return Need(known) if known else None
    if call.kind == messages.NEW_GROUP:
        return _need_of_new_group(state, states)
    others = [s for r, s in states.items() if r in call.members and r != state.rank]
    if elsewhere := tuple(s.rank for s in others if s.call is None or s.call.op != call.op):
        return Need(elsewhere)
    ends = call.op in ("init_rpc", "shutdown")  # once all have called it
    return None if ends else Need(clash=f"Every rank waits in {call.op} for the others.")


def _need_of_new_group(state: RankStatus, states: Mapping[int, RankStatus]) -> Need | None:
    """The members that have not begun to make this group, or make another one in its place."""
    call = state.call
    begun = {r: _made(states[r], call.group) for r in call.members if r in states}
    missing = tuple(r for r, group in begun.items() if group is None and r != state.rank)
    if any(call.sequence and states[r].groups > call.sequence for r in missing):
        return None  # it has made this group, which it no longer remembers
    known = {r: (group,) for r, group in begun.items() if group is not None}
    clash = words_of_groups(differing_groups(known)) or _other_name(
        state, [states[r] for r in missing]
    )
    return Need(missing, clash) if missing or clash else None


def _made(state: RankStatus, name: str) -> NewGroup | None:
    """The group of this name that a rank has made, or makes; None if it does not, or no longer
    remembers it.
    """
    return next((group for group in reversed(state.made) if group.name == name), None)


def _other_name(state: RankStatus, others: Sequence[RankStatus]) -> str:
    """A sentence about members that make the same group alone under another name; "" for anything
    else.
    """
    call = state.call
    own = _made(state, call.group)
    alike = [
        s for s in others if s.call and s.call.kind == call.kind and s.call.members == call.members
    ]
    theirs = [_made(other, other.call.group) for other in alike]
    within = {group.rank: group.within for group in (own, *theirs) if group is not None}
    if len(set(within.values())) < 2:
        return ""
    counts = by_value({rank: str(number) for rank, number in within.items()}, ("is in", "are in"))
    start = f"The members of the group of {rank_list(call.members)} cannot find each other"
    option = "use_local_synchronization=True"
    rule = f"torch names a group with {option} by its members and by how many groups a rank is in"
    return f"{start}: {rule}, and {counts}. Leave {option} out, and make every group on every rank."


def differing_groups(made: Mapping[int, Sequence[NewGroup]]) -> dict[int, NewGroup]:
    """What the ranks make under the first number under which they do not make the same group; empty
    if there is none.

    Ranks that make a group of themselves alone, each under the same number, do no harm.

    Args:
        made: by rank, the groups that it has made.
    """
    by_number: dict[int, dict[int, NewGroup]] = {}
    for rank, groups in made.items():
        for group in groups:
            if group.name.isdigit():
                by_number.setdefault(int(group.name), {})[rank] = group
    for _, groups_of_number in sorted(by_number.items()):
        members = {group.members for group in groups_of_number.values()}
        if len(members) > 1 and max(map(len, members)) > 1:
            return groups_of_number
    return {}


def words_of_groups(groups: Mapping[int, NewGroup]) -> str:
    """What each rank makes, and where, of groups that differ under one number; "" without any.

    Args:
        groups: by rank.
    """
    if not groups:
        return ""
    number = next(iter(groups.values())).name
    alike = grouped((_group_words(group), rank) for rank, group in sorted(groups.items()))
    ordered = sorted(alike.items(), key=lambda item: (len(item[1]), item[1]))
    makes = [
        f"{rank_list(ranks)} {'make' if len(ranks) > 1 else 'makes'} {what}"
        for what, ranks in ordered
    ]
    more = f", and {len(makes) - MOST_GROUPS} more" if len(makes) > MOST_GROUPS else ""
    start = f"{DIFFERENT_GROUPS} in their new_group call number {number}"
    return f"{start}: {', '.join(makes[:MOST_GROUPS])}{more}, but {RULE_OF_GROUPS}."


def _group_words(group: NewGroup) -> str:
    where = f" ({group.line.position})" if group.line else ""
    return f"one of {rank_list(group.members)}{where}"


def _need_of_message(state: RankStatus, states: Mapping[int, RankStatus]) -> Need | None:
    """The peer, or every possible one, unless there already is a message, or a recv, for the call."""
    call, peer = state.call, state.call.peer
    receiver = peer if call.is_send else state.rank
    members = [r for r in call.members if r in states]
    if not {receiver, state.rank, state.rank if peer is None else peer} <= set(members):
        return None  # no rank of the group has that number: nothing is known of it
    sends = {r: _count(states[r], True, call.group, call.tag, receiver) for r in members}
    recvs = {r: _count(states[receiver], False, call.group, call.tag, r) for r in members}
    recvs_from_any = _count(states[receiver], False, call.group, call.tag, None)
    if None in (*sends.values(), *recvs.values(), recvs_from_any):
        return None  # it may have all that it needs
    sent = {r: count.sequence for r, count in sends.items()}
    kept = {r: count.sequence - count.dropped for r, count in sends.items()}
    expected = {r: count.sequence for r, count in recvs.items()}
    from_any = recvs_from_any.sequence

    def served(coming: Mapping[int, int]) -> bool:
        # what only a recv from any source can take
        spare = sum(max(0, coming[r] - expected[r]) for r in members)
        if call.is_send:
            return call.sequence <= expected[state.rank] or spare <= from_any
        return spare >= from_any if peer is None else coming[peer] >= call.sequence + from_any

    peers = tuple(r for r in members if r != state.rank) if peer is None else (peer,)
    if not peers:
        return Need(
            clash=f"Rank {state.rank} waits for a message from any other rank, but its group has none."
        )
    if not served(sent):
        return Need(peers, _wrong_tag(state, states))
    if call.is_send or served(kept):
        return None if peer is None else _blocked_by_dropped(call, (state.rank, peer), states)
    whose = rank_list(
        [r for r in (members if peer is None else peers) if kept[r] < sent[r]]
    ).capitalize()
    return _lost(whose, state.rank)


def _lost(whose: str, receiver: int) -> Need:
    lost = f"{whose} dropped the Work of its isend, and the message to rank {receiver} with it"
    return Need(clash=f"{lost}: keep the Work and call its wait().")


def _blocked_by_dropped(
    call: CallRecord, ends: Iterable[int], states: Mapping[int, RankStatus]
) -> Need | None:
    """Why a call that has all that it needs does not end: a message between two of its ranks blocks
    it; None if none.

    gloo's thread looks again and again for the data of a message whose recv is there and whose Work
    was dropped, and nothing else moves between these two ranks. A message that was sent before its
    Work was dropped does no harm, but then the call moves, and what moves is not proven. In the
    same way, it looks for the memory of a message that comes after the Work of its irecv was
    dropped. Where that is known, its isend has been sent, if it was dropped or not.
    """
    pairs = list(permutations(ends, 2))
    for sender, receiver in pairs:
        irecv = _lost_irecv(sender, receiver, states, call.group)
        if irecv is not None:
            return _not_received(irecv, sender, states[receiver])
    for sender, receiver in pairs:
        for one in states[sender].traffic:
            if not (
                one.is_send and one.dropped and (one.group, one.peer) == (call.group, receiver)
            ):
                continue
            recvs = _count(states[receiver], False, call.group, one.tag, sender)
            if recvs is not None and recvs.sequence >= one.first_dropped:
                return _lost(f"Rank {sender}", receiver)
    return None


def _lost_irecv(
    sender: int, receiver: int, states: Mapping[int, RankStatus], group: str | None = None
) -> MessageCount | None:
    """Messages of which the receiver has dropped the Work, and the sender has sent one; None if
    there are none.

    One that has arrived before does no harm: the receiver reads all that comes after it.

    Args:
        group: in which; None for any.
    """
    if not states[receiver].unread:
        return None
    for irecvs in reversed(states[receiver].traffic):
        if (
            irecvs.is_send
            or not irecvs.dropped
            or irecvs.peer != sender
            or group not in (irecvs.group, None)
        ):
            continue
        from_any = _count(states[receiver], False, irecvs.group, irecvs.tag, None)
        if from_any is None or from_any.sequence:
            continue  # nobody knows which message it takes
        sends = _count(states[sender], True, irecvs.group, irecvs.tag, receiver)
        if sends is not None and sends.sequence >= irecvs.first_dropped:
            return replace(irecvs, sequence=min(irecvs.sequence, sends.sequence))
    return None


def _not_received(irecvs: MessageCount, sender: int, receiver: RankStatus) -> Need:
    """The need of a call behind a message of which the receiver has dropped the Work.

    Args:
        irecvs: as many as were sent. Older ones may have arrived before, not the newest that was
            dropped.
    """
    kind = (False, irecvs.group, irecvs.peer, irecvs.tag)
    calls = [
        one for one in receiver.abandoned if (one.is_send, one.group, one.peer, one.tag) == kind
    ]
    lines = [
        one.lines[-1]
        for one in calls
        if one.kind == MESSAGE and one.lines and one.sequence <= irecvs.sequence
    ]
    where = f" ({lines[-1].position})" if lines else ""
    lost = f"Rank {receiver.rank} dropped the Work of its irecv{where}, and the message from rank {sender} with it"
    return Need(clash=f"{lost}: keep the Work and call its wait().")


def _wrong_tag(state: RankStatus, states: Mapping[int, RankStatus]) -> str:
    """A sentence about a send whose receiver waits for another tag; "" for anything else."""
    sent = state.call
    got = states[sent.peer].call if sent.is_send else None
    if got is None or got.kind != MESSAGE or got.is_send or got.peer not in (state.rank, None):
        return ""
    if got.group != sent.group or got.tag == sent.tag:
        return ""
    return f"Rank {state.rank} sends with tag {sent.tag}, but rank {sent.peer} waits for tag {got.tag}."


def _count(
    state: RankStatus, is_send: bool, group: str, tag: int, peer: int | None
) -> MessageCount | None:
    """How many messages of this group and tag a rank has begun to send to, or receive from, a peer
    (None: any).

    None where that is not known.
    """
    key = (is_send, group, peer, tag)
    for one in state.traffic:
        if (one.is_send, one.group, one.peer, one.tag) == key:
            return one
    return None if state.more_traffic else MessageCount(*key, sequence=0)


def _need_of_collective(state: RankStatus, states: Mapping[int, RankStatus]) -> Need | None:
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
    return _blocked_by_dropped(call, [state.rank, *others], states)


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
