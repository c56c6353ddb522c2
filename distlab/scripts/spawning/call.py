"""One call of `distlab.spawn` on its ranks: waited for, ended where it cannot go on, and judged.

Runs in the process that calls it, called by spawn.py. It is what `distlab run` does for a program,
without a terminal and without signals of its own.
"""

from __future__ import annotations

from distlab.scripts.program_cell import ProgramCell
from distlab.scripts.requests import Requests

GRACE = 5.0  # seconds between SIGTERM and the end of processes, when another one has failed


class SpawnedCall(ProgramCell):
    """A call that was sent to all ranks."""

    def begin(self) -> None:
        """Prepare to wait. No signal is handled here, but for Ctrl-C."""
        self.attend(_Elsewhere(), Requests(), GRACE)


class _Elsewhere:
    """Where processes write that write to the caller's own descriptors."""

    def settle(self) -> None:
        """It is there already."""

    def last_of(self, rank: int) -> str:
        """Nobody knows."""
        return ""
