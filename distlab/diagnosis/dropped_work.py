"""Messages whose Work was dropped before they were complete, and the calls that they block.

No process is asked. Runs on the notebook's kernel, called by proof.py and point_to_point.py.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations

from distlab.diagnosis.message_counts import kind_of_messages, recvs_begun, sends_begun
from distlab.diagnosis.needs import Need
from distlab.wire.messages import MESSAGE, CallRecord, MessageCount, RankStatus, States


def blocked_by_dropped(call: CallRecord, ends: Iterable[int], states: States) -> Need | None:
    """Why a call that has all that it needs does not end, or None if it does.

    A message between two of its ranks may block it, in one of two ways:

    - The sender has dropped the Work of an isend for which the receiver has a recv. gloo's thread
      looks again and again for the data, and nothing else moves between these two ranks. If the
      message was sent before its Work was dropped, it does no harm; but then the call moves, and
      of what moves nothing is proven.
    - The receiver has dropped the Work of an irecv, and its message comes later. gloo's thread then
      looks again and again for the memory. Where that is known, the message has been sent, whether
      the Work of its isend was dropped or not.

    Args:
        call: the call that does not end.
        ends: its ranks.
        states: the statuses of every rank, by rank.
    """
    ends = list(ends)
    if not any(count.dropped for rank in ends for count in states[rank].traffic):
        return None  # there are many pairs of many ranks
    pairs = list(permutations(ends, 2))
    for sender, receiver in pairs:
        irecvs = lost_irecv(sender, receiver, states, call.group)
        if irecvs is not None:
            return _need_behind_irecv(irecvs, sender, states[receiver])
    for sender, receiver in pairs:
        if _has_lost_isend(sender, receiver, states, call.group):
            return need_behind_isend(f"Rank {sender}", receiver)
    return None


def _has_lost_isend(sender: int, receiver: int, states: States, group: str) -> bool:
    """Whether the sender has dropped the Work of an isend for which the receiver has a recv."""
    for isends in states[sender].traffic:
        if not isends.is_send or not isends.dropped:
            continue
        if isends.group != group or isends.peer != receiver:
            continue
        recvs = recvs_begun(states[receiver], group, isends.tag, sender)
        if recvs is not None and recvs.sequence >= isends.first_dropped:
            return True
    return False


def lost_irecv(
    sender: int, receiver: int, states: States, group: str | None = None
) -> MessageCount | None:
    """Messages of which the receiver has dropped the Work, and the sender has sent one; or None.

    A message that arrived before does no harm: the receiver reads all that comes after it.

    Args:
        sender: the rank that has sent them.
        receiver: the rank that does not read them.
        states: the statuses of every rank, by rank.
        group: the name of their group; None for any.
    """
    if not states[receiver].unread:
        return None
    for irecvs in reversed(states[receiver].traffic):
        if irecvs.is_send or not irecvs.dropped or irecvs.peer != sender:
            continue
        if group is not None and irecvs.group != group:
            continue
        from_any = recvs_begun(states[receiver], irecvs.group, irecvs.tag, source=None)
        if from_any is None or from_any.sequence:
            continue  # nobody knows which message it takes
        sends = sends_begun(states[sender], irecvs.group, irecvs.tag, receiver)
        if sends is not None and sends.sequence >= irecvs.first_dropped:
            return replace(irecvs, sequence=min(irecvs.sequence, sends.sequence))
    return None


def need_behind_isend(whose: str, receiver: int) -> Need:
    """The need of a call behind a message of which the sender has dropped the Work.

    Args:
        whose: the senders, in words that begin a sentence.
        receiver: the rank that the message was for.
    """
    lost = f"{whose} dropped the Work of its isend, and the message to rank {receiver} with it"
    return Need(clash=f"{lost}: keep the Work and call its wait().")


def _need_behind_irecv(irecvs: MessageCount, sender: int, receiver: RankStatus) -> Need:
    """The need of a call behind a message of which the receiver has dropped the Work.

    Args:
        irecvs: the messages, as many as were sent. Older ones may have arrived before, but not the
            newest one that was dropped.
        sender: the rank that has sent them.
        receiver: the status of the rank that has dropped their Work.
    """
    dropped = f"Rank {receiver.rank} dropped the Work of its irecv"
    position = _position_of_newest(irecvs, receiver.abandoned)
    if position:
        dropped += f" ({position})"
    lost = f"{dropped}, and the message from rank {sender} with it"
    return Need(clash=f"{lost}: keep the Work and call its wait().")


def _position_of_newest(irecvs: MessageCount, calls: Iterable[CallRecord]) -> str:
    """Where the newest of some irecvs was called: "line 3"; "" if no call has a line."""
    key = kind_of_messages(irecvs)
    position = ""
    for one in calls:
        if one.kind != MESSAGE or kind_of_messages(one) != key:
            continue
        if one.lines and one.sequence <= irecvs.sequence:
            position = one.lines[-1].position
    return position
