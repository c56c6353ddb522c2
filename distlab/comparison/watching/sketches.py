"""Sketches of tensors: short vectors that depend linearly on them, see records.Sketch.

Runs on every rank; called by seen_tensors.py, flat_parameters.py and perturbing.py.
"""

from __future__ import annotations

import functools

import numpy as np
import torch

from distlab.comparison.records import MOST_SUMS, Sketch
from distlab.comparison.watching.places import Places

# elements that are added up at once: they stay in a core's cache
BLOCK = 16 * MOST_SUMS
# odd, so that the blocks begin at different places of the table of signs
_STRIDE = 40503


@functools.cache
def _signs() -> torch.Tensor:
    """BLOCK random signs, twice, so that a block may begin at any of them."""
    bits = np.random.default_rng(1002).integers(0, 2, BLOCK)
    once = torch.from_numpy(2.0 * bits - 1.0)
    return torch.cat([once, once])


def _start_of_signs(block: int, salt: int) -> int:
    return (block * _STRIDE + salt * 7919) % BLOCK


def signs_of_block(block: int, salt: int = 0) -> torch.Tensor:
    """The signs of the elements of a block of BLOCK elements, float64.

    Args:
        block: its number: elements `block * BLOCK` and so on.
        salt: another number gives other signs.
    """
    start = _start_of_signs(block, salt)
    return _signs()[start : start + BLOCK]


def signs_at(positions: torch.Tensor, salt: int = 0) -> torch.Tensor:
    """The signs of the elements at these positions, float64."""
    starts = (positions // BLOCK * _STRIDE + salt * 7919) % BLOCK
    return _signs()[starts + positions % BLOCK]


@torch.no_grad()
def sketch_of(local: torch.Tensor, places: Places) -> Sketch:
    """The sketch of a tensor, or of this rank's piece of one.

    Args:
        local: the elements that this rank has, not changed.
        places: which elements of the whole tensor they are.
    """
    flat = _flat(local)
    if places.elements <= MOST_SUMS:
        return Sketch(_elements(flat, places), places.elements)
    sums = torch.zeros(MOST_SUMS, dtype=torch.float64, device="cpu")
    if places.start is None:
        _add_scattered(sums, flat, places)
    else:
        _add_range(sums, flat, places.start)
    return Sketch(sums.numpy(), places.elements)


def _flat(local: torch.Tensor) -> torch.Tensor:
    """The elements in a row; without a copy where they lie in a row, in the CPU's memory."""
    flat = local.detach()
    if flat.layout != torch.strided:
        flat = flat.to_dense()
    if flat.is_complex():
        flat = torch.view_as_real(flat.resolve_conj())
    return flat.reshape(-1)


def _elements(flat: torch.Tensor, places: Places) -> np.ndarray:
    values = flat.to("cpu", torch.float64).numpy()
    sums = np.zeros(places.elements)
    if places.start is None:
        sums[places.positions(0, flat.numel()).numpy()] = values
    else:
        sums[places.start : places.start + len(values)] = values
    return sums


def _add_range(sums: torch.Tensor, flat: torch.Tensor, start: int) -> None:
    """Add elements that follow each other in the whole tensor, from position `start`."""
    buffer = torch.zeros(BLOCK, dtype=torch.float64, device="cpu")
    first = 0
    while first < flat.numel():
        block, offset = divmod(start + first, BLOCK)
        last = min(flat.numel(), first + BLOCK - offset)
        end = offset + last - first
        buffer[:offset] = 0
        buffer[end:] = 0
        signs = signs_of_block(block)[offset:end]
        torch.mul(flat[first:last].to("cpu"), signs, out=buffer[offset:end])
        sums += buffer.view(-1, MOST_SUMS).sum(0)
        first = last


def _add_scattered(sums: torch.Tensor, flat: torch.Tensor, places: Places) -> None:
    """Add elements from anywhere in the whole tensor."""
    for first in range(0, flat.numel(), BLOCK):
        values = flat[first : first + BLOCK].to("cpu", torch.float64)
        positions = places.positions(first, first + len(values))
        sums.index_add_(0, positions % MOST_SUMS, values * signs_at(positions))
