"""Experts that compute one after another: each product is a kernel of its own, and so is each cast.

Called by engine.py and adding.py; it runs on the ranks, or in predict's process. Transformer
Engine's GroupedLinear does so up to 2.16 (github.com/NVIDIA/TransformerEngine, split_quantize and
nvte_multi_tensor_gemm at v2.9: a call of cuBLAS for each expert). So the processor must know how
many rows each expert has, and launches as many kernels more. Where micro-batches are small, the
device waits for it.

    compute_apart(model)    # after in_float8, before add_in_products

The numbers are those of experts.py and float8_grouped.py. Only, the gradient of an expert's weights
has scales of its own here, which are powers of two all the same. In MXFP8, Transformer Engine casts
an expert's rows both ways that products read them in one kernel, and keeps one for the backward
pass. This module gives torch an operator that computes as much, and a prediction takes it for that
kernel. With a scale for each tensor it has three, for the largest number, the scale, and the cast.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from distlab_course.added_products import placed_as, sum_of
from distlab_course.experts import RoutedExperts, local
from distlab_course.float8_grouped import (
    Kept,
    by_columns_of,
    grouped_in_float8,
    once,
    scaled_along,
    transposed,
)
from distlab_course.float8_numbers import E4M3


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
    """The same in float8. For the backward pass it keeps rows in float8, as columns."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weights: Tensor,
        sizes: Sequence[int],
        adds: bool,
        kept: Kept | None,
    ) -> Tensor:
        matrices, scales = once(transposed, weights, kept)
        results = rows.new_empty(len(rows), matrices.shape[2], dtype=torch.bfloat16)
        as_columns: list[Tensor] = []
        for part, matrix, scale, result in zip(
            rows.split(sizes), matrices, scales, results.split(sizes), strict=True
        ):
            if len(part) > 0:
                by_rows, row_scale, *columns = _cast(part)
                _multiply(by_rows, matrix, row_scale, scale, result)
                as_columns += columns
        ctx.save_for_backward(local(weights), *as_columns)
        ctx.parameter = weights if adds else None
        ctx.sizes = sizes
        ctx.kept = kept
        return results.type_as(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        weights, *as_columns = ctx.saved_tensors
        own = weights if ctx.parameter is None else ctx.parameter
        matrices, scales = once(by_columns_of, own, ctx.kept)
        sums = None if ctx.parameter is None else sum_of(ctx.parameter)
        made = torch.empty_like(weights, dtype=torch.bfloat16) if sums is None else sums
        of_rows = gradient.new_empty(len(gradient), matrices.shape[2], dtype=torch.bfloat16)
        places = zip(of_rows.split(ctx.sizes), made, strict=True)
        given = zip(gradient.split(ctx.sizes), matrices, scales, strict=True)
        saved = iter(as_columns)
        for (part, matrix, scale), (of_part, of_weight) in zip(given, places, strict=True):
            if len(part) > 0:
                by_rows, row_scale, columns, column_scale = _cast(part)
                _multiply(by_rows, matrix, row_scale, scale, of_part)
                right, right_scale = next(saved).t(), next(saved)
                write = _multiply if sums is None else _multiply_and_add
                write(columns, right, column_scale, right_scale, of_weight)
            elif sums is None:  # no token chose this expert
                of_weight.zero_()
        of_weights = _as_gradient(ctx, made.type_as(weights) if sums is None else None)
        return of_rows.type_as(gradient), of_weights, None, None, None


def _multiply(
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


def _multiply_and_add(
    left: Tensor, right: Tensor, left_scale: Tensor, right_scale: Tensor, sums: Tensor
) -> None:
    """Add it to what is there instead."""
    torch.ops.distlab.scaled_mm_add_(sums, left, right, left_scale[:, None], right_scale[None])


# --- an operator for casts ---


def _cast(values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows in float8 in both ways that products read them, which is a kernel on a GPU.

    Returns:
        the rows, with what each must be multiplied with; and the columns as rows, likewise.
    """
    made: tuple[Tensor, Tensor, Tensor, Tensor] = torch.ops.distlab.cast_both_ways(values)
    return made


def _both_ways(values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, row_scales = scaled_along(values, 1)
    columns, column_scales = scaled_along(values, 0)
    return rows, row_scales, columns.t().contiguous(), column_scales


def _both_ways_without_data(values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    height, width = values.shape
    rows = values.new_empty(height, width, dtype=E4M3)
    columns = values.new_empty(width, height, dtype=E4M3)
    row_scales = values.new_empty(height, dtype=torch.float32)
    return rows, row_scales, columns, values.new_empty(width, dtype=torch.float32)


def _written_without_data(*_: Any, out: Tensor, **__: Any) -> Tensor:
    """What torch does not say of this product: that it is written to where it belongs."""
    return out


_LIBRARY = torch.library.Library("distlab", "FRAGMENT")
_LIBRARY.define("cast_both_ways(Tensor values) -> (Tensor, Tensor, Tensor, Tensor)")
_LIBRARY.impl("cast_both_ways", _both_ways, "CompositeExplicitAutograd")
_LIBRARY.impl("cast_both_ways", _both_ways_without_data, "Meta")
_KERNELS = torch.library.Library("aten", "IMPL")
_KERNELS.impl("_scaled_mm.out", _written_without_data, "Meta")
