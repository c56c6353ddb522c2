"""The process that runs recordings.py, for all predictions of a notebook or a script.

Called by predict.py, on the notebook's kernel; rank_children.py reads last words with it, too.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import IO

from distlab import programs
from distlab.compat.ipython import notebook_shell
from distlab.errors import ClusterError
from distlab.wire.faults import CLUSTER_VARIABLE
from distlab_predict import garbage
from distlab_predict.nodes import Outcome, Outcomes, Run

LAST_CHARACTERS = 2000  # of what the process has written, shown when it is gone
PROGRAM = "distlab_predict.recordings"  # the module that the process runs
IMPORTING = {"importlib", "_frozen_importlib", "distlab", "distlab_predict"}  # packages


class RecordingProcess:
    """The process that records, as long as it is needed.

    A notebook or a script that imports `predict` starts it, or the first prediction does. It waits
    for the next ones with torch imported. It ends with them, and after five idle minutes; the next
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
            return _received(running.connection)
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


def is_asked_soon() -> bool:
    """Whether the module that is being imported belongs to a process that will want predictions.

    A notebook's kernel does, and so does a script that imports it itself, also at a prompt. While
    it imports its own torch, the recording process does the same on another core. The module of a
    library may import it for something else, and nobody asks a rank, nor the program that is
    recorded.
    """
    if CLUSTER_VARIABLE in os.environ or "RANK" in os.environ or PROGRAM in sys.modules:
        return False
    return notebook_shell() is not None or _imported_by() == "__main__"


def _imported_by() -> str:
    """The name of the module that imports one of distlab's now."""
    frame = sys._getframe()
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__"))
        package, *_ = name.split(".")
        if package not in IMPORTING:
            return name
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


@dataclass(frozen=True)
class Running:
    """A process that has been started.

    Attributes:
        process: itself.
        connection: takes lists of runs, and gives each outcome as soon as it is known. At last it
            gives, by run, the places of its own.
        written: what it has written to its stdout and stderr.
    """

    process: subprocess.Popen[bytes]
    connection: Connection
    written: IO[bytes]

    def end_in_words(self) -> str:
        """How the process ended, and the last that it wrote."""
        code = self.process.wait()
        return f"The program's process ended ({code}):\n{last_words(self.written)}"


def _received(connection: Connection) -> list[Outcomes]:
    """The outcomes of each run; they are unpickled while others are still recorded."""
    received: list[Outcome] = []
    while True:
        connection.poll(None)  # other threads' garbage is looked for meanwhile
        with garbage.left_alone():
            message = connection.recv()
        if isinstance(message, list):
            return [[received[index] for index in own] for own in message]
        received.append(message)


def last_words(written: IO[bytes]) -> str:
    """The end of what a process has written to a file, as a text."""
    written.seek(0)
    text = written.read().decode(errors="replace")
    return text[-LAST_CHARACTERS:]


def start() -> Running:
    """Start a process that waits for runs."""
    written = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process lives
    connection, its_end = Pipe()
    command = programs.command(PROGRAM)
    process = subprocess.Popen(
        [*command, str(its_end.fileno()), str(os.getpid())],
        pass_fds=[its_end.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=written,
        stderr=written,
    )
    its_end.close()
    return Running(process, connection, written)
