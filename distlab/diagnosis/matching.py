"""Whether the calls of one collective, or the two ends of a message, match, and the words for it:
pure functions.

Runs on the notebook's kernel, called by proof.py, report.py and meanwhile.py; in checked mode on
ranks, by checks.py.
"""

import math
from collections.abc import Callable, Mapping

from distlab.wire.messages import CallRecord
from distlab.words import grouped, rank_list


def disagreement(calls: Mapping[int, CallRecord]) -> str:
    """How the calls that several ranks make to the same collective differ, in a sentence; "" if
    they match.

    Args:
        calls: by rank.
    """
    if len({call.collective for call in calls.values()}) > 1:
        # full_tensor may be one collective or the other
        differ = len({call.op for call in calls.values()}) > 1
        names = {
            rank: call.op if differ else f"{call.op} ({call.collective})"
            for rank, call in calls.items()
        }
        return f"The ranks do not call the same collective: {by_value(names, ('calls', 'call'))}."
    aspects: list[Callable[[CallRecord], str]] = [
        lambda call: f"op={call.reduce_op}" if call.reduce_op else "",
        lambda call: f"the root {call.root}" if call.root is not None else "",
    ]
    if not _is_one_broadcast(calls):
        aspects.append(lambda call: tensor_words(call, shapes=call.sends is None))
    for aspect in aspects:
        values = {rank: aspect(call) for rank, call in calls.items()}
        if len(set(values.values())) > 1:
            op = next(iter(calls.values())).op
            return f"The ranks' {op} calls do not match: {by_value(values, ('has', 'have'))}."
    return _splits_disagree(calls)


def _is_one_broadcast(calls: Mapping[int, CallRecord]) -> bool:
    """Whether it is a broadcast of tensors alike, whose shapes may differ: torch asks for as many
    elements.
    """
    if any(call.collective != "broadcast" for call in calls.values()):
        return False
    return len({_contents(call) for call in calls.values()}) == 1


def by_value(values: Mapping[int, str], verbs: tuple[str, str]) -> str:
    """ "rank 2 has op=MAX, ranks 0 and 1 have op=SUM": the fewest ranks first."""
    groups = grouped((value, rank) for rank, value in sorted(values.items()))
    ordered = sorted(groups.items(), key=lambda item: (len(item[1]), item[1]))
    return ", ".join(
        f"{rank_list(ranks)} {verbs[len(ranks) > 1]} {value or 'none'}" for value, ranks in ordered
    )


def _splits_disagree(calls: Mapping[int, CallRecord]) -> str:
    for rank, call in calls.items():
        if rank not in call.members:  # ranks that have made other groups under one name
            continue
        own = call.members.index(rank)
        for other, sent in zip(call.members, call.sends or (), strict=False):
            expected = (calls[other].receives or ())[own : own + 1] if other in calls else ()
            if expected and expected[0] != sent:
                ends = f"rank {rank} sends {sent} elements to rank {other}, which expects {expected[0]} elements"
                return f"The ranks' {call.op} calls do not match: {ends}."
    return ""


def misfit(sent: CallRecord, received: CallRecord) -> str:
    """How the tensors of a send and its recv differ in type or number of elements, in words; "" if
    they match.

    The shapes may differ: a message is just a row of numbers.
    """
    if _contents(sent) == _contents(received):
        return ""
    return f"{tensor_words(sent)} is sent, {tensor_words(received)} is expected"


def _contents(call: CallRecord) -> tuple[tuple[str, int], ...]:
    """Type and number of elements of each of a call's tensors."""
    return tuple((dtype, math.prod(shape)) for dtype, shape in call.tensors)


def tensor_words(call: CallRecord, shapes: bool = True) -> str:
    """ "float32[2, 3]" of a call's tensors; only the types without `shapes`; "" for a call without
    tensors.
    """
    words = [f"{dtype}{list(shape)}" if shapes else dtype for dtype, shape in call.tensors]
    if not shapes:
        words = sorted(set(words))
    return ", ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")
