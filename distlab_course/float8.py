"""Linear layers and experts that multiply in float8.

Called by pretraining.py for lab 63 and benchmarks; it runs on the ranks, or in predict's process.
The recipe is that of torchao with a scale for each tensor (github.com/pytorch/ao, torchao/float8).
Experts have one for each row, see float8_grouped.py.

    in_float8(model)                     # before split and fully_shard; gathered=True sends float8
    ...
    optimizer.step()
    float8_weights.share_scales(model)   # with gathered=True: one all-reduce for all weights
"""

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from distlab_course.added_products import sum_of
from distlab_course.experts import RoutedExperts, local
from distlab_course.float8_gathered import in_columns, in_eight, put_off_of
from distlab_course.float8_grouped import grouped_in_float8
from distlab_course.float8_numbers import E4M3, E5M2
from distlab_course.float8_weights import SentWeight


def multiply(
    left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], dtype: torch.dtype, fast: bool
) -> Tensor:
    """The product of two matrices in float8, with their scales.

    Args:
        left, right: matrices with their scales. A GPU reads the left one row by row, and the right
            one column by column, so they are copied if they are not like that.
        dtype: of the result.
        fast: whether sums are kept with fewer digits, as forward passes can afford.
    """
    one, one_scale = left
    other, other_scale = right
    return torch._scaled_mm(
        one.contiguous(),
        other.t().contiguous().t(),
        scale_a=one_scale.reciprocal(),
        scale_b=other_scale.reciprocal(),
        out_dtype=dtype,
        use_fast_accum=fast,
    )


def multiply_and_add(
    sums: Tensor, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]
) -> None:
    """Add the product of two matrices in float8 to a matrix, in place.

    Args:
        sums: what this rank has of it.
        left, right: as of `multiply`. What a rank has of them gives what it has of the product.
    """
    one, one_scale = map(local, left)
    other, other_scale = map(local, right)
    torch.ops.distlab.scaled_mm_add_(
        sums,
        one.contiguous(),
        other.t().contiguous().t(),
        one_scale.reciprocal(),
        other_scale.reciprocal(),
    )


class _Product(torch.autograd.Function):
    """inputs @ weight.T, forward and backward in float8; shapes (..., k) and (n, k)."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, adds: bool) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.adds_to = weight if adds else None  # a parameter itself, as its gradient matters
        values, scale = in_eight(weight, E4M3)
        given = _rows(inputs, E4M3)
        result = multiply(given, (values.t(), scale), inputs.dtype, fast=True)
        # fully_shard warns of layers that return a view
        return torch.ops.aten._unsafe_view(result, (*inputs.shape[:-1], result.shape[-1]))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (gradient,) = gradients
        inputs, weight = ctx.saved_tensors
        dtype = gradient.dtype
        grad, scale = _rows(gradient, E5M2)
        of_inputs = None
        if ctx.needs_input_grad[0]:
            of_inputs = multiply((grad, scale), in_columns(weight, E4M3), dtype, fast=False)
            of_inputs = of_inputs.view(inputs.shape)
        of_weight = None
        if ctx.needs_input_grad[1]:
            given = _rows(inputs, E4M3)
            sums = None if ctx.adds_to is None else sum_of(ctx.adds_to)
            if sums is None:
                of_weight = multiply((grad.t(), scale), given, dtype, fast=False)
            else:
                add = functools.partial(multiply_and_add, sums, (grad.t(), scale), given)
                put_off = put_off_of(inputs)
                if put_off is None:
                    add()
                else:
                    put_off.add(add)
        return of_inputs, of_weight, None


def _rows(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The last dimension's vectors in float8, as rows of a matrix, with their scale."""
    eight, scale = in_eight(values, dtype)
    return eight.flatten(0, -2), scale


class Float8Linear(nn.Linear):
    """A linear layer that multiplies in float8; its weight and its results are not in float8.

    The number of tokens, and both sizes of the layer, must be multiples of 16 on a GPU.

    Attributes:
        adds: whether the weight's gradient is added to the one that is there, see adding.py.
        transposes: whether a weight that is gathered in float8 is also transposed then. Else each
            backward pass does it.
    """

    adds = False
    transposes = False

    def forward(self, input: Tensor) -> Tensor:
        """Shapes (..., in_features) in, (..., out_features) out."""
        result: Tensor = _Product.apply(input, self.weight, self.adds)
        if self.bias is not None:
            result = result + self.bias
        return result


def in_float8(
    model: nn.Module, gathered: bool = False, but: Iterable[str] = ("output",)
) -> nn.Module:
    """Have linear layers and experts of a model multiply in float8. Call it before `fully_shard`.

    Runs on: every rank.

    Args:
        model: changed in place.
        gathered: whether fully_shard gathers the weights of linear layers in float8, a byte a
            number; then call `share_scales` after each step of the optimizer. The first size of
            each weight must be a multiple of the number of ranks that share it.
        but: names of layers that stay as they are: by default the last one of a language model,
            whose results need more digits. A router is a linear layer too.

    Returns:
        the model.

    Raises:
        ValueError: the model is a linear layer itself, which cannot be replaced in place.
    """
    if isinstance(model, nn.Linear):
        raise ValueError(
            f"model must be a module with linear layers in it, got {model}. "
            "Call in_float8(nn.Sequential(layer))."
        )
    kept = {but} if isinstance(but, str) else set(but)
    for name, module in [*model.named_modules()]:
        if isinstance(module, RoutedExperts) and name not in kept:
            module.multiply = grouped_in_float8
        if type(module) is not nn.Linear or name in kept:
            continue
        layer = Float8Linear.__new__(Float8Linear)
        layer.__dict__ = module.__dict__
        if gathered:
            weight = SentWeight(module.weight.detach())
            layer.weight = nn.Parameter(weight, module.weight.requires_grad)
        model.set_submodule(name, layer)
    return model
