"""Whether the ranks' calls of one collective, or the two ends of a message, fit together: pure functions.

Called by deadlock.py in the notebook's kernel and by argument_checks.py on the ranks, with calls as status.py describes
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from distlab.text import grouped, rank_list
from distlab.wire.messages import CallRecord


def disagreement(calls: Mapping[int, CallRecord]) -> str:
    """How the calls that several ranks make as the same collective differ, in a sentence; "" when they fit.

    Args:
        calls: by rank.
    """
    if len({call.collective for call in calls.values()}) > 1:
        differ = len({call.op for call in calls.values()}) > 1  # full_tensor may be one collective or the other
        names = {rank: call.op if differ else f"{call.op} ({call.collective})" for rank, call in calls.items()}
        ops = _by_value(names, ("calls", "call"))
        return f"the ranks do not call the same collective: {ops}."
    aspects: list[Callable[[CallRecord], str]] = [
        lambda call: f"op={call.reduce_op}" if call.reduce_op else "",
        lambda call: f"the root {call.root}" if call.root is not None else "",
        lambda call: tensor_words(call, shapes=call.sends is None),
    ]
    for aspect in aspects:
        values = {rank: aspect(call) for rank, call in calls.items()}
        if len(set(values.values())) > 1:
            op = next(iter(calls.values())).op
            return f"the ranks do not agree in {op}: {_by_value(values, ('has', 'have'))}."
    return _splits_disagree(calls)


def _by_value(values: Mapping[int, str], verbs: tuple[str, str]) -> str:
    """ "rank 2 has op=MAX, ranks 0 and 1 have op=SUM": the fewest ranks first."""
    groups = grouped((value, rank) for rank, value in sorted(values.items()))
    ordered = sorted(groups.items(), key=lambda item: (len(item[1]), item[1]))
    return ", ".join(f"{rank_list(ranks)} {verbs[len(ranks) > 1]} {value or 'none'}" for value, ranks in ordered)


def _splits_disagree(calls: Mapping[int, CallRecord]) -> str:
    for rank, call in calls.items():
        own = call.members.index(rank)
        for other, sent in zip(call.members, call.sends or (), strict=False):
            expected = (calls[other].receives or ())[own : own + 1] if other in calls else ()
            if expected and expected[0] != sent:
                ends = f"rank {rank} sends {_elements(sent)} to rank {other}, which expects {_elements(expected[0])}"
                return f"the ranks do not agree in {call.op}: {ends}."
    return ""


def _elements(count: int) -> str:
    return f"{count} element{'' if count == 1 else 's'}"


def misfit(sent: CallRecord, received: CallRecord) -> str:
    """How the tensor of a send and that of its recv differ in type or number of elements, in words; "" when they fit.

    The shapes may differ: a message is a row of numbers.
    """
    (sent_type, sent_shape), (type_, shape) = sent.tensors[0], received.tensors[0]
    if sent_type == type_ and math.prod(sent_shape) == math.prod(shape):
        return ""
    return f"{tensor_words(sent)} is sent, {tensor_words(received)} is to receive it"


def tensor_words(call: CallRecord, shapes: bool = True) -> str:
    """ "float32[2, 3]" of a call's tensors; the types alone without `shapes`; "" of a call without tensors."""
    words = [f"{dtype}{list(shape)}" if shapes else dtype for dtype, shape in call.tensors]
    if not shapes:
        words = sorted(set(words))
    return ", ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")
