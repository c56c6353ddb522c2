"""What the ranks of a program write, copied to this process's stdout and stderr as it comes.

Runs in the launcher's process, on a thread of its own; run.py makes one. The lines of two ranks
never mix.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import tempfile
import threading
from dataclasses import dataclass

from distlab.wire.program import pipe_of

READ_BYTES = 1 << 16
STREAMS = {"stdout": 1, "stderr": 2}  # the descriptor to which each is copied


@dataclass
class _Pipe:
    """One stream of one rank.

    Attributes:
        rank: the rank.
        target: the descriptor to which it is copied.
        rest: the beginning of a line whose end has not come.
    """

    rank: int
    target: int
    rest: bytes = b""


class Terminal:
    """Two named pipes for each rank, and the thread that copies them.

    Args:
        ranks: how many ranks there are.
        prefix: whether each line says which rank has written it.

    Attributes:
        folder: where the pipes are.
    """

    def __init__(self, ranks: int, prefix: bool):
        self.folder = tempfile.mkdtemp(prefix="distlab-run-")
        self._prefix = prefix
        self._selector = selectors.DefaultSelector()
        self._ending = threading.Event()
        for rank in range(ranks):
            for name, target in STREAMS.items():
                path = pipe_of(self.folder, rank, name)
                os.mkfifo(path, 0o600)
                # also open for writing, so that it never seems to have ended
                end = os.open(path, os.O_RDWR | os.O_NONBLOCK)
                self._selector.register(end, selectors.EVENT_READ, _Pipe(rank, target))
        self._thread = threading.Thread(target=self._copy, name="distlab-terminal", daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        """Copy lines until the end is asked for and nothing is left."""
        while True:
            ready = self._selector.select(0.05)
            if not ready and self._ending.is_set():
                break
            for key, _ in ready:
                with contextlib.suppress(BlockingIOError):
                    self._take(key.data, os.read(key.fd, READ_BYTES))
        for key in self._selector.get_map().values():
            if key.data.rest:
                self._write(key.data, key.data.rest)

    def _take(self, pipe: _Pipe, arrived: bytes) -> None:
        """Copy whole lines; a progress bar ends its lines with a carriage return."""
        text = pipe.rest + arrived
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        pipe.rest = text[end:]
        self._write(pipe, text[:end])

    def _write(self, pipe: _Pipe, text: bytes) -> None:
        if self._prefix:
            mark = f"[{pipe.rank}] ".encode()
            text = b"".join(mark + line for line in text.splitlines(keepends=True))
        while text:
            text = text[os.write(pipe.target, text) :]

    def end(self) -> None:
        """Copy what is left, and remove the pipes."""
        self._ending.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()
        shutil.rmtree(self.folder, ignore_errors=True)
