"""What the notebook calls on a rank of a simulated cluster; the notebook's kernel imports it too, and has no torch.

What needs torch is imported inside of the functions, on the rank, where it is there already.
"""

from __future__ import annotations

from distlab.simulated.events import Result
from distlab.simulated.network import Network


def use(network: Network | None) -> None:
    """Before the group is built: be on these machines from now on, with the clock at 0; None for this one.

    Runs on: every rank.
    """
    from distlab.simulated import backend, notes

    notes.use(network)
    backend.register()


def begin_cell(number: int) -> None:
    """Note that a cell begins here, on all its ranks together. Runs on: every rank of the cell."""
    from distlab.simulated import notes

    notes.align((number, 0))


def settle(rank: int, world_size: int) -> Result | None:
    """Begin new notes; of the old ones, what happened, told by rank 0. Runs on: every rank."""
    from distlab.simulated import notes

    result = notes.settle()
    return result if rank == 0 else None


def clock(rank: int, world_size: int) -> float:
    """Virtual seconds of this rank since the group was built. Runs on: every rank."""
    from distlab.simulated import notes

    return notes.settle().clocks[rank]
