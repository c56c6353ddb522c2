"""The process that runs rank_children.py, for all predictions of a notebook.

Called by predict.py, on the notebook's kernel; rank_children.py reads last words with it, too.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import IO

from distlab import programs
from distlab.errors import ClusterError
from distlab_predict import garbage
from distlab_predict.nodes import Outcomes, Run

LAST_CHARACTERS = 2000  # of what the process has written, shown when it is gone


class RecordingProcess:
    """The process that records, as long as it is needed.

    A notebook that imports `predict` starts it, or the first prediction does. It waits for the next
    ones with torch imported. It ends with the notebook, and after five idle minutes; the next
    prediction then starts another one.
    """

    def __init__(self) -> None:
        self._running: Running | None = None

    def record(self, runs: Sequence[Run]) -> list[Outcomes]:
        """What the ranks of these runs note.

        Raises:
            ClusterError: the process ended before it had sent that.
        """
        running = self._started()
        try:
            running.connection.send(runs)
            running.connection.poll(None)  # other threads' garbage is looked for meanwhile
            with garbage.left_alone():
                return running.connection.recv()
        except (EOFError, OSError) as error:
            raise ClusterError(running.end_in_words()) from error
        except BaseException:
            self.stop()
            raise

    def begin(self) -> None:
        """Start the process, if there is none, while nobody waits for it.

        Where the system has no room for it, the first prediction says so.
        """
        with contextlib.suppress(OSError):
            self._started()

    def _started(self) -> Running:
        """The process that runs; it is started, if there is none any more."""
        if self._running is None or self._running.process.poll() is not None:
            self.stop()
            self._running = start()
        return self._running

    def stop(self) -> None:
        """End the process, if there is one, with what it records."""
        running = self._running
        self._running = None
        if running is not None:
            with running.process:
                running.process.kill()


@dataclass(frozen=True)
class Running:
    """A process that has been started.

    Attributes:
        process: itself.
        connection: takes lists of runs, and gives their outcomes.
        written: what it has written to its stdout and stderr.
    """

    process: subprocess.Popen[bytes]
    connection: Connection
    written: IO[bytes]

    def end_in_words(self) -> str:
        """How the process ended, and the last that it wrote."""
        code = self.process.wait()
        return f"The program's process ended ({code}):\n{last_words(self.written)}"


def last_words(written: IO[bytes]) -> str:
    """The end of what a process has written to a file, as a text."""
    written.seek(0)
    text = written.read().decode(errors="replace")
    return text[-LAST_CHARACTERS:]


def start() -> Running:
    """Start a process that waits for runs."""
    written = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process lives
    connection, its_end = Pipe()
    command = programs.command("distlab_predict.rank_children")
    process = subprocess.Popen(
        [*command, str(its_end.fileno()), str(os.getpid())],
        pass_fds=[its_end.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=written,
        stderr=written,
    )
    its_end.close()
    return Running(process, connection, written)
