"""The rows that a module is called with, and their fingerprints.

Runs on every rank; called by forwards.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from distlab.compat import torch_watching as private

_BYTES = 8  # of a fingerprint


def tensors_in(arguments: Any) -> Iterator[torch.Tensor]:
    """The tensors in arguments, also those in tuples, lists and mappings, in order."""
    if isinstance(arguments, torch.Tensor):
        yield arguments
    elif isinstance(arguments, Mapping):
        for value in arguments.values():
            yield from tensors_in(value)
    elif isinstance(arguments, (tuple, list)):
        for value in arguments:
            yield from tensors_in(value)


def data_of(arguments: Any) -> torch.Tensor | None:
    """The first tensor that is no activation, and has rows; None without one."""
    for tensor in tensors_in(arguments):
        is_activation = tensor.requires_grad or tensor.grad_fn is not None
        if not is_activation and tensor.dim() > 0 and tensor.device.type != "meta":
            return tensor
    return None


def has_received(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a module is called with activations that nothing here has computed."""
    for tensor in tensors_in((args, kwargs)):
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        if tensor.requires_grad and tensor.is_leaf and not is_parameter:
            return True
    return False


@torch.no_grad()
def fingerprints(data: torch.Tensor) -> tuple[bytes, ...]:
    """Of each row a fingerprint of its content."""
    own = private.own_part(data)
    if own.layout != torch.strided:
        own = own.to_dense()
    if own.numel() == 0:
        return ()
    rows = own.to("cpu").contiguous().view(len(own), -1)
    as_bytes = rows.resolve_conj().view(torch.uint8).numpy()
    return tuple(hashlib.blake2b(row.data, digest_size=_BYTES).digest() for row in as_bytes)
