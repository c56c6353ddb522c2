"""A program that is started for a cluster where no fork server starts it: a controller, mpiexec, an engine of its own.

Runs on the notebook's kernel, called by processes.py.
"""

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

JOIN_SECONDS = 5.0


class Program(subprocess.Popen):
    """A program with additions to the environment, and a log of what it writes."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: str):
        self._log = Path(log)
        self._log.parent.mkdir(exist_ok=True)
        with self._log.open("wb") as output:
            ends = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            super().__init__(command, env={**os.environ, **environment}, start_new_session=True, **ends)

    def join(self) -> None:
        """Wait until it has ended, but not for ever."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(JOIN_SECONDS)

    def output(self) -> str:
        """What it has written."""
        return self._log.read_text(errors="replace")
