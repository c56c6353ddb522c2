"""Has layers call the kernels that they call on a GPU.

Called by torch_changed.py. Tried with torch 2.13.
"""

import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from distlab_predict.torch_patches import Patch

_ON_CPU = functional.scaled_dot_product_attention


def patches() -> Iterator[Patch]:
    """Have layers call the kernels that they call on a GPU."""
    yield Patch(functional, "scaled_dot_product_attention", scaled_dot_product_attention)
    yield Patch(nn.SyncBatchNorm, "forward", _sync_batch_norm)
    yield Patch(torch, "compile", _as_it_is_written)
    # it cannot compile what calls a function that is replaced here
    yield Patch(torch.jit, "script", _as_it_is_written)


def _as_it_is_written(model: Any = None, **options: Any) -> Any:
    """Return what torch.compile or torch.jit.script is given.

    As a decorator with options, it is given that later.
    """
    if model is None:
        return functools.partial(_as_it_is_written, **options)
    return model


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention in a single kernel, which makes no matrix of all scores.

    Context parallelism knows no other one.
    """
    if query.dim() != 4 or not torch.backends.cuda.mem_efficient_sdp_enabled():
        return _ON_CPU(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if attn_mask is None and query.shape[-1] == value.shape[-1]:
        # it takes grouped keys as they are; the other kernel needs them repeated
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
    if enable_gqa:
        heads = query.shape[1]
        key = key.repeat_interleave(heads // key.shape[1], 1)
        value = value.repeat_interleave(heads // value.shape[1], 1)
    bias = None
    if attn_mask is not None:
        bias = attn_mask.to(query.dtype)
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, bias, True, dropout_p, is_causal, scale=scale)[0]


def _sync_batch_norm(self: nn.SyncBatchNorm, values: Tensor) -> Tensor:
    """Call the collectives of torch's own forward, and BatchNorm's kernels: a CPU has no others."""
    if not self.training:
        return _batch_norm(self, values)
    group: Any = self.process_group or dist.group.WORLD
    sums = torch.empty(2 * self.num_features + 1)  # of this rank: two for each feature, and a count
    of_all_ranks = torch.empty(group.size() * sums.numel())
    dist.all_gather_into_tensor(of_all_ranks, sums, group)
    result = _batch_norm(self, values)
    if result.requires_grad:
        result.register_hook(lambda _: dist.all_reduce(sums[1:], group=group))
    return result


def _batch_norm(layer: nn.SyncBatchNorm, values: Tensor) -> Tensor:
    return functional.batch_norm(
        values,
        layer.running_mean,
        layer.running_var,
        layer.weight,
        layer.bias,
        layer.training,
        layer.momentum or 0.0,
        layer.eps,
    )
