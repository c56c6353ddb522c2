"""What ranks did when another one failed or died, as far as anybody knows.

It was seen, or can be told from what they raised. Pure functions. Runs on the notebook's kernel,
called by failed_cell.py.
"""

from collections.abc import Sequence

from distlab.diagnosis.matching import disagreement
from distlab.diagnosis.report import activity
from distlab.wire import messages
from distlab.wire.messages import CallRecord, Failure, RankStatus, States
from distlab.words import grouped, rank_list


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
        seen: how it was seen, if it was.
        failed: what it has raised, if it has.
    """
    if seen is not None and seen.doing == messages.COMMUNICATING:
        return seen
    if failed is None or not failed.consequence:
        if seen is not None and seen.doing == messages.COMPUTING:
            return seen
        return RankStatus(rank, messages.IDLE) if failed is None else None
    # It raised because it waited for another rank. If it was seen to compute in the same lines, it
    # was only on its way into or out of that wait.
    computed_elsewhere = (
        seen is not None and seen.doing == messages.COMPUTING and seen.lines != failed.lines
    )
    if computed_elsewhere:
        return seen
    return RankStatus(rank, messages.COMMUNICATING, failed.call, failed.lines)


def were_late(seen: States) -> str:
    """A sentence about ranks that computed while others waited for them; "" if none did.

    Args:
        seen: what ranks did when the first one failed, by rank.
    """
    computing = grouped(
        (activity(state), rank) for rank, state in seen.items() if state.doing == messages.COMPUTING
    )
    parts = []
    for what, ranks in computing.items():
        were = "were" if len(ranks) > 1 else "was"
        parts.append(f"{rank_list(ranks)} {were} {what}")
    return f"At that time {', '.join(parts)}." if parts else ""


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
        newest = {call.group: call for call in state.history}  # in each group they are in order
        alike = [call for call in newest.values() if call.op == op and call.tensors]
        if alike:
            found[rank] = RankStatus(rank, messages.COMMUNICATING, alike[0], alike[0].lines)
    return found
