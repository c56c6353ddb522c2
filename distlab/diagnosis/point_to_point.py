"""What a rank that waits in a send or a recv needs, and messages whose Work was dropped.

No process is asked. Runs on the notebook's kernel, called by proof.py.

The n-th send from one rank to another meets the n-th recv of the same group and tag, so it is
enough to count how many each side has begun. A recv from any source takes a message that no recv
from its sender takes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from distlab.diagnosis.needs import Need, Waiting
from distlab.wire.messages import MESSAGE, CallRecord, MessageCount, RankStatus, States
from distlab.words import rank_list


@dataclass(frozen=True)
class Exchange:
    """The messages of one group and tag to one receiver, as both sides have begun them.

    Attributes:
        sent: by rank, how many messages it has begun to send.
        kept: by rank, how many of these have not lost their Work undone.
        expected: by rank, how many recvs of the receiver name it as their source.
        from_any: how many recvs of the receiver take a message from any source.
    """

    sent: Mapping[int, int]
    kept: Mapping[int, int]
    expected: Mapping[int, int]
    from_any: int

    def serves(self, waiter: Waiting, coming: Mapping[int, int]) -> bool:
        """Whether a rank that waits in a send or a recv certainly has what it needs.

        False says that it may lack something: nobody knows which messages recvs from any source
        have taken. In a proof that is enough, because there nothing has moved for a while.

        Args:
            waiter: the rank that waits.
            coming: by rank, how many messages of it count: `sent` or `kept`.
        """
        call = waiter.call
        spare = self._spare(coming)
        if call.is_send:
            # a recv names this rank, or each spare message finds a recv from any source
            return call.sequence <= self.expected[waiter.rank] or spare <= self.from_any
        if call.peer is None:
            # each recv from any source finds a spare message
            return spare >= self.from_any
        # one message is left, even if every recv from any source takes one of this peer's
        return coming[call.peer] >= call.sequence + self.from_any

    def _spare(self, coming: Mapping[int, int]) -> int:
        """How many messages no recv names, so that only a recv from any source can take them."""
        spare = 0
        for rank, number in coming.items():
            spare += max(0, number - self.expected[rank])
        return spare

    def surely_lacks(self, waiter: Waiting) -> bool:
        """Whether nothing can match an operation, whichever messages recvs from any source took."""
        call = waiter.call
        if call.is_send:
            return call.sequence > self.expected[waiter.rank] + self.from_any
        if call.peer is None:
            return call.sequence > sum(self.sent.values())
        return call.sequence > self.sent[call.peer]

    def may_have_met(self, waiter: Waiting) -> bool:
        """Whether an operation was matched, or may have been without another one going without.

        That is so for a recv if there are spare messages for all recvs from any source. If one of
        these took a message that another recv names, the other one goes without, and nobody knows
        which it is.
        """
        call = waiter.call
        spare = self._spare(self.sent)
        if call.is_send:
            # the other senders leave this many recvs from any source to this one
            others = sum(self.sent.values()) - self.sent[waiter.rank]
            left_over = max(0, self.from_any - others)
            was_taken = call.sequence <= self.expected[waiter.rank] + left_over
            return was_taken or spare <= self.from_any
        if call.peer is None:
            return call.sequence <= spare
        return spare >= self.from_any and not self.surely_lacks(waiter)


def need_of_message(waiter: Waiting, states: States) -> Need | None:
    """The peer, or every possible one, unless the call already has its message or its recv."""
    call = waiter.call
    members = [rank for rank in call.members if rank in states]
    receiver = call.peer if call.is_send else waiter.rank
    peers = _possible_peers(waiter, members)
    concerned = {receiver, waiter.rank, *peers}
    if receiver is None or not concerned.issubset(members):
        return None  # no rank of the group has that number: nothing is known of it
    exchange = _exchange_with(call, receiver, members, states)
    if exchange is None:
        return None  # it may have all that it needs
    if not peers:
        whom = f"Rank {waiter.rank} waits for a message from any other rank"
        return Need(clash=f"{whom}, but its group has none.")
    if not exchange.serves(waiter, exchange.sent):
        clash = _other_tag(waiter, states[receiver]) if call.is_send else ""
        return Need(peers, clash)
    if not call.is_send and not exchange.serves(waiter, exchange.kept):
        # there were enough messages, but some were lost with their Work
        sources = members if call.peer is None else peers
        droppers = [rank for rank in sources if exchange.kept[rank] < exchange.sent[rank]]
        return _need_behind_isend(rank_list(droppers).capitalize(), waiter.rank)
    if call.peer is None:
        return None
    return blocked_by_dropped(call, (waiter.rank, call.peer), states)


def why_unmatched_message(waiter: Waiting, states: States) -> str:
    """Why nothing matches a send or a recv that lacks its other side, in words.

    A recv from any source may have taken what would have matched: then it is "perhaps", or "" where
    all may have been matched.

    Args:
        waiter: the rank with the operation, as if it waited in it.
        states: the statuses of every rank, by rank.
    """
    call = waiter.call
    members = [rank for rank in call.members if rank in states]
    receiver = call.peer if call.is_send else waiter.rank
    if receiver is None:
        return ""
    exchange = _exchange_with(call, receiver, members, states)
    if exchange is None or exchange.may_have_met(waiter):
        return ""
    is_sure = exchange.surely_lacks(waiter)
    if call.is_send:
        return "was never received" if is_sure else "was perhaps never received"
    return "nothing was sent for it" if is_sure else "perhaps nothing was sent for it"


def _possible_peers(waiter: Waiting, members: Sequence[int]) -> tuple[int, ...]:
    """The ranks that can be at the other end of the message."""
    if waiter.call.peer is not None:
        return (waiter.call.peer,)
    return tuple(rank for rank in members if rank != waiter.rank)


def _exchange_with(
    call: CallRecord, receiver: int, members: Sequence[int], states: States
) -> Exchange | None:
    """The messages of the call's group and tag to a receiver; None if any count is not known."""
    recvs_from_any = messages_begun(states[receiver], False, call.group, call.tag, None)
    if recvs_from_any is None:
        return None
    sent = {}
    kept = {}
    expected = {}
    for rank in members:
        sends = messages_begun(states[rank], True, call.group, call.tag, receiver)
        recvs = messages_begun(states[receiver], False, call.group, call.tag, rank)
        if sends is None or recvs is None:
            return None
        sent[rank] = sends.sequence
        kept[rank] = sends.sequence - sends.dropped
        expected[rank] = recvs.sequence
    return Exchange(sent, kept, expected, from_any=recvs_from_any.sequence)


def messages_begun(
    state: RankStatus, is_send: bool, group: str, tag: int, peer: int | None
) -> MessageCount | None:
    """How many messages of one kind a rank has begun, or None if that is not known.

    A rank reports the newest kinds only. Where none is left out, a kind that is not there has
    never been begun.

    Args:
        state: the rank's status.
        is_send: whether the rank sends them.
        group: the name of their group.
        tag: their tag.
        peer: the rank at the other end; None for recvs from any source.
    """
    key = (is_send, group, peer, tag)
    for one in state.traffic:
        if _kind_of_messages(one) == key:
            return one
    if state.more_traffic:
        return None
    return MessageCount(is_send, group, peer, tag, sequence=0)


def _other_tag(waiter: Waiting, receiver: RankStatus) -> str:
    """A sentence about a send whose receiver waits for another tag, or "" for anything else."""
    sent = waiter.call
    got = receiver.call
    if got is None or got.kind != MESSAGE or got.is_send:
        return ""
    if got.peer not in (waiter.rank, None):
        return ""
    if got.group != sent.group or got.tag == sent.tag:
        return ""
    sends = f"Rank {waiter.rank} sends with tag {sent.tag}"
    return f"{sends}, but rank {sent.peer} waits for tag {got.tag}."


# --- messages whose Work was dropped ---


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
    pairs = list(permutations(ends, 2))
    for sender, receiver in pairs:
        irecvs = lost_irecv(sender, receiver, states, call.group)
        if irecvs is not None:
            return _need_behind_irecv(irecvs, sender, states[receiver])
    for sender, receiver in pairs:
        if _has_lost_isend(sender, receiver, states, call.group):
            return _need_behind_isend(f"Rank {sender}", receiver)
    return None


def _has_lost_isend(sender: int, receiver: int, states: States, group: str) -> bool:
    """Whether the sender has dropped the Work of an isend for which the receiver has a recv."""
    for isends in states[sender].traffic:
        if not isends.is_send or not isends.dropped:
            continue
        if isends.group != group or isends.peer != receiver:
            continue
        recvs = messages_begun(states[receiver], False, group, isends.tag, sender)
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
        from_any = messages_begun(states[receiver], False, irecvs.group, irecvs.tag, None)
        if from_any is None or from_any.sequence:
            continue  # nobody knows which message it takes
        sends = messages_begun(states[sender], True, irecvs.group, irecvs.tag, receiver)
        if sends is not None and sends.sequence >= irecvs.first_dropped:
            return replace(irecvs, sequence=min(irecvs.sequence, sends.sequence))
    return None


def _need_behind_isend(whose: str, receiver: int) -> Need:
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
    key = _kind_of_messages(irecvs)
    position = ""
    for one in calls:
        if one.kind != MESSAGE or _kind_of_messages(one) != key:
            continue
        if one.lines and one.sequence <= irecvs.sequence:
            position = one.lines[-1].position
    return position


def _kind_of_messages(one: MessageCount | CallRecord) -> tuple[bool, str, int | None, int]:
    """What tells messages apart that are counted by themselves: direction, group, peer and tag."""
    return one.is_send, one.group, one.peer, one.tag
