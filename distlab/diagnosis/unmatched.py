"""Which operations a cell has begun that nothing can match any more, and the words for them: pure functions.

Runs on the notebook's kernel, called by ranks.py after a cell and by cell.py when one cannot go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distlab.diagnosis.proof import messages_begun
from distlab.diagnosis.report import call_words
from distlab.text import rank_list
from distlab.wire.messages import MESSAGE, CallRecord, RankStatus


def left(states: Mapping[int, RankStatus]) -> list[str]:
    """A line for each operation that nobody waits for, and whose other side has not begun it."""
    found = []
    for rank, state in states.items():
        for call in state.left:
            if why := _why(rank, call, states):
                found.append(f"  {_what(rank, call)}, {why}")
    return found


def why_it_stays(states: Mapping[int, RankStatus], is_simulated: bool) -> str:
    """Why the group is not rebuilt without them, in words; "" where it can be."""
    if is_simulated:
        return "this cluster is simulated, and virtual time goes on"
    keep = [rank for rank, state in states.items() if state.kept]
    return f"{rank_list(keep)} may still wait for what an operation has returned" if keep else ""


def words(lines: Sequence[str], stays: str, gone: str) -> str:
    """What to show of them.

    Args:
        lines: as `left` has them.
        stays: as `why_it_stays` has it.
        gone: what else went with the old group, in words.
    """
    done = f"The process group is rebuilt, so that the next cell begins without them. {gone}".rstrip()
    if stays:
        done = f"They may meet the next cell, because {stays}: cluster.heal() builds a new group."
    return "\n".join(["This cell has begun operations and not waited for them:", *lines, done])


def begun_earlier(states: Mapping[int, RankStatus]) -> list[str]:
    """A line for each operation of an earlier cell that somebody still keeps, and that may have met this one."""
    found = dict.fromkeys(_what(rank, call) for rank, state in states.items() for call in state.kept)
    return [f"  {what}, was begun in an earlier cell, was not waited for, and may have met this one" for what in found]


def _what(rank: int, call: CallRecord) -> str:
    """An operation with its rank and line."""
    return f"rank {rank}: {call_words(call)}" + (f", line {call.lines[-1].number}" if call.lines else "")


def _why(rank: int, call: CallRecord, states: Mapping[int, RankStatus]) -> str:
    """Why nothing matches an operation: the count of the other side is lower; "" where it is not."""
    if call.kind != MESSAGE:
        others = [other for other in call.members if other != rank and other in states]
        begun = {r: max((o.sequence for o in states[r].history if o.group == call.group), default=0) for r in others}
        missing = [other for other in others if begun[other] < call.sequence]
        return f"was not called by {rank_list(missing)}" if missing else ""
    if call.is_send:
        to = states.get(call.peer)
        received = to and messages_begun(to, False, call, rank) + messages_begun(to, False, call, None)
        return "was never received" if to and received < call.sequence else ""
    if call.peer is None:
        here, others = states[rank], [states[other] for other in call.members if other in states]
        came = sum(messages_begun(o, True, call, rank) - messages_begun(here, False, call, o.rank) for o in others)
        return "nothing was sent for it" if came < messages_begun(here, False, call, None) else ""
    source = states.get(call.peer)
    return "nothing was sent for it" if source and messages_begun(source, True, call, rank) < call.sequence else ""
