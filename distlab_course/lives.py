"""Lab 08: when the ranks that torchrun starts begin and end, while a `%%bash` cell runs.

A thread of the notebook's kernel looks at the processes below the kernel many times a second.
"""

import contextlib
import threading
import time
from pathlib import Path
from typing import NamedTuple

import psutil

LOOK_SECONDS = 0.03  # from one look to the next


class Life(NamedTuple):
    """A process: its rank, or None for torchrun itself, and when it was there, in seconds."""

    rank: int | None
    begin: float
    end: float


class Lives:
    """Watches processes until `stop` is called.

    Runs on: the notebook's kernel.

    Attributes:
        lines: (time, line) of what has appeared in the file.

    Args:
        file: to which the ranks' output goes; when a line appears in it is noted as well.
    """

    def __init__(self, file: str | Path):
        self._file = Path(file).resolve()
        self._lives: dict[int, Life] = {}  # by number of the process
        self.lines: list[tuple[float, str]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def seen(self) -> list[Life]:
        """The lives so far, in the order of their begin."""
        return sorted(self._lives.values(), key=lambda life: life.begin)

    def stop(self) -> tuple[list[Life], list[tuple[float, str]]]:
        """Stop watching; the lives in the order of their begin, and (time, line) of the output."""
        self._stopped.set()
        self._thread.join()
        return self.seen(), self.lines

    def _watch(self) -> None:
        """Look again and again."""
        while not self._stopped.wait(LOOK_SECONDS):
            for process in psutil.Process().children(recursive=True):
                # it may end at any moment
                with contextlib.suppress(psutil.Error, OSError):
                    self._look_at(process)
            self._look_at_file()

    def _look_at(self, process: psutil.Process) -> None:
        """Note that a process is there, if it is a rank or torchrun."""
        now = time.time()  # the system's own note of a begin is on another clock
        known = self._lives.get(process.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return
        if known is None:
            command = " ".join(process.cmdline())
            number = process.environ().get("RANK")
            if number is None and "torchrun" not in command:
                return
            known = Life(None if number is None else int(number), now, now)
        self._lives[process.pid] = known._replace(end=now)

    def _look_at_file(self) -> None:
        """Note the lines that are new in the file."""
        with contextlib.suppress(OSError):
            lines = self._file.read_text().splitlines()
            if len(lines) < len(self.lines):  # the file of an earlier run, which is written anew
                self.lines.clear()
            for line in lines[len(self.lines) :]:
                self.lines.append((time.time(), line))
