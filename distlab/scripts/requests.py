"""Signals that ask the launcher to end: they are handed on to the ranks, which may save.

Runs in the launcher's process, made by run.py. Ctrl-C is Python's KeyboardInterrupt, as everywhere.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from types import FrameType


class Requests:
    """What this process was asked for by signals.

    Attributes:
        number: of the first signal that came; 0 for none.
        is_heeded: whether somebody looks at `number` all the time. Before and after that a signal
            interrupts this process, as Ctrl-C does.
    """

    def __init__(self) -> None:
        self.number = 0
        self.is_heeded = False

    def listen(self, numbers: Iterable[int]) -> None:
        """Take these signals from now on, but for those that are ignored, as under nohup."""
        for number in numbers:
            ignored = signal.getsignal(number) in (signal.SIG_IGN, None)
            if number != signal.SIGINT and not ignored:
                signal.signal(number, self._take)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
        if not self.is_heeded:
            os.kill(os.getpid(), signal.SIGINT)

    def nobody_reads(self) -> None:
        """Take it as SIGPIPE that what this process writes is read no more. Runs on: any thread."""
        self.number = self.number or signal.SIGPIPE
