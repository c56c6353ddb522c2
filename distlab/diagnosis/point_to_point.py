"""What a rank that waits in a send or a recv needs, and messages whose Work was dropped.

Pure functions. Runs on the notebook's kernel, called by proof.py.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import permutations

from distlab.diagnosis.needs import Need
from distlab.wire.messages import MESSAGE, CallRecord, MessageCount, RankStatus
from distlab.words import rank_list


def need_of_message(state: RankStatus, states: Mapping[int, RankStatus]) -> Need | None:
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
        return None if peer is None else blocked_by_dropped(call, (state.rank, peer), states)
    whose = rank_list(
        [r for r in (members if peer is None else peers) if kept[r] < sent[r]]
    ).capitalize()
    return _lost(whose, state.rank)


def _lost(whose: str, receiver: int) -> Need:
    lost = f"{whose} dropped the Work of its isend, and the message to rank {receiver} with it"
    return Need(clash=f"{lost}: keep the Work and call its wait().")


def blocked_by_dropped(
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
        irecv = lost_irecv(sender, receiver, states, call.group)
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


def lost_irecv(
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
