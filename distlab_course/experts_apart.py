"""Experts that compute one after another: each product is a kernel of its own, and so is each cast.

Called by pretraining.py and adding.py; it runs on the ranks, or in predict's process. Transformer
Engine's GroupedLinear does so up to 2.16 (github.com/NVIDIA/TransformerEngine, split_quantize and
nvte_multi_tensor_gemm at v2.9: a call of cuBLAS for each expert). So the processor must know how
many rows each expert has, and launches as many kernels more. Where micro-batches are small, the
device waits for it.

    compute_apart(model)    # after in_float8, before add_in_products

The numbers are those of experts.py and float8_grouped.py. Only, the gradient of an expert's weights
has scales of its own here, which are powers of two all the same.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from distlab_course.added_products import placed_as, sum_of
from distlab_course.experts import RoutedExperts, local
from distlab_course.float8_grouped import (
    Kept,
    by_columns,
    by_columns_of,
    grouped_in_float8,
    once,
    scaled_along,
    transposed,
)


def compute_apart(model: nn.Module) -> None:
    """Have the experts of a model compute one after another.

    Runs on: every rank.

    Args:
        model: changed in place.
    """
    for module in model.modules():
        if isinstance(module, RoutedExperts):
            is_in_float8 = module.multiply is grouped_in_float8
            module.multiply = apart_in_float8 if is_in_float8 else apart
            module.is_apart = True


def apart(rows: Tensor, weights: Tensor, sizes: Sequence[int], adds: bool = False) -> Tensor:
    """Each expert's rows times its matrix, one expert after the other.

    Runs on: anywhere.

    Args:
        rows: of one expert after another, shape (row, k).
        weights: shape (expert, n, k), or what this rank has of it.
        sizes: how many rows each expert has.
        adds: whether the weights' gradient is added to the one that is there, see adding.py.

    Returns:
        shape (row, n).
    """
    result: Tensor = _Products.apply(rows, weights if adds else local(weights), sizes, adds)
    return result


def apart_in_float8(
    rows: Tensor,
    weights: Tensor,
    sizes: Sequence[int],
    adds: bool = False,
    kept: Kept | None = None,
) -> Tensor:
    """The same, forward and backward in float8.

    Runs on: anywhere.

    Args:
        rows, weights, sizes, adds: as of `apart`.
        kept: as of `grouped_in_float8`.

    Returns:
        shape (row, n), in the format of the rows, rounded to bfloat16.
    """
    given = weights if adds else local(weights)
    result: Tensor = _Float8Products.apply(rows, given, sizes, adds, kept)
    return result


class _Products(torch.autograd.Function):
    """rows @ weights.transpose(1, 2) of each expert."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weights: Tensor, sizes: Sequence[int], adds: bool
    ) -> Tensor:
        ctx.save_for_backward(rows, local(weights))
        ctx.parameter = weights if adds else None
        ctx.sizes = sizes
        return _multiplied(rows, local(weights).transpose(1, 2), sizes)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        rows, weights = ctx.saved_tensors
        of_rows = None
        if ctx.needs_input_grad[0]:
            of_rows = _multiplied(gradient, weights, ctx.sizes)
        of_weights = None
        if ctx.needs_input_grad[1]:
            of_weights = _gradient_of_weights(ctx, gradient, rows, weights)
        return of_rows, of_weights, None, None


def _multiplied(rows: Tensor, matrices: Tensor, sizes: Sequence[int]) -> Tensor:
    """Each expert's rows times its matrix; shapes (row, k) and (expert, k, n)."""
    results = rows.new_empty(len(rows), matrices.shape[2])
    for part, matrix, result in zip(rows.split(sizes), matrices, results.split(sizes), strict=True):
        torch.mm(part, matrix, out=result)
    return results


def _gradient_of_weights(
    ctx: Any, gradient: Tensor, rows: Tensor, weights: Tensor
) -> Tensor | None:
    """The sum over each expert's rows; None if it was added to the gradient that is there."""
    sums = None if ctx.parameter is None else sum_of(ctx.parameter)
    made = torch.empty_like(weights) if sums is None else sums
    for left, right, place in zip(
        gradient.split(ctx.sizes), rows.split(ctx.sizes), made, strict=True
    ):
        if sums is None:
            torch.mm(left.t(), right, out=place)
        else:
            place.addmm_(left.t(), right)
    return _as_gradient(ctx, made if sums is None else None)


def _as_gradient(ctx: Any, made: Tensor | None) -> Tensor | None:
    """A gradient as autograd wants it, of a parameter of which other ranks may have other parts."""
    if made is None or ctx.parameter is None:
        return made
    return placed_as(ctx.parameter, made)


class _Float8Products(torch.autograd.Function):
    """The same in float8."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weights: Tensor,
        sizes: Sequence[int],
        adds: bool,
        kept: Kept | None,
    ) -> Tensor:
        ctx.save_for_backward(rows, local(weights))
        ctx.parameter = weights if adds else None
        ctx.sizes = sizes
        ctx.kept = kept
        return _multiplied_in_float8(rows, *once(transposed, weights, kept), sizes)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        rows, weights = ctx.saved_tensors
        of_rows = None
        if ctx.needs_input_grad[0]:
            own = weights if ctx.parameter is None else ctx.parameter
            matrices, scales = once(by_columns_of, own, ctx.kept)
            of_rows = _multiplied_in_float8(gradient, matrices, scales, ctx.sizes)
        of_weights = None
        if ctx.needs_input_grad[1]:
            of_weights = _float8_gradient_of_weights(ctx, gradient, rows, weights)
        return of_rows, of_weights, None, None, None


def _multiplied_in_float8(
    rows: Tensor, matrices: Tensor, scales: Tensor, sizes: Sequence[int]
) -> Tensor:
    """Each expert's rows, which are cast here, times its matrix in float8.

    Args:
        rows: shape (row, k).
        matrices: shape (expert, k, n), read column by column.
        scales: to multiply the columns with, shape (expert, n).
        sizes: how many rows each expert has.
    """
    results = rows.new_empty(len(rows), matrices.shape[2], dtype=torch.bfloat16)
    for part, matrix, scale, result in zip(
        rows.split(sizes), matrices, scales, results.split(sizes), strict=True
    ):
        if len(part) > 0:
            left, left_scale = scaled_along(part, 1)
            _product(left, matrix, left_scale, scale, result)
    return results.type_as(rows)


def _float8_gradient_of_weights(
    ctx: Any, gradient: Tensor, rows: Tensor, weights: Tensor
) -> Tensor | None:
    """The sum over each expert's rows; None if it was added to the gradient that is there."""
    sums = None if ctx.parameter is None else sum_of(ctx.parameter)
    made = torch.empty_like(weights, dtype=torch.bfloat16) if sums is None else sums
    for one, other, place in zip(
        gradient.split(ctx.sizes), rows.split(ctx.sizes), made, strict=True
    ):
        if len(one) == 0:  # no token chose this expert
            if sums is None:
                place.zero_()
            continue
        left, left_scale = scaled_along(one, 0)
        right, right_scale = scaled_along(other, 0)
        left = left.t().contiguous()
        right = by_columns(right)
        if sums is None:
            _product(left, right, left_scale, right_scale, place)
        else:
            scales = left_scale[:, None], right_scale[None]
            torch.ops.distlab.scaled_mm_add_(place, left, right, *scales)
    return _as_gradient(ctx, made.type_as(weights) if sums is None else None)


def _product(
    left: Tensor, right: Tensor, left_scale: Tensor, right_scale: Tensor, result: Tensor
) -> None:
    """Write the product of two matrices in float8 to where it belongs.

    Args:
        left: read row by row.
        right: read column by column.
        left_scale, right_scale: to multiply the rows and columns with.
        result: in bfloat16.
    """
    torch._scaled_mm(
        left,
        right,
        scale_a=left_scale[:, None],
        scale_b=right_scale[None],
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
        out=result,
    )


def _without_data(*_: Any, out: Tensor, **__: Any) -> Tensor:
    """What torch does not say of this product: that it is written to where it belongs."""
    return out


_KERNELS = torch.library.Library("aten", "IMPL")
_KERNELS.impl("_scaled_mm.out", _without_data, "Meta")
