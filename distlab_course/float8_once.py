"""What linear layers in float8 are given is cast once, for all of them and for both passes.

Called by engine.py; it runs on the ranks, or in predict's process. Transformer Engine does so: the
products of queries, keys and values are one product there, as are those of the gate and of what it
lets through, and what was cast is kept for the backward pass. torchao keeps the numbers as they
were, and each product casts them, forward and backward.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from distlab_course.experts import Mixture
from distlab_course.float8 import Float8Linear
from distlab_course.float8_gathered import Gathered, of_local
from distlab_course.float8_numbers import E4M3, scaled
from distlab_course.llama import Block, Llama


class _Cast(torch.autograd.Function):
    """A tensor in float8, whose gradient is that of the tensor."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        eight, scale = scaled(values, E4M3)
        if not isinstance(eight, DTensor):
            return Gathered(eight, scale, values.dtype)
        assert isinstance(scale, DTensor)  # as `eight` is
        cast = Gathered(eight.to_local(), scale.full_tensor(), values.dtype)
        return of_local(eight, cast, eight.stride())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        return gradient


def _once(_: nn.Module, inputs: tuple[Tensor]) -> Tensor:
    """What a module is given instead: the same in float8, as it may be already."""
    (values,) = inputs
    local = values.to_local() if isinstance(values, DTensor) else values
    if isinstance(local, Gathered):
        return values
    cast: Tensor = _Cast.apply(values)
    return cast


def cast_once(model: Llama, is_split: bool) -> None:
    """Have the layers of a model that multiply in float8 share what they are given.

    Runs on: every rank.

    Args:
        model: changed in place; call in_float8 before.
        is_split: whether ranks of tensor parallelism gather in float8 what attention and
            feed-forward layers are given, which is cast for that already.
    """
    for block in model.blocks.values():
        assert isinstance(block, Block)
        if not is_split and isinstance(block.attention.wo, Float8Linear):
            block.attention.register_forward_pre_hook(_once)
            halves = block.feed_forward
            shared = halves.shared if isinstance(halves, Mixture) else halves
            if shared is not None:
                shared.register_forward_pre_hook(_once)
    for module in model.modules():
        if isinstance(module, Float8Linear):
            module.register_forward_pre_hook(_once)
