"""A program that is started for a cluster where no fork server starts it: a controller, mpiexec, an engine of its own.

Runs on the notebook's kernel, called by processes.py.
"""

import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

JOIN_SECONDS = 5.0


class Program(subprocess.Popen):
    """A program with additions to the environment, and a log of what it writes.

    Args:
        when_ended: called when it has ended. Runs on: a thread.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: str, when_ended: Callable[[], None]):
        self._log = Path(log)
        self._log.parent.mkdir(exist_ok=True)
        with self._log.open("wb") as output:
            ends = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            super().__init__(command, env={**os.environ, **environment}, start_new_session=True, **ends)
        self._thread = threading.Thread(target=lambda: (self.wait(), when_ended()), daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until its end has been reported."""
        self._thread.join(JOIN_SECONDS)

    def output(self) -> str:
        """What it has written."""
        return self._log.read_text(errors="replace")
