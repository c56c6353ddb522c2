"""All-reduce, nine times: the algorithms that notebook 03 builds, finished.

    from distlab import algorithms
    algorithms.ALL_REDUCE["ring"](tensor)                 # on every rank, in place, like dist.all_reduce(tensor)
    algorithms.schedule("ring", 4).steps                  # who sends which chunk to whom, step by step
    algorithms.cost("ring", 1 << 20, 4, alpha, beta)      # seconds by the cost model

The functions run on the ranks, under torchrun as well; the rest runs anywhere. All but "shared memory" are made of
torch.distributed's point-to-point calls. What the functions share, and what may be passed to them, is in call.py.

Every rank ends with the same bits, also where rounding makes the result depend on the order of the additions, but for
"whole ring": there each rank adds in an order of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distlab.algorithms.best import best, choose
from distlab.algorithms.costs import cost, traffic
from distlab.algorithms.doubling import halving_doubling, recursive_doubling
from distlab.algorithms.rings import pipelined_ring, ring, whole_ring
from distlab.algorithms.schedules import Message, Schedule, holdings, schedule
from distlab.algorithms.shared_memory import shared_memory
from distlab.algorithms.trees import naive, tree

ALL_REDUCE: dict[str, Callable[..., Any]] = {
    "naive": naive,
    "whole ring": whole_ring,
    "ring": ring,
    "pipelined ring": pipelined_ring,
    "halving doubling": halving_doubling,
    "recursive doubling": recursive_doubling,
    "tree": tree,
    "shared memory": shared_memory,
    "best": best,
}

__all__ = ["ALL_REDUCE", "Message", "Schedule", "choose", "cost", "holdings", "schedule", "traffic"]
