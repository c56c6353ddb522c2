"""What a backward pass computes again, so that a forward pass need not keep it.

Called by pretraining.py; it runs on the ranks, or in predict's process. Which results are kept is
as in TorchTitan, github.com/pytorch/torchtitan, torchtitan/models/llama3/infra/parallelize.py.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import (
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

RECOMPUTE = ("none", "op", "layer", "full")
NAMING = (  # operators that only name a span of time
    torch.ops.profiler._record_function_enter_new.default,  # noqa: SLF001 - an operator's name
    torch.ops.profiler._record_function_exit._RecordFunction,  # noqa: SLF001
)


def recomputed(forward: Callable[[Tensor], Tensor], some: bool) -> Callable[[Tensor], Tensor]:
    """A forward pass that keeps its input, and computes the rest again in the backward pass.

    Args:
        some: not all of the rest: what Policy says is kept.
    """
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if some:
        # What FSDP names for profilers is more in a backward pass than it was before.
        SAC_IGNORED_OPS.update(NAMING)
        options["context_fn"] = lambda: create_selective_checkpoint_contexts(Policy())
    return lambda x: checkpoint(forward, x, **options)


def recomputed_but_attention(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that keeps what it is given, and what attention gave, and computes the rest again.

    Args:
        forward: of tensors.
    """
    contexts = functools.partial(create_selective_checkpoint_contexts, _is_attention_kept)
    return functools.partial(
        checkpoint, forward, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
    )


def _is_attention_kept(_: Any, operator: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    if operator.overloadpacket.__name__.startswith("_scaled_dot_product_"):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


class Policy:
    """Which operators' results are kept: of products of matrices every second one is not.

    Products of experts are not among these, whether one kernel has all or each has its own.
    """

    KEPT = ("max", "_scaled_dot_product_", "reduce_scatter_tensor", "all_to_all_single")
    PRODUCTS = ("mm", "_scaled_mm")

    def __init__(self) -> None:
        self._products = {False: 0, True: 0}  # when they are computed first, and again

    def __call__(self, context: Any, operator: Any, *_: Any, **arguments: Any) -> CheckpointPolicy:
        name = operator.overloadpacket.__name__
        kept = name.startswith(self.KEPT)
        if name in self.PRODUCTS and "out" not in arguments:
            self._products[context.is_recompute] += 1
            kept = self._products[context.is_recompute] % 2 == 1
        if kept:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE
