"""What a rank's trace says of the collectives and messages of a prediction.

Called by trace_rates.py, on the notebook's kernel. A call is found by its name, its bytes and its
number of ranks. Calls that were under way at the same time on one link have shared it. Those that
took longest have waited for other ranks, so the lower quartile counts. The formula of the described
network says how much of it is latency, so that simulated/measured.py knows other sizes.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

from distlab.simulated.measured import CallTime
from distlab.words import grouped
from distlab_predict.costs import Costs
from distlab_predict.kineto import Collective, Trace
from distlab_predict.nodes import Call, Recording

if TYPE_CHECKING:
    from distlab_predict.prediction import Prediction


def calls_in(trace: Trace, prediction: Prediction, recording: Recording) -> Iterator[CallTime]:
    """What the trace says of each call of the program.

    Args:
        trace: of a rank.
        prediction: of its program.
        recording: of its rank, or of one that has its role.
    """
    costs = Costs(prediction.network, prediction.device, prediction.ranks)
    recorded: dict[Hashable, Call] = {}
    for node in recording.nodes:
        if isinstance(node, Call):
            ranks = 2 if node.peer is not None else len(node.members)
            recorded.setdefault((node.name, _num_bytes(node), ranks), node)
            recorded.setdefault((node.name, _num_bytes(node), None), node)
    found = []
    for one in trace.collectives:
        call = recorded.get((one.name, one.num_bytes, one.ranks))
        if call is not None:
            formula = costs.formula(call, recording.rank)
            if formula.latency + formula.moving:  # otherwise a description says that it is free
                found.append((formula.link, (call, one)))
    for link, pairs in grouped(found).items():
        alone = _alone([one for _, one in pairs])
        took = zip((call for call, _ in pairs), alone, strict=True)
        for call, seconds in grouped(took).items():
            formula = costs.formula(call, recording.rank)
            usual = _lower_quartile(seconds)
            yield CallTime(
                call.name,
                link,
                len(call.members),
                formula.latency,
                formula.moving,
                usual,
                len(seconds),
            )


def _alone(collectives: Sequence[Collective]) -> list[float]:
    """How long each would have taken alone: while several were under way, they shared a link."""
    ends = sorted({time for one in collectives for time in (one.begin, one.end)})
    under_way = [0] * len(ends)
    for one in collectives:
        for place in _places(ends, one):
            under_way[place] += 1
    alone = []
    for one in collectives:
        seconds = 0.0
        for place in _places(ends, one):
            seconds += (ends[place + 1] - ends[place]) / under_way[place]
        alone.append(seconds)
    return alone


def _places(ends: Sequence[float], one: Collective) -> range:
    """Between which of these times a collective was under way."""
    return range(bisect.bisect_left(ends, one.begin), bisect.bisect_left(ends, one.end))


def _num_bytes(call: Call) -> int:
    """The bytes of a call, as kineto.Collective has them."""
    if call.name == "all_to_all":
        return sum(call.sent)
    return call.sent[0]


def _lower_quartile(seconds: Sequence[float]) -> float:
    in_order = sorted(seconds)
    return in_order[(len(in_order) - 1) // 4]
