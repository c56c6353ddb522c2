"""all_reduce with every ReduceOp and dtype, and the right answer to each by Python's own arithmetic.

Runs on the processes that the probe starts; its cases are called by trial.py.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from distlab.probing.names import DTYPES, OPS
from distlab.probing.names import reduction as reduction_name
from distlab.probing.place import Place

FACTOR = 2.0  # of PREMUL_SUM


def values(dtype: torch.dtype, size: int) -> list[Any]:
    """What the ranks begin with: 1, 2, 3, 1, 2, 3 and so on, which every dtype holds; for bool False, True, False."""
    return [rank % 2 == 1 if dtype == torch.bool else rank % 3 + 1 for rank in range(size)]


def expected(op: str, dtype: torch.dtype, size: int) -> Any:
    """What every rank must end with, by Python's own arithmetic; a bool ends as True for every number but 0."""
    given = values(dtype, size)
    results: dict[str, Callable[[], Any]] = {
        "SUM": lambda: sum(given),
        "AVG": lambda: sum(given) / size,
        "PRODUCT": lambda: math.prod(given),
        "MIN": lambda: min(given),
        "MAX": lambda: max(given),
        "BAND": lambda: functools.reduce(operator.and_, given),
        "BOR": lambda: functools.reduce(operator.or_, given),
        "BXOR": lambda: functools.reduce(operator.xor, given),
        "PREMUL_SUM": lambda: FACTOR * sum(given),
    }
    return results[op]()


def reduce_op(op: str) -> Any:
    """torch's ReduceOp of that name; PREMUL_SUM comes with its factor where torch can make it."""
    make = getattr(dist, "_make_nccl_premul_sum", None)
    return make(FACTOR) if op == "PREMUL_SUM" and make is not None else getattr(dist.ReduceOp, op)


def reduction(op: str, name: str) -> Callable[[Place], bool]:
    """A case: all_reduce with that op on tensors of the dtype of that name."""

    def case(at: Place) -> bool:
        dtype = getattr(torch, name)
        tensor = torch.full((4,), 0, dtype=torch.float32).to(dtype).to(at.device)
        tensor.copy_(torch.full((4,), float(values(dtype, at.size)[at.rank])))
        dist.all_reduce(tensor, op=reduce_op(op))
        wanted = torch.full((4,), float(expected(op, dtype, at.size))).to(dtype).to(torch.complex64)
        return bool(torch.allclose(tensor.cpu().to(torch.complex64), wanted, rtol=0.01))

    return case


REDUCTIONS = {reduction_name(op, dtype): reduction(op, dtype) for op in OPS for dtype in DTYPES}
