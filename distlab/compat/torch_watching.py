"""The private parts of torch that watching a training program needs, one function for each.

Runs on every rank.
"""

import sys
from typing import Any

import torch

# what F.dropout and its kin, and recurrent layers, call; a name that a program has imported from
# torch.nn.functional comes here as well
DROPS_OUT: Any = torch._VF


def _dtensor_module() -> Any:
    """The module of DTensor if the program has imported it; it takes long to import."""
    return sys.modules.get("torch.distributed.tensor")


def is_dtensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is spread over ranks."""
    module = _dtensor_module()
    return module is not None and isinstance(tensor, module.DTensor)


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a tensor, without communication, and without autograd.

    Private: where a DTensor keeps it. A result that is still on its way is waited for.
    """
    if not is_dtensor(tensor):
        return tensor.detach()
    own = tensor._local_tensor  # type: ignore[attr-defined]
    if hasattr(own, "wait"):
        own = own.wait()
    return own.detach()


def is_partial(tensor: torch.Tensor) -> bool:
    """Whether this rank has a summand of a DTensor."""
    if not is_dtensor(tensor):
        return False
    return any(placement.is_partial() for placement in tensor.placements)  # type: ignore[attr-defined]


def own_indices(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """For each dimension of a DTensor, the indices that this rank has.

    Private: how a placement splits a tensor; so the indices are split in the same way.
    """
    along = [torch.arange(size, device="cpu") for size in tensor.shape]
    mesh = tensor.device_mesh  # type: ignore[attr-defined]
    coordinate = mesh.get_coordinate()
    placements = tensor.placements  # type: ignore[attr-defined]
    for dimension, placement in enumerate(placements):
        split = getattr(placement, "dim", None)  # also of a strided shard
        if split is None:
            continue
        if coordinate is None:  # this rank is not in the mesh
            along[split] = along[split][:0]
            continue
        along[split] = _part(placement, along[split], mesh.size(dimension), coordinate[dimension])
    return tuple(along)


def _part(placement: Any, indices: torch.Tensor, parts: int, part: int) -> torch.Tensor:
    """One part of the indices along the dimension that a placement splits."""
    shape = [1] * (placement.dim + 1)
    shape[placement.dim] = len(indices)
    pieces, _ = placement._split_tensor(indices.view(shape), parts, with_padding=False)
    return pieces[part].reshape(-1)
