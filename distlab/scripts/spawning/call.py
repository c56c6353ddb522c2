"""One call of `distlab.spawn` on its ranks: waited for, ended where it cannot go on, and judged.

Runs in the process that calls it, called by spawn.py. It is what `distlab run` does for a program,
without a terminal and without signals of its own.
"""

from __future__ import annotations

from distlab.scripts.ending import Ending
from distlab.scripts.program_cell import ENDED, ProgramCell
from distlab.scripts.requests import Requests

GRACE = 5.0  # seconds between SIGTERM and the end of processes, when another one has failed


class SpawnedCall(ProgramCell):
    """A call that was sent to all ranks."""

    def begin(self) -> None:
        """Prepare to wait: nobody is told by signals to end it."""
        self._requests = Requests()
        self._ending = Ending(self._ranks, self._sent, GRACE)
        self._why = ENDED
        self._failed_first = []

    def _let_person_type(self) -> None:
        super(ProgramCell, self)._let_person_type()  # it has no terminal of its own
