"""Optimizers of pretraining.py's models, whose parameters may be on several meshes.

It runs on the ranks, or in predict's process.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from distlab_course.dividing import by_mesh, total_norm
from distlab_course.llama import Llama


def optimizer_of(model: Llama) -> torch.optim.AdamW:
    """AdamW, with a group of parameters for each mesh that they are on."""
    groups = [{"params": some} for some in by_mesh(list(model.parameters()))]
    return torch.optim.AdamW(groups, lr=1e-4)


def give_states(optimizer: torch.optim.AdamW) -> None:
    """Have the optimizer make its states, in a step that changes no parameter."""
    for group in optimizer.param_groups:
        rate = group["lr"]
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()


def clip(models: list[Llama], mesh: DeviceMesh, most: float) -> Tensor:
    """Scale the gradients of all stages so that their norm together is at most this.

    Returns:
        the norm before, on every rank.
    """
    groups = by_mesh([parameter for model in models for parameter in model.parameters()])
    norm = total_norm(groups)  # of this rank's stages, over their other dimensions
    if mesh["pipeline"].size() > 1:
        squared = norm.square()
        dist.all_reduce(squared, group=mesh.get_group("pipeline"))
        norm = squared.sqrt()
    for group in groups:
        nn.utils.clip_grads_with_norm_(group, most, norm)
    return norm
