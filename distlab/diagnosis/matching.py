"""Whether the calls of one collective, or the two ends of a message, match, and the words for it.

Pure functions. Runs on the notebook's kernel, called by report.py, meanwhile.py and the rules of
the proof; in checked mode on ranks, called by checks.py.
"""

import math
from collections.abc import Callable, Mapping

from distlab.wire.messages import CallRecord
from distlab.words import grouped, rank_list

MOST_TENSORS = 3  # that are named in one call


def disagreement(calls: Mapping[int, CallRecord]) -> str:
    """How the calls of several ranks to one collective differ, in a sentence; "" if they match.

    Args:
        calls: by rank.
    """
    if len({call.collective for call in calls.values()}) > 1:
        return f"The ranks do not call the same collective: {_calls_by_rank(calls)}."
    aspects: list[Callable[[CallRecord], str]] = [_reduce_op, _root]
    if not _is_one_broadcast(calls):
        aspects.append(_expected_tensors)
    for aspect in aspects:
        values = {rank: aspect(call) for rank, call in calls.items()}
        if len(set(values.values())) > 1:
            op = next(iter(calls.values())).op
            return f"The ranks' {op} calls do not match: {by_value(values, ('has', 'have'))}."
    return _splits_disagree(calls)


def _calls_by_rank(calls: Mapping[int, CallRecord]) -> str:
    """Which collective each rank calls: "rank 0 calls barrier, rank 1 calls all_reduce"."""
    names = {rank: call.op for rank, call in calls.items()}
    if len(set(names.values())) == 1:
        # one function of torch may be one collective or another, as full_tensor is
        names = {rank: f"{call.op} ({call.collective})" for rank, call in calls.items()}
    return by_value(names, ("calls", "call"))


def _reduce_op(call: CallRecord) -> str:
    return f"op={call.reduce_op}" if call.reduce_op else ""


def _root(call: CallRecord) -> str:
    return f"the root {call.root}" if call.root is not None else ""


def _expected_tensors(call: CallRecord) -> str:
    """What must be alike of the tensors: with splits, each rank may have another number of rows."""
    return tensor_words(call, shapes=call.sends is None)


def _is_one_broadcast(calls: Mapping[int, CallRecord]) -> bool:
    """Whether this is a broadcast of tensors with as many elements of one type.

    Their shapes may differ: torch asks for no more.
    """
    if any(call.collective != "broadcast" for call in calls.values()):
        return False
    return len({_contents(call) for call in calls.values()}) == 1


def by_value(values: Mapping[int, str], verbs: tuple[str, str]) -> str:
    """What ranks have, the fewest ranks first: "rank 2 has op=MAX, ranks 0 and 1 have op=SUM".

    Args:
        values: what each rank has, by rank; "" for nothing.
        verbs: the verb for one rank, and for several.
    """
    one, several = verbs
    ranks_by_value = grouped((values[rank], rank) for rank in sorted(values))
    parts = []
    for value, ranks in sorted(ranks_by_value.items(), key=fewest_first):
        verb = several if len(ranks) > 1 else one
        parts.append(f"{rank_list(ranks)} {verb} {value or 'none'}")
    return ", ".join(parts)


def fewest_first(item: tuple[str, list[int]]) -> tuple[int, list[int]]:
    """The order in a sentence: the ranks that differ from most others come first."""
    _, ranks = item
    return len(ranks), ranks


def _splits_disagree(calls: Mapping[int, CallRecord]) -> str:
    """Which rank sends another number of elements than its receiver expects; "" if none does."""
    for rank, call in calls.items():
        if rank not in call.members or call.sends is None:
            continue  # a rank is no member where ranks have made other groups under one name
        place = call.members.index(rank)
        for other, sent in zip(call.members, call.sends, strict=False):
            expected = _expected_from(place, calls.get(other))
            if expected is not None and expected != sent:
                sends = f"rank {rank} sends {sent} elements to rank {other}"
                expects = f"which expects {expected} elements"
                return f"The ranks' {call.op} calls do not match: {sends}, {expects}."
    return ""


def _expected_from(place: int, call: CallRecord | None) -> int | None:
    """How many elements a call expects from the member at this place; None if that is not known."""
    if call is None or call.receives is None or place >= len(call.receives):
        return None
    return call.receives[place]


def misfit(sent: CallRecord, received: CallRecord) -> str:
    """How the tensors of a send and its recv differ, in words; "" if they match.

    They must have one type and as many elements. The shapes may differ: a message is just a row of
    numbers.
    """
    if _contents(sent) == _contents(received):
        return ""
    return f"{tensor_words(sent)} is sent, {tensor_words(received)} is expected"


def _contents(call: CallRecord) -> tuple[tuple[str, int], ...]:
    """Type and number of elements of each of a call's tensors."""
    return tuple((dtype, math.prod(shape)) for dtype, shape in call.tensors)


def tensor_words(call: CallRecord, shapes: bool = True) -> str:
    """The tensors of a call: "float32[2, 3]"; "" for a call without tensors.

    Args:
        call: the call.
        shapes: whether to give the shapes; if not, each type is named once.
    """
    if shapes:
        words = [f"{dtype}{list(shape)}" for dtype, shape in call.tensors]
    else:
        words = sorted({dtype for dtype, _ in call.tensors})
    listed = ", ".join(words[:MOST_TENSORS])
    if len(words) > MOST_TENSORS:
        listed += f" and {len(words) - MOST_TENSORS} more"
    return listed
