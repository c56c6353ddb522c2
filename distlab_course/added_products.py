"""Products of matrices that are added to what is there, such as the gradient of a weight.

Called by adding.py, float8.py and float8_grouped.py, on the ranks or in predict's process. Autograd
adds up the gradients of one pass after another with kernels of its own, which read two matrices and
write one. A product can add to a matrix itself: cuBLAS calls it beta = 1, and torch `addmm_`. torch
has it for plain products only. cuBLASLt has it for those in float8 as well, and for groups;
Transformer Engine calls it, which is "gradient accumulation fusion" in
github.com/NVIDIA/Megatron-LM.

So this module gives torch three operators more. What they compute is torch's product, and then the
sum. A prediction takes each of them for the one kernel that Transformer Engine has for it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor

from distlab_course.experts import local

# predictions know them by these names (distlab_predict/operators.py)
_LIBRARY = torch.library.Library("distlab", "DEF")
_LIBRARY.define(
    "scaled_mm_add_(Tensor(a!) sums, Tensor left, Tensor right, Tensor scale_a, Tensor scale_b) "
    "-> Tensor(a!)"
)
_LIBRARY.define(
    "grouped_mm_add_(Tensor(a!) sums, Tensor left, Tensor right, Tensor offs) -> Tensor(a!)"
)
_LIBRARY.define(
    "scaled_grouped_mm_add_(Tensor(a!) sums, Tensor left, Tensor right, "
    "Tensor scale_a, Tensor scale_b, Tensor offs) -> Tensor(a!)"
)


def sum_of(weight: Tensor) -> Tensor | None:
    """What this rank has of the gradient of a weight, to which a product can add.

    Runs on: anywhere.

    Args:
        weight: a parameter, as autograd has it.

    Returns:
        None, if no pass of this step has made a gradient yet.
    """
    return None if weight.grad is None else local(weight.grad)


def placed_as(weight: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of a weight of which other ranks may have other parts.

    Runs on: anywhere.

    Args:
        weight: a parameter.
        gradient: of what this rank has of it.
    """
    if not isinstance(weight, DTensor):
        return gradient
    return DTensor.from_local(
        gradient,
        weight.device_mesh,
        weight.placements,
        run_check=False,
        shape=weight.shape,
        stride=weight.stride(),
    )


def _scaled(sums: Tensor, left: Tensor, right: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    # with a scale for each row, torch's product is in bfloat16
    dtype = torch.bfloat16 if scale_a.dim() == 2 else sums.dtype
    product = torch._scaled_mm(left, right, scale_a, scale_b, out_dtype=dtype)
    return sums.add_(product)


def _grouped(sums: Tensor, left: Tensor, right: Tensor, offs: Tensor) -> Tensor:
    return sums.add_(F.grouped_mm(left, right, offs=offs))


def _scaled_grouped(
    sums: Tensor, left: Tensor, right: Tensor, scale_a: Tensor, scale_b: Tensor, offs: Tensor
) -> Tensor:
    product = torch._scaled_grouped_mm(
        left,
        right,
        scale_a,
        scale_b,
        offs=offs,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )
    return sums.add_(product)


def _without_data(sums: Tensor, *_: Tensor) -> Tensor:
    return sums


for _name, _product in (
    ("scaled_mm_add_", _scaled),
    ("grouped_mm_add_", _grouped),
    ("scaled_grouped_mm_add_", _scaled_grouped),
):
    _LIBRARY.impl(_name, _product, "CompositeExplicitAutograd")
    _LIBRARY.impl(_name, _without_data, "Meta")
