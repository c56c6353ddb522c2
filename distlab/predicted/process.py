"""The process that records programs: started by the first prediction, it waits for the next ones with torch imported.

Runs on the notebook's kernel; what it starts is recorder.py.
"""

import os
import pickle
import subprocess
import tempfile
from collections.abc import Sequence

from distlab.errors import ClusterError
from distlab.launch import fork_server
from distlab.predicted.nodes import Asked, Outcomes, Run


class Recorder:
    """One for all predictions of a notebook; it ends with the notebook, and after five idle minutes."""

    def __init__(self) -> None:
        self._process: subprocess.Popen | None = None

    def record(self, runs: Sequence[Run]) -> list[Outcomes]:
        """What the ranks of these runs note."""
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # the program finds a CPU everywhere
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self._start(environment)
        try:
            pickle.dump(Asked(environment, os.getcwd(), runs), self._process.stdin)
            self._process.stdin.flush()
            return pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            code = self._process.wait()
            self._errors.seek(0)
            words = self._errors.read().decode(errors="replace")[-2000:]
            raise ClusterError(f"The program's process ended ({code}):\n{words}") from error
        except BaseException:
            self.stop()
            raise

    def _start(self, environment: dict[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process lives
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        self._process = subprocess.Popen(fork_server.command("distlab.predicted.recorder"), env=environment, **pipes)

    def stop(self) -> None:
        """End it, with what it records."""
        process, self._process = self._process, None
        if process is not None:
            with process:
                process.kill()


RECORDER = Recorder()
