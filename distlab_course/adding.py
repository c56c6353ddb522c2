"""Layers whose products add to the gradients of their weights, as those of Transformer Engine do.

Called by engine.py; it runs on the ranks, or in predict's process. The first pass of a step
makes a gradient as ever. In the passes after it, the product of a layer's gradient and its inputs
is added to what is there (added_products.py), and autograd is told of none.

    add_in_products(model)    # after in_float8 and compute_apart

The gradients must stay whole from pass to pass, in the format in which layers make them. So it is
in pipelines, and where FSDP reduces gradients only at the last pass, in their own format.
"""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from distlab_course.added_products import placed_as, sum_of
from distlab_course.experts import RoutedExperts, Router, grouped, local
from distlab_course.experts_apart import apart, apart_in_float8
from distlab_course.float8 import Float8Linear
from distlab_course.float8_grouped import Kept, grouped_in_float8


def add_in_products(model: nn.Module, kept: Kept | None = None) -> None:
    """Have linear layers and experts of a model add up the gradients of their weights.

    Routers stay as they are, as their ranks may have parts of sums.

    Runs on: every rank.

    Args:
        model: changed in place.
        kept: where weights of experts in float8 are for all passes of a step; clear it after each
            step. Weights that `fully_shard` gathers in float8 are then also transposed once. None
            is better where FSDP gathers for each pass.
    """
    gates = {module.gate for module in model.modules() if isinstance(module, Router)}
    for module in model.modules():
        if isinstance(module, Float8Linear):
            module.adds = True
            module.transposes = kept is not None
        elif isinstance(module, nn.Linear) and module not in gates:
            layer: nn.Module = module
            layer.forward = functools.partial(_linear, module)
        elif isinstance(module, RoutedExperts):
            if module.multiply in (grouped_in_float8, apart_in_float8):
                module.multiply = functools.partial(module.multiply, adds=True, kept=kept)
            elif module.multiply is apart:
                module.multiply = functools.partial(apart, adds=True)
            else:
                module.multiply = _grouped


def _linear(layer: nn.Linear, inputs: Tensor) -> Tensor:
    """What a linear layer makes of inputs."""
    result: Tensor = _Product.apply(inputs, layer.weight)
    return result if layer.bias is None else result + layer.bias


def _grouped(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Each group's rows times its matrix; shapes as in `experts.grouped`."""
    result: Tensor = _GroupedProduct.apply(rows, weights, ends)
    return result


class _Product(torch.autograd.Function):
    """inputs @ weight.T; shapes (..., k) and (n, k)."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.weight = weight  # a parameter itself, as its gradient matters
        return F.linear(inputs, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (gradient,) = gradients
        (inputs,) = ctx.saved_tensors
        of_inputs = None
        if ctx.needs_input_grad[0]:
            of_inputs = gradient @ ctx.weight
        of_weight = None
        if ctx.needs_input_grad[1]:
            rows = gradient.flatten(0, -2).t()
            of_weight = _added(ctx.weight, rows, inputs.flatten(0, -2))
        return of_inputs, of_weight


def _added(weight: Tensor, left: Tensor, right: Tensor) -> Tensor | None:
    """The gradient of a weight, which is a product; None if it was added to the one there."""
    sums = sum_of(weight)
    if sums is None:
        return left @ right
    sums.addmm_(local(left), local(right))
    return None


class _GroupedProduct(torch.autograd.Function):
    """rows @ weights.transpose(1, 2) of each group."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(rows, ends)
        ctx.weights = weights
        return grouped(rows, weights, ends)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (gradient,) = gradients
        rows, ends = ctx.saved_tensors
        of_rows = None
        if ctx.needs_input_grad[0]:
            of_rows = F.grouped_mm(gradient, local(ctx.weights), offs=ends)
        of_weights = None
        if ctx.needs_input_grad[1]:
            of_weights = _added_in_groups(ctx.weights, gradient.t(), rows, ends)
        return of_rows, of_weights, None


def _added_in_groups(weights: Tensor, left: Tensor, right: Tensor, ends: Tensor) -> Tensor | None:
    """The same of each group's weight."""
    sums = sum_of(weights)
    if sums is None:
        return placed_as(weights, F.grouped_mm(left, right, offs=ends))
    torch.ops.distlab.grouped_mm_add_(sums, left, right, ends)
    return None
