"""The usual reasons for a factor, and what to do about each.

Runs where a comparison is judged, called by gradients.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

OF_MEANINGS = {
    "1 / ranks": (
        "Usual reasons: the loss is divided by world_size although DistributedDataParallel divides "
        "the gradients as well, or a sum over the rows of all ranks is averaged. Leave one "
        "division out, or multiply the loss by world_size. Or every rank computes the loss of all "
        "rows, which all_gather gives without a gradient, so that only its own rows get one."
    ),
    "ranks": (
        "Usual reason: the gradients are summed over the ranks and nothing divides them. Call "
        "parameter.grad.div_(world_size) after all_reduce, or all_reduce with ReduceOp.AVG."
    ),
    "1 / ranks²": (
        "Usual reason: the gradients are divided by world_size more than once. Look for a division "
        "of the loss, one of the gradients, and DistributedDataParallel's own."
    ),
    "ranks²": (
        "Usual reason: the loss is multiplied by world_size, and the gradients are summed instead "
        "of averaged."
    ),
    "backward passes per step": (
        "Usual reason: each backward pass adds the gradient of a mean, and nothing divides by "
        "their number. Call (loss / passes).backward()."
    ),
    "1 / backward passes per step": (
        "Usual reason: the gradients of a step are divided by the number of backward passes twice, "
        "or those of one pass only are kept. Look for zero_grad() between the passes."
    ),
    "ranks x backward passes per step": (
        "Usual reason: the gradients are summed over ranks and over backward passes, and nothing "
        "divides by either."
    ),
    "1 / (ranks x backward passes per step)": (
        "Usual reason: the loss is divided by the number of backward passes and of ranks, and the "
        "gradients are averaged as well."
    ),
}
NUMBERS_OF_PASSES = re.compile(r"\d+ / \d+ backward passes per step")
OTHER_PASSES = (
    "One process makes another number of backward passes for a step. Each pass adds the gradient "
    "of a mean, and nothing divides by their number: call (loss / passes).backward()."
)
OF_SOME = (
    "Usual reasons: these parameters are reduced twice, as a tied weight is by a loop over "
    "modules, or every rank has computed their whole gradient already, and then it is summed."
)
OTHER = (
    "Usual reasons: the loss is divided by another number than in one process, or the gradients "
    "are clipped by another norm."
)


def reason_for_factor(factor: float, means: Sequence[str], is_of_some: bool) -> str:
    """The usual reasons for a factor, and what to do.

    Args:
        factor: by which the gradient is too large.
        means: what it may mean.
        is_of_some: whether other parameters are right.
    """
    if is_of_some and factor > 1:
        return OF_SOME
    reasons = []
    for meaning in means:
        if NUMBERS_OF_PASSES.fullmatch(meaning):
            reasons.append(OTHER_PASSES)
        elif meaning in OF_MEANINGS:
            reasons.append(OF_MEANINGS[meaning])
    return reasons[0] if reasons else OTHER
