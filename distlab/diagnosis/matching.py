"""Whether the calls of one collective, or the two ends of a message, match, and the words for it.

No process is asked. Runs on the notebook's kernel, called by proof.py, new_groups.py, report.py and
meanwhile.py beside it; in checked mode on ranks, called by checks.py.
"""

import math
from collections.abc import Callable, Mapping

from distlab.wire.messages import CallRecord
from distlab.words import grouped, ranks_and_verb

MOST_TENSORS = 3  # that are named in one call


def disagreement(calls: Mapping[int, CallRecord]) -> str:
    """How the calls of several ranks to one collective differ, in a sentence; "" if they match.

    Args:
        calls: by rank.
    """
    if _read_alike(calls):
        return ""
    collectives = _aspect_by_rank(calls, lambda call: call.collective)
    if not _are_alike(collectives):
        return f"The ranks do not call the same collective: {_calls_by_rank(calls)}."
    aspects: list[Callable[[CallRecord], str]] = [_reduce_op, _root]
    if not _is_one_broadcast(calls):
        aspects.append(_expected_tensors)
    for aspect in aspects:
        values = _aspect_by_rank(calls, aspect)
        if not _are_alike(values):
            first, *_ = calls.values()
            differ = by_value(values, ("has", "have"))
            return f"The ranks' {first.op} calls do not match: {differ}."
    return _splits_disagree(calls)


def _read_alike(calls: Mapping[int, CallRecord]) -> bool:
    """Whether calls without splits are the same in all that is compared, as nearly all are."""
    compared = None
    for call in calls.values():
        if call.sends is not None or call.receives is not None:
            return False
        contents = call.collective, call.reduce_op, call.root, call.tensors
        if compared is not None and contents != compared:
            return False
        compared = contents
    return True


def _aspect_by_rank(
    calls: Mapping[int, CallRecord], aspect: Callable[[CallRecord], str]
) -> dict[int, str]:
    """One aspect of each rank's call, in words, by rank."""
    values = {}
    for rank, call in calls.items():
        values[rank] = aspect(call)
    return values


def _are_alike(values: Mapping[int, str]) -> bool:
    """Whether all ranks have the same."""
    return len(set(values.values())) <= 1


def _calls_by_rank(calls: Mapping[int, CallRecord]) -> str:
    """Which collective each rank calls: "rank 0 calls barrier, rank 1 calls all_reduce"."""
    names = _aspect_by_rank(calls, lambda call: call.op)
    if _are_alike(names):
        # one function of torch may be one collective or another, as full_tensor is
        names = _aspect_by_rank(calls, lambda call: f"{call.op} ({call.collective})")
    return by_value(names, ("calls", "call"))


# --- aspects of a call, in words; "" for a call that does not have it ---


def _reduce_op(call: CallRecord) -> str:
    """How it reduces."""
    if not call.reduce_op:
        return ""
    return f"op={call.reduce_op}"


def _root(call: CallRecord) -> str:
    """Its root."""
    if call.root is None:
        return ""
    return f"the root {call.root}"


def _expected_tensors(call: CallRecord) -> str:
    """What must be alike of the tensors: with splits, each rank may have another number of rows."""
    return tensor_words(call, shapes=call.sends is None)


# --- how they are compared ---


def _is_one_broadcast(calls: Mapping[int, CallRecord]) -> bool:
    """Whether this is a broadcast of tensors with as many elements of one type.

    Their shapes may differ: torch asks for no more.
    """
    contents = set()
    for call in calls.values():
        if call.collective != "broadcast":
            return False
        contents.add(_contents(call))
    return len(contents) == 1


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
        parts.append(f"{ranks_and_verb(ranks, one, several)} {value or 'none'}")
    return ", ".join(parts)


def fewest_first(item: tuple[str, list[int]]) -> tuple[int, list[int]]:
    """The order in a sentence: the ranks that differ from most others come first."""
    _, ranks = item
    return len(ranks), ranks


def _splits_disagree(calls: Mapping[int, CallRecord]) -> str:
    """Which rank sends another number of elements than its receiver expects; "" if none does."""
    for rank, call in calls.items():
        # where ranks have made different groups under one name, a rank may be no member
        if rank not in call.members or call.sends is None:
            continue
        index = call.members.index(rank)
        for other, sent in zip(call.members, call.sends, strict=False):
            expected = _expected_from(index, calls.get(other))
            if expected is not None and expected != sent:
                sends = f"rank {rank} sends {sent} elements to rank {other}"
                expects = f"which expects {expected} elements"
                return f"The ranks' {call.op} calls do not match: {sends}, {expects}."
    return ""


def _expected_from(index: int, call: CallRecord | None) -> int | None:
    """How many elements a call expects from the member with this index; None if not known."""
    if call is None or call.receives is None:
        return None
    if index >= len(call.receives):  # as above, its group has other members
        return None
    return call.receives[index]


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
    contents = []
    for dtype, shape in call.tensors:
        contents.append((dtype, math.prod(shape)))
    return tuple(contents)


def tensor_words(call: CallRecord, shapes: bool = True) -> str:
    """The tensors of a call: "float32[2, 3]"; "" for a call without tensors.

    Args:
        call: the call.
        shapes: whether to give the shapes; if not, each type is named once.
    """
    words = []
    for dtype, shape in call.tensors:
        words.append(f"{dtype}{list(shape)}" if shapes else dtype)
    if not shapes:
        words = sorted(set(words))
    listed = ", ".join(words[:MOST_TENSORS])
    if len(words) > MOST_TENSORS:
        listed += f" and {len(words) - MOST_TENSORS} more"
    return listed
