"""Parameters that FullyShardedDataParallel, the first FSDP, has put into flat ones.

Of a flat parameter each rank has a piece, which begins in the middle of one parameter and ends in
another one. Runs on every rank; called by state.py, called_modules.py and steps.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from distlab.comparison.records import SeenParameter, Sketch
from distlab.comparison.watching.places import Places
from distlab.comparison.watching.sketches import sketch_of


@dataclass(frozen=True, eq=False)
class FlatPart:
    """What this rank has of one parameter.

    Attributes:
        parameter: the one that an optimizer has: this piece, or a flat one that contains it.
        shape: of the whole parameter, as its module has it.
        first: the number in `parameter` of the first element.
        start: the position of that in the whole parameter.
        elements: how many there are.
    """

    parameter: torch.Tensor
    shape: tuple[int, ...]
    first: int
    start: int
    elements: int

    @property
    def places(self) -> Places:
        """In the whole parameter, in a row."""
        indices = range(self.start, self.start + self.elements)
        return Places((prod(self.shape),), (indices,))

    def seen(self) -> SeenParameter:
        """The parameter with the value that it has now."""
        value = self._sketch(self.parameter)
        return SeenParameter(self.shape, self.places.piece, value)

    def gradient(self) -> Sketch | None:
        """The sketch of its gradient; that of no element if this rank has none."""
        gradient = self.parameter.grad
        if gradient is not None:
            return self._sketch(gradient)
        if self.elements > 0:
            return None
        return self._sketch(torch.zeros(0, device="cpu"))

    def _sketch(self, tensor: torch.Tensor) -> Sketch:
        flat = tensor.detach().reshape(-1)
        own = flat[self.first : self.first + self.elements]
        if len(own) != self.elements:
            raise ValueError(f"{self.elements} elements of a flat parameter, got {len(own)}")
        return sketch_of(own, self.places)
