"""How many messages each side has begun to send and to receive, and what that says of a call.

No process is asked. Runs on the notebook's kernel, called by point_to_point.py and dropped_work.py
beside it.

The n-th send from one rank to another meets the n-th recv of the same group and tag, so it is
enough to count how many each side has begun. A recv from any source takes a message that no recv
from its sender takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from distlab.diagnosis.needs import Waiting
from distlab.wire.messages import CallRecord, MessageCount, RankStatus, States


class MessageKind(NamedTuple):
    """What tells messages apart that are counted by themselves.

    Attributes:
        is_send: whether the rank that counts them sends them.
        group: the name of their group.
        peer: the rank at the other end; None for any.
        tag: their tag.
    """

    is_send: bool
    group: str
    peer: int | None
    tag: int


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
            is_named = call.sequence <= self.expected[waiter.rank]
            return is_named or spare <= self.from_any
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
            of_others = sum(self.sent.values()) - self.sent[waiter.rank]
            remaining = max(0, self.from_any - of_others)
            was_taken = call.sequence <= self.expected[waiter.rank] + remaining
            return was_taken or spare <= self.from_any
        if call.peer is None:
            return call.sequence <= spare
        return spare >= self.from_any and not self.surely_lacks(waiter)


def exchange_with(
    call: CallRecord, receiver: int, members: Sequence[int], states: States
) -> Exchange | None:
    """The messages of the call's group and tag to a receiver; None if any count is not known."""
    from_any = recvs_begun(states[receiver], call.group, call.tag, source=None)
    if from_any is None:
        return None
    sent = {}
    kept = {}
    expected = {}
    for rank in members:
        sends = sends_begun(states[rank], call.group, call.tag, receiver)
        recvs = recvs_begun(states[receiver], call.group, call.tag, rank)
        if sends is None or recvs is None:
            return None
        sent[rank] = sends.sequence
        kept[rank] = sends.sequence - sends.dropped
        expected[rank] = recvs.sequence
    return Exchange(sent, kept, expected, from_any=from_any.sequence)


def sends_begun(state: RankStatus, group: str, tag: int, receiver: int) -> MessageCount | None:
    """How many messages a rank has begun to send to another one, or None if that is not known."""
    return _begun(state, MessageCount(True, group, receiver, tag, sequence=0))


def recvs_begun(state: RankStatus, group: str, tag: int, source: int | None) -> MessageCount | None:
    """How many recvs a rank has begun from a source, or None if that is not known.

    Args:
        state: the rank's status.
        group: the name of the messages' group.
        tag: their tag.
        source: the rank that they name; None for recvs from any source.
    """
    return _begun(state, MessageCount(False, group, source, tag, sequence=0))


def _begun(state: RankStatus, none: MessageCount) -> MessageCount | None:
    """How many messages of a kind a rank has begun, or None if that is not known.

    A rank reports the newest kinds only. Where none is left out, a kind that is not there has
    never been begun.

    Args:
        state: the rank's status.
        none: a count of this kind that says that there are none.
    """
    for count in state.traffic:
        if kind_of_messages(count) == kind_of_messages(none):
            return count
    if state.more_traffic:
        return None
    return none


def kind_of_messages(one: MessageCount | CallRecord) -> MessageKind:
    """The kind of a message, or of those that a count is about."""
    return MessageKind(one.is_send, one.group, one.peer, one.tag)
