"""The end of ranks that do not end by themselves: freed, asked by a signal, and killed.

Runs in the launcher's process, called by program_cell.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence

from distlab.compat.ipyparallel import Replies
from distlab.notebook import interrupts, seconds
from distlab.notebook.ranks import Ranks
from distlab.wire import messages

STEP = 0.05  # between two looks at ranks that are to end


class Ending:
    """Ends the ranks of a program that still run.

    Args:
        ranks: of the cluster.
        sent: their replies.
        grace: seconds between the signal and the end of those that have not ended.
        meanwhile: called again and again while they end.

    Attributes:
        asked: the ranks that were sent the signal.
        killed: those that had to be killed.
    """

    def __init__(
        self,
        ranks: Ranks,
        sent: Replies,
        grace: float,
        meanwhile: Callable[[], None] = lambda: None,
    ):
        self.asked: set[int] = set()
        self.killed: set[int] = set()
        self._ranks = ranks
        self._sent = sent
        self._grace = grace
        self._meanwhile = meanwhile

    def end(self, number: int, after: float = 0.0, frees: str = messages.FREE) -> None:
        """Return when no rank runs any more; Ctrl-C meanwhile kills them at once.

        Args:
            number: of the signal that they are sent.
            after: seconds after which it is sent; until then, waits in communication are ended.
            frees: how these are ended.
        """
        with contextlib.suppress(KeyboardInterrupt):
            self._ask_to_end(number, after, frees)
        late = self._late()
        self.killed.update(late)
        if late:
            self._ranks.kill(late)
            self._sent.result.wait(seconds.LAST_FAILURE)

    def _ask_to_end(self, number: int, after: float, frees: str) -> None:
        began = time.monotonic()
        next_order = began
        while late := self._late():
            now = time.monotonic()
            if now >= next_order and not self.asked:
                self._ranks.free(late, frees)
                next_order = now + seconds.AGAIN
            if now >= began + after and not self.asked:
                self.asked.update(late)
                self._signal(late, number)
            if now >= began + after + self._grace:
                return
            self._meanwhile()
            with interrupts.allowed():
                self._sent.result.wait(STEP)

    def _signal(self, ranks: Sequence[int], number: int) -> None:
        """Send the processes of ranks a signal, and let those that are stopped see it."""
        for rank in ranks:
            pid = self._ranks.joined[rank].pid
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                os.kill(pid, signal.SIGCONT)

    def _late(self) -> list[int]:
        """The ranks that have neither replied nor died."""
        died = {*self._ranks.dead.lost, *self._ranks.dead.newly_dead()}
        return [rank for rank in self._sent.unfinished() if rank not in died]
