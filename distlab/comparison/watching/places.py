"""Which elements of a parameter this rank has: all of them, or a piece of a DTensor.

Nothing is communicated: the mesh and the placements say which indices a rank has. Runs on every
rank; called by seen_tensors.py, flat_parameters.py, sketches.py and
perturbing.py.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import prod

import torch

from distlab.comparison.records import Piece


@dataclass(frozen=True)
class Places:
    """Which elements of a tensor this rank has.

    Attributes:
        shape: of the whole tensor.
        along: for each dimension, the indices that this rank has: a range without gaps, or int64.
    """

    shape: tuple[int, ...]
    along: tuple[torch.Tensor | range, ...]

    @property
    def elements(self) -> int:
        """How many the whole tensor has."""
        return prod(self.shape)

    @property
    def own_elements(self) -> int:
        """How many this rank has."""
        return prod(len(indices) for indices in self.along)

    @functools.cached_property
    def piece(self) -> Piece:
        """The same for the record."""
        if self.own_elements == 0:
            return Piece(-1, -1, 0, self.elements)
        first = 0
        last = 0
        for indices, stride in zip(self.along, self._strides, strict=True):
            if isinstance(indices, range):
                first += indices.start * stride
                last += indices[-1] * stride
            else:
                first += int(indices.min()) * stride
                last += int(indices.max()) * stride
        return Piece(first, last, self.own_elements, self.elements)

    @functools.cached_property
    def start(self) -> int | None:
        """The position of the first element if all others follow it; otherwise None."""
        if self.own_elements == 0:
            return 0
        piece = self.piece
        if piece.last - piece.first + 1 != piece.elements:
            return None
        for indices in self.along:
            if isinstance(indices, torch.Tensor) and bool((indices.diff() != 1).any()):
                return None
        return piece.first

    def positions(self, first: int, last: int) -> torch.Tensor:
        """The positions in the whole tensor of this rank's elements number first to last - 1."""
        left = torch.arange(first, last, device="cpu")
        positions = torch.zeros_like(left)
        dimensions = list(zip(self.along, self._strides, strict=True))
        for indices, stride in reversed(dimensions):
            number = left % len(indices)
            if isinstance(indices, range):
                positions += (number + indices.start) * stride
            else:
                positions += indices[number] * stride
            left = left // len(indices)
        return positions

    def numbers_of(self, wanted: Places) -> tuple[torch.Tensor, ...] | None:
        """Where this rank has the indices of other places, along each dimension.

        None if it does not have all of them.
        """
        numbers = []
        for own, other in zip(self.along, wanted.along, strict=True):
            indices = torch.as_tensor(own, device="cpu")
            others = torch.as_tensor(other, device="cpu")
            if not bool(torch.isin(others, indices).all()):
                return None
            order = indices.argsort()
            numbers.append(order[torch.searchsorted(indices[order], others)])
        return tuple(numbers)

    @functools.cached_property
    def _strides(self) -> tuple[int, ...]:
        """How far apart neighbours along each dimension are, in row-major order."""
        return tuple(prod(self.shape[dimension + 1 :]) for dimension in range(len(self.shape)))


def whole(shape: tuple[int, ...]) -> Places:
    """The places of a tensor of which this rank has all elements."""
    return Places(shape, tuple(map(range, shape)))
