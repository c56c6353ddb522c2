"""What ranks did when another one failed or died, as far as it was seen or can be told from what
they raised.

Pure functions. Runs on the notebook's kernel, called by cell.py.
"""

from collections.abc import Mapping, Sequence

from distlab.diagnosis.matching import disagreement
from distlab.diagnosis.report import activity
from distlab.wire import messages
from distlab.wire.messages import Failure, RankStatus
from distlab.words import grouped, rank_list


def at_that_time(
    ranks: Sequence[int], seen: Mapping[int, RankStatus], raised: Sequence[Failure]
) -> dict[int, RankStatus]:
    """What ranks did when another one failed or died.

    Args:
        ranks: those that are asked for; all of them ran the cell.
        seen: what they did, as they answered then; a rank that failed or finished at once was not
            asked.
        raised: what they have raised.
    """
    failures = {failed.rank: failed for failed in raised}
    found = {rank: _then(rank, seen.get(rank), failures.get(rank)) for rank in ranks}
    return {rank: state for rank, state in found.items() if state is not None}


def _then(rank: int, seen: RankStatus | None, failed: Failure | None) -> RankStatus | None:
    """What a rank did at a time, from how it was seen and from what it has raised; None if that is
    not known.
    """
    if seen is not None and seen.doing == messages.COMMUNICATING:
        return seen
    waited = failed is not None and failed.consequence
    if (
        seen is not None
        and seen.doing == messages.COMPUTING
        and not (waited and failed.lines == seen.lines)
    ):
        return seen
    if waited:
        return RankStatus(rank, messages.COMMUNICATING, failed.call, failed.lines)
    return RankStatus(rank, messages.IDLE) if failed is None else None


def were_late(seen: Mapping[int, RankStatus]) -> str:
    """A sentence about ranks that computed while others waited for them; "" for none.

    Args:
        seen: what ranks did when the first one failed.
    """
    doing = [
        (activity(state), rank) for rank, state in seen.items() if state.doing == messages.COMPUTING
    ]
    was = [
        f"{rank_list(ranks)} {'were' if len(ranks) > 1 else 'was'} {what}"
        for what, ranks in grouped(doing).items()
    ]
    return f"At that time {', '.join(was)}." if was else ""


def clash_of(states: Mapping[int, RankStatus]) -> str:
    """How the calls of these ranks to one collective differ, a sentence; "" where nothing is known
    to differ.
    """
    calls = [(rank, state.call) for rank, state in states.items() if state.call is not None]
    collectives = [
        (rank, call) for rank, call in calls if call.kind == messages.COLLECTIVE and call.members
    ]
    alike = grouped(((call.group, call.sequence), (rank, call)) for rank, call in collectives)
    return next(filter(None, (disagreement(dict(those)) for those in alike.values())), "")


def last_calls(op: str, states: Mapping[int, RankStatus]) -> dict[int, RankStatus]:
    """As what they did last, the call of ranks that have finished, where their newest collective
    was this function.

    Whether a rank has finished such a call before another one dies of it is a matter of time: both
    read the same.
    """
    found = {}
    for rank, state in states.items():
        # in each group they are in their order
        newest = {call.group: call for call in state.history}
        alike = [call for call in newest.values() if call.op == op and call.tensors]
        if alike:
            found[rank] = RankStatus(rank, messages.COMMUNICATING, alike[0], alike[0].lines)
    return found
