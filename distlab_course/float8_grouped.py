"""Grouped products in float8: each expert's rows times its matrix, forward and backward.

Called by float8.py for the experts of a mixture; it runs on the ranks, or in predict's process. The
recipe is that of torchao for experts (github.com/pytorch/ao, torchao/prototype/moe_training): a
scale for each row of the left matrix, and for each column of each group's right one, all in E4M3.
The gradient of the weights adds up over rows, so there the scales are those of columns. Here all
groups share these, which plain operators find; torchao has a kernel that finds them by group. All
scales are powers of two, which change no digits: a row is the same whatever other rows arrive.

A GPU has the operator for it. It needs rows of each group, and both sizes of its matrix, that are
multiples of 16. torch has none for CPUs, so this module gives torch one, with the same numbers
multiplied in float32. Tensors without data, as in predictions, have the GPU's.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from distlab_course.added_products import placed_as, sum_of
from distlab_course.experts import local
from distlab_course.float8_numbers import E4M3, cast, scale_of

Scaled = tuple[Tensor, Tensor]  # numbers in float8, and what they must be multiplied with
# weights in float8 that serve all passes of a step, by parameter and the function that made them
Kept = dict[tuple[int, Callable[[Tensor], Scaled]], Scaled]


def grouped_in_float8(
    rows: Tensor, weights: Tensor, ends: Tensor, adds: bool = False, kept: Kept | None = None
) -> Tensor:
    """Each group's rows times its matrix, forward and backward in float8.

    Runs on: anywhere.

    Args:
        rows: of one group after another, shape (row, k).
        weights: shape (group, n, k), or what this rank has of it.
        ends: the row after the last one of each group, int32.
        adds: whether the weights' gradient is added to the one that is there, see adding.py.
        kept: where the weights in float8 are, or will be, for the next pass. Clear it when the
            optimizer has changed them. None: each pass makes its own.

    Returns:
        shape (row, n), in the format of the rows. A GPU rounds to bfloat16, and so does a CPU.
    """
    weights = weights if adds else local(weights)
    result: Tensor = _GroupedProduct.apply(rows, weights, ends, adds, kept)
    return result


class _GroupedProduct(torch.autograd.Function):
    """rows @ weights.transpose(1, 2) of each group."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weights: Tensor, ends: Tensor, adds: bool, kept: Kept | None
    ) -> Tensor:
        ctx.save_for_backward(rows, local(weights), ends)
        ctx.parameter = weights if adds else None
        ctx.kept = kept
        left, left_scale = scaled_along(rows, 1)
        right, right_scale = once(transposed, weights, kept)
        product = _product(left, right, left_scale, right_scale, ends)
        return product.type_as(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        rows, weights, ends = ctx.saved_tensors
        of_rows = None
        if ctx.needs_input_grad[0]:
            own = weights if ctx.parameter is None else ctx.parameter
            left, left_scale = scaled_along(gradient, 1)
            right, right_scale = once(by_columns_of, own, ctx.kept)
            of_rows = _product(left, right, left_scale, right_scale, ends).type_as(rows)
        of_weights = None
        if ctx.needs_input_grad[1]:
            if ctx.parameter is None:
                of_weights = _gradient_of_weights(gradient, rows, ends).type_as(weights)
            else:
                of_weights = _added(ctx.parameter, gradient, rows, ends)
        return of_rows, of_weights, None, None, None


def once(make: Callable[[Tensor], Scaled], weights: Tensor, kept: Kept | None) -> Scaled:
    """Weights in float8, made here, or by a pass before."""
    if kept is None:
        return make(local(weights))
    key = id(weights), make
    if key not in kept:
        kept[key] = make(local(weights))
    return kept[key]


def transposed(weights: Tensor) -> Scaled:
    """What rows are multiplied with; shape (group, n, k), result (group, k, n)."""
    right, scale = scaled_along(weights, 2)
    return right.transpose(1, 2), scale


def by_columns_of(weights: Tensor) -> Scaled:
    """What the gradient of results is multiplied with; shape (group, n, k)."""
    right, scale = scaled_along(weights, 1)
    return _by_columns(right), scale


def _gradient_of_weights(gradient: Tensor, rows: Tensor, ends: Tensor) -> Tensor:
    """The sum over each group's rows; shapes (row, n) and (row, k), result (group, n, k)."""
    if len(rows) == 0:  # no token chose any of these experts
        return gradient.new_zeros(len(ends), gradient.shape[1], rows.shape[1])
    return _product(*_summands(gradient, rows, ends))


def _added(weights: Tensor, gradient: Tensor, rows: Tensor, ends: Tensor) -> Tensor | None:
    """The same, as the gradient of a parameter; None if it was added to the one that is there."""
    sums = sum_of(weights)
    if sums is None:
        return placed_as(weights, _gradient_of_weights(gradient, rows, ends).type_as(weights))
    if len(rows) > 0:
        torch.ops.distlab.scaled_grouped_mm_add_(sums, *_summands(gradient, rows, ends))
    return None


def _summands(
    gradient: Tensor, rows: Tensor, ends: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The matrices whose product is the gradient of the weights, as `_product` takes them."""
    left, left_scale = scaled_along(gradient, 0)
    right, right_scale = scaled_along(rows, 0)
    left_scales = left_scale.repeat(len(ends))
    right_scales = right_scale.repeat(len(ends))
    return left.t().contiguous(), _by_columns(right), left_scales, right_scales, ends


def _product(
    left: Tensor, right: Tensor, left_scale: Tensor, right_scale: Tensor, ends: Tensor
) -> Tensor:
    """The grouped product of numbers in float8, in bfloat16.

    Args:
        left: read row by row.
        right: read column by column.
        left_scale, right_scale: to multiply the rows and columns with.
        ends: of the groups.
    """
    return torch._scaled_grouped_mm(
        left,
        right,
        left_scale,
        right_scale,
        offs=ends,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )


def scaled_along(values: Tensor, dim: int) -> Scaled:
    """A tensor in float8, and for all numbers along a dimension what it must be multiplied with."""
    scale = scale_of(values.abs().amax(dim, keepdim=True), E4M3).log2().floor().exp2()
    return cast(values, scale, E4M3), scale.squeeze(dim).reciprocal()


def _by_columns(matrices: Tensor) -> Tensor:
    """The same matrices, whose columns lie one after another."""
    return matrices.transpose(-1, -2).contiguous().transpose(-1, -2)


def _on_a_cpu(
    left: Tensor,
    right: Tensor,
    left_scale: Tensor,
    right_scale: Tensor,
    offs: Tensor,
    *_: Any,
    out_dtype: torch.dtype | None = None,
    **__: Any,
) -> Tensor:
    """What torch's operator computes on a GPU; the scales here are those to multiply with."""
    if right.dim() == 3:
        whole_left = left.float() * left_scale[:, None]
        whole_right = right.float() * right_scale[:, None]
        product = F.grouped_mm(whole_left, whole_right, offs=offs)
    else:  # rows and columns have scales in each group
        # as gradients of weights are usually multiplied, where any number of rows may be added up
        by_rows = left.t().contiguous().float()
        product = F.grouped_mm(by_rows.t(), right.contiguous().float(), offs=offs)
        product = product * left_scale.view(len(offs), -1, 1) * right_scale.view(len(offs), 1, -1)
    return product.to(out_dtype or torch.bfloat16)


_KERNELS = torch.library.Library("aten", "IMPL")
_KERNELS.impl("_scaled_grouped_mm", _on_a_cpu, "CPU")
