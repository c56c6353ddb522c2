"""What torch's operators do that gather and multiply, or multiply and scatter, part by part.

Called by recorder.py, in the process of a rank that is recorded, where a program calls these
operators itself. They are what torch.compile makes of others, see micro_pipelines.py. Tried with
torch 2.13 (torch/distributed/_symmetric_memory/__init__.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.distributed import get_process_group_ranks

from distlab_predict import micro_pipelined
from distlab_predict.nodes import PRODUCT, Call, Kernel, Node
from distlab_predict.operators import dtype_name
from distlab_predict.torch_fake import group_named, named, operator_name

NAMESPACE = "symm_mem"
GATHERS = {"fused_all_gather_matmul": "mm", "fused_all_gather_scaled_matmul": "_scaled_mm"}
SCATTERS = {
    "fused_matmul_reduce_scatter": "mm",
    "fused_scaled_matmul_reduce_scatter": "_scaled_mm",
}


def is_pipeline(operator: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether an operator is such a pipeline, whose parts are rows.

    Torch can also gather columns, and add up products of parts; that has no cost here.
    """
    if operator.namespace != NAMESPACE:
        return False
    name = operator_name(operator)
    if name not in GATHERS:
        return name in SCATTERS
    arguments = named(operator, args) | kwargs
    return arguments["gather_dim"] not in (-1, arguments["A"].dim() - 1)


def nodes_of(
    operator: Any,
    args: tuple,
    kwargs: dict[str, Any],
    made: Sequence[Tensor],
    first: int,
    after: tuple[int, ...],
    line: str,
    again: bool,
) -> list[Node]:
    """The nodes of a pipeline.

    Args:
        operator, args, kwargs: of `is_pipeline`.
        made: the tensors that it has returned.
        first: the index of the first of these nodes.
        after: indices of the nodes that all of it waits for.
        line, again: as of `Kernel`.
    """
    name = operator_name(operator)
    arguments = named(operator, args) | kwargs
    stream = arguments["group_name"]
    members = tuple(get_process_group_ranks(group_named(stream)))
    left = arguments["A"]
    rows = left.numel() // left.shape[-1]
    if name in GATHERS:
        rows *= len(members)
        call = Call(after, stream, "all_gather", members, (left.nbytes,), line=line)
        rights = arguments["Bs"]
        results = made[-len(rights) :]  # before them is what it has gathered, if it returns that
        products = []
        for right, result in zip(rights, results, strict=True):
            products.append(_product(GATHERS[name], left, right, rows, result, line, again))
        return micro_pipelined.gathered(first, after, call, products)
    (result,) = made
    product, by_rows = _product(SCATTERS[name], left, arguments["B"], rows, result, line, again)
    call = Call(after, stream, "reduce_scatter", members, (result.nbytes,), line=line)
    return micro_pipelined.scattered(first, after, call, product, by_rows)


def _product(
    name: str,
    left: Tensor,
    right: Tensor,
    rows: int,
    result: Tensor,
    line: str,
    again: bool,
) -> tuple[Kernel, int]:
    """A product of so many rows, and the bytes of the rows that it reads and writes.

    Args:
        name: of its operator.
        left: what it multiplies, or a part of that.
        right: by which it multiplies.
        rows: of all parts together.
        result: the product, or a part of it.
        line, again: as of `Kernel`.
    """
    inner, columns = right.shape
    by_rows = rows * (inner * left.itemsize + columns * result.itemsize)
    kernel = Kernel(
        after=(),
        name=name,
        flops=2 * rows * columns * inner,
        num_bytes=by_rows + right.nbytes,
        again=again,
        kind=PRODUCT,
        shape=(1, rows, columns, inner),
        dtype=dtype_name(left),
        line=line,
    )
    return kernel, by_rows
