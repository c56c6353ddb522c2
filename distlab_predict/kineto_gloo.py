"""Which all-reduces in a trace are gloo's way to reduce and scatter.

Called by kineto.py. gloo has no reduce_scatter of its own: torch reduces all of the input on every
rank (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, `_reduce_scatter_base`), and a trace has
that as "gloo:all_reduce" in gloo's thread. What the program called is an event of its own thread,
which began before. Tried with torch 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from distlab.words import grouped
from distlab_predict.kineto_file import Event

RUN = "gloo:all_reduce"
ALL_REDUCE = "c10d::allreduce_"
OF_ONE_TENSOR = "c10d::_reduce_scatter_base_"
OF_A_LIST = "c10d::reduce_scatter_"  # which reduces a part for each rank
CALLS = {ALL_REDUCE, OF_ONE_TENSOR, OF_A_LIST}


def as_called(events: Sequence[Event], ranks: int | None) -> list[Event]:
    """The same events, in which reduce_scatters are named so, and have the size of their results.

    Args:
        events: of a trace.
        ranks: of the only group; None if there are several.
    """
    calls = [event for event in events if event.name in CALLS]
    if all(call.name == ALL_REDUCE for call in calls):
        return list(events)
    runs = grouped((_elements(event), event) for event in events if event.name == RUN)
    for some in runs.values():
        some.sort(key=_begin)
    others = [event for event in events if event.name != RUN]
    for call in sorted(calls, key=_begin):
        dims = call.list("Input Dims")
        if call.name == OF_ONE_TENSOR:
            result, whole = math.prod(dims[0]), math.prod(dims[1])
            others += _scattered(_take(runs.get(whole, []), call, 1), result)
        elif call.name == OF_A_LIST:
            result = _elements_of_list(dims[0])
            others += _scattered(_take(runs.get(result, []), call, ranks or 1), result)
        else:
            others += _take(runs.get(_elements_of_list(dims[0]), []), call, 1)
    for left in runs.values():
        others += left
    return others


def _begin(event: Event) -> float:
    return event.begin


def _elements(run: Event) -> int:
    return _elements_of_list(run.list("Input Dims"))


def _elements_of_list(sizes: Sequence[Any]) -> int:
    """How many elements tensors of these sizes have."""
    return sum(math.prod(one) for one in sizes)


def _take(runs: list[Event], call: Event, number: int) -> list[Event]:
    """Take those that began first after a call away from what gloo has run."""
    taken = [run for run in runs if run.begin >= call.begin][:number]
    for run in taken:
        runs.remove(run)
    return taken


def _scattered(runs: Sequence[Event], elements: int) -> list[Event]:
    """One reduce_scatter with a result of so many elements; none if nothing was run for it."""
    if not runs:
        return []
    first = runs[0]
    end = max(run.end for run in runs)
    carried = {**first.carried, "Input Dims": [[elements]]}
    return [first._replace(name="gloo:reduce_scatter", end=end, carried=carried)]
