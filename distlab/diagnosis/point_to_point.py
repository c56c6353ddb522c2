"""What a rank that waits in a send or a recv needs, and why nothing matches one.

No process is asked. Runs on the notebook's kernel, called by proof.py. How messages are counted is
in message_counts.py.
"""

from collections.abc import Sequence

from distlab.diagnosis.dropped_work import blocked_by_dropped, need_behind_isend
from distlab.diagnosis.message_counts import exchange_with
from distlab.diagnosis.needs import Need, Waiting
from distlab.wire.messages import MESSAGE, RankStatus, States
from distlab.words import rank_list


def need_of_message(waiter: Waiting, states: States) -> Need | None:
    """The peer, or every possible one, unless the call already has its message or its recv."""
    call = waiter.call
    members = [rank for rank in call.members if rank in states]
    receiver = call.peer if call.is_send else waiter.rank
    peers = _possible_peers(waiter, members)
    concerned = {receiver, waiter.rank, *peers}
    if receiver is None or not concerned.issubset(members):
        return None  # no rank of the group has that number: nothing is known of it
    exchange = exchange_with(call, receiver, members, states)
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
        return need_behind_isend(rank_list(droppers).capitalize(), waiter.rank)
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
    exchange = exchange_with(call, receiver, members, states)
    if exchange is None or exchange.may_have_met(waiter):
        return ""
    if exchange.surely_lacks(waiter):
        return "was never received" if call.is_send else "nothing was sent for it"
    return "was perhaps never received" if call.is_send else "perhaps nothing was sent for it"


def _possible_peers(waiter: Waiting, members: Sequence[int]) -> tuple[int, ...]:
    """The ranks that can be at the other end of the message."""
    if waiter.call.peer is not None:
        return (waiter.call.peer,)
    return tuple(rank for rank in members if rank != waiter.rank)


def _other_tag(waiter: Waiting, receiver: RankStatus) -> str:
    """A sentence about a send whose receiver waits for another tag, or "" for anything else."""
    sent = waiter.call
    got = receiver.call
    if got is None or got.kind != MESSAGE or got.is_send:
        return ""
    may_be_for_it = got.peer in (waiter.rank, None) and got.group == sent.group
    if not may_be_for_it or got.tag == sent.tag:
        return ""
    sends = f"Rank {waiter.rank} sends with tag {sent.tag}"
    return f"{sends}, but rank {sent.peer} waits for tag {got.tag}."
