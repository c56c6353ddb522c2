"""How often the models of a rank have begun a forward or a backward pass in a cell.

Runs on every rank: cpp.py counts, status.py reports. A rank that skips a backward pass leaves
DDP's all-reduces of the other ranks waiting, and only these numbers show it.
"""

from dataclasses import dataclass


@dataclass
class Passes:
    """What a rank has begun of the training of its models in one cell.

    Attributes:
        forward: passes of DDP in training.
        averaging: those of them that are outside of no_sync(), so that their backward pass averages
            gradients.
        backward: passes of any model.
    """

    forward: int = 0
    averaging: int = 0
    backward: int = 0


class PassCounter:
    """Counts the passes of the newest cell that had any. Cells are given by their number."""

    def __init__(self) -> None:
        self._passes = Passes()
        self._cell = 0

    def count_forward(self, cell: int, averages: bool) -> None:
        """Note that a forward pass of DDP in training begins.

        Args:
            averages: whether its backward pass averages gradients.
        """
        self._begin(cell)
        self._passes.forward += 1
        if averages:
            self._passes.averaging += 1

    def count_backward(self, cell: int) -> None:
        """Note that a backward pass begins."""
        self._begin(cell)
        self._passes.backward += 1

    def _begin(self, cell: int) -> None:
        """Count from 0 where the passes that were counted are those of an earlier cell."""
        if self._cell != cell:
            self._cell = cell
            self._passes = Passes()

    def count_with_last_cell(self, cell: int) -> None:
        """Note that this cell belongs to the one before it, as a call that restores a rank does."""
        if self._cell == cell - 1:
            self._cell = cell

    def of_cell(self, cell: int) -> Passes:
        """The passes of this cell, which is the newest one or the one before it."""
        if self._cell != cell:
            return Passes()
        return self._passes
