"""A cluster you do not have: programs run on real ranks, and virtual clocks measure their time.

network.py describes links, hosts and devices. backend.py is the process group that notes what each
rank does (notes.py, events.py), with the bytes of its calls from sizes.py. From these notes
simulation.py finds what happened (results.py), with the steps of collectives from collectives.py
and schedules.py. The model is written down in simulation.py.

The functions here are those that the notebook calls on a rank. Its kernel imports them too, before
it starts ranks, so what they need is imported inside of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distlab.simulated.network import Network
    from distlab.simulated.results import Result


def use_network(network: Network | None) -> None:
    """Put this rank on simulated machines, with its clock at 0.

    Runs on: every rank, before its group is built.

    Args:
        network: of the machines; None for the machine that the rank really runs on.
    """
    from distlab.simulated import backend, notes

    notes.use(network)
    backend.register()


def begin_cell(number: int) -> None:
    """Note that a cell begins here, on all its ranks together.

    Runs on: every rank of the cell.

    Args:
        number: of the cell; it rises from cell to cell.
    """
    from distlab.simulated import notes

    notes.align((number, 0))


def settle_notes(rank: int, world_size: int) -> Result | None:
    """Begin new notes, and return the result of the old ones on rank 0. Runs on: every rank."""
    from distlab.simulated import notes

    result = notes.settle()
    if rank == 0:
        return result
    return None  # what happened is known on rank 0 only


def clock(rank: int, world_size: int) -> float:
    """Return the virtual seconds of this rank since the group was built. Runs on: every rank."""
    from distlab.simulated import notes

    return notes.settle().clocks[rank]
