"""What ranks did when another one failed or died, as far as anybody knows.

It was seen, or can be told from what they raised. No process is asked. Runs on the notebook's
kernel, called by failed_cell.py.
"""

from collections.abc import Sequence

from distlab.diagnosis.matching import disagreement
from distlab.diagnosis.needs import newest_collectives
from distlab.diagnosis.report import activity
from distlab.wire import messages
from distlab.wire.messages import CallRecord, Failure, RankStatus, States
from distlab.words import grouped, ranks_and_verb


def at_that_time(
    ranks: Sequence[int], seen: States, raised: Sequence[Failure]
) -> dict[int, RankStatus]:
    """What ranks did when another one failed or died, by rank; without those that nobody knows of.

    Args:
        ranks: the ranks in question; all of them ran the cell.
        seen: what they did, as they answered then; a rank that failed or finished at once was not
            asked.
        raised: what they have raised.
    """
    failures = {failed.rank: failed for failed in raised}
    found = {}
    for rank in ranks:
        state = _then(rank, seen.get(rank), failures.get(rank))
        if state is not None:
            found[rank] = state
    return found


def _then(rank: int, seen: RankStatus | None, failed: Failure | None) -> RankStatus | None:
    """What a rank did at that time; None if nobody knows.

    Args:
        rank: the rank.
        seen: how it was seen, if it was. One that did not answer then, or had not begun, was not
            seen to do anything: what it has raised since says more.
        failed: what it has raised, if it has.
    """
    if seen is not None and seen.doing == messages.COMMUNICATING:
        return seen
    computed = seen if seen is not None and seen.doing == messages.COMPUTING else None
    if failed is None:
        return computed or RankStatus(rank, messages.IDLE)
    if not failed.consequence:
        return computed
    # It raised because it waited for another rank. If it was seen to compute in the same lines, it
    # was only on its way into or out of that wait.
    if computed is not None and computed.lines and computed.lines != failed.lines:
        return computed
    return RankStatus(rank, messages.COMMUNICATING, failed.call, failed.lines)


def were_late(seen: States) -> str:
    """A sentence about ranks that computed while others waited for them; "" if none did.

    Args:
        seen: what ranks did when the first one failed, by rank.
    """
    computing = []
    for rank, state in seen.items():
        if state.doing == messages.COMPUTING:
            computing.append((activity(state), rank))
    parts = []
    for what, ranks in grouped(computing).items():
        parts.append(f"{ranks_and_verb(ranks, 'was', 'were')} {what}")
    if not parts:
        return ""
    return f"At that time {', '.join(parts)}."


def clash_of(states: States) -> str:
    """How the ranks' calls to one collective differ, in a sentence; "" if they may match."""
    collectives: dict[tuple[str, int], dict[int, CallRecord]] = {}
    for rank, state in states.items():
        call = state.call
        if call is not None and call.kind == messages.COLLECTIVE and call.members:
            collectives.setdefault((call.group, call.sequence), {})[rank] = call
    for calls in collectives.values():
        clash = disagreement(calls)
        if clash:
            return clash
    return ""


def last_calls(op: str, states: States) -> dict[int, RankStatus]:
    """The ranks whose newest collective was this function, as if they still waited in it.

    Whether a rank has finished such a call before another one dies of it is a matter of time: both
    read the same.

    Args:
        op: the function.
        states: the statuses of ranks that have finished, by rank.
    """
    found = {}
    for rank, state in states.items():
        for call in newest_collectives(state):
            if call.op == op and call.tensors:
                found[rank] = RankStatus(rank, messages.COMMUNICATING, call, call.lines)
                break
    return found
