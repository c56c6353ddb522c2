"""What the ranks of a program write, copied to this process's stdout and stderr as it comes.

Runs in the launcher's process, on a thread of its own; running.py makes one. The lines of two ranks
never mix.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from distlab.scripts.marks import Marks
from distlab.scripts.streams import NAMES, STDERR, STDOUT, Streams

READ_BYTES = 1 << 20
PIPE_BYTES = 1 << 20  # which a rank can write before it has to wait for this process
LONGEST_LINE = 1 << 20  # of a longer one, what has come is copied: it may be no text at all
# between two looks: one look for many lines costs the ranks less of their time than one for each
PAUSE = 0.005
# after which the beginning of a line is shown in a terminal, as of a question to a person
UNFINISHED = 0.2
LAST_BYTES = 4096  # of a stream, for a report on the end of its rank
LAST_LINES = 1.0  # for what is left at the end: a process that outlives its rank may write on


@dataclass
class _Pipe:
    """One stream of one rank.

    Attributes:
        rank: the rank.
        stream: STDOUT or STDERR.
        path: where the rank opens it.
        file: descriptor of the file that gets it, too; None for none.
        rest: the beginning of a line whose end has not come.
        last: the end of what was copied.
        since: when the beginning came.
    """

    rank: int
    stream: int
    path: str
    file: int | None
    rest: bytes = b""
    last: bytes = b""
    since: float = 0.0


class Terminal:
    """Two pipes for each rank, and the thread that copies them.

    Args:
        ranks: how many ranks there are.
        streams: where what they write goes.
        when_closed: called once if nobody reads any more what this process writes; on the thread.

    Attributes:
        paths: of the pipes of each rank, for its stdout and its stderr.
    """

    def __init__(
        self, ranks: int, streams: Streams, when_closed: Callable[[], None] = lambda: None
    ):
        self._streams = streams
        self._when_closed = when_closed
        self._is_closed = False
        self._folder = ""  # of named pipes, where the system needs them
        self._selector = selectors.DefaultSelector()
        self._ends: list[int] = []  # descriptors to close at the end
        self._marks = {stream: Marks(streams.prefix, os.isatty(stream)) for stream in NAMES}
        self._ending = threading.Event()
        self._copied = threading.Condition()
        self._until = 0.0
        self._looks = 0
        paths = []
        for rank in range(ranks):
            paths.append((self._add(rank, STDOUT), self._add(rank, STDERR)))
        self.paths = tuple(paths)
        self._thread = threading.Thread(target=self._copy, name="distlab-terminal", daemon=True)
        self._thread.start()

    def _add(self, rank: int, stream: int) -> str:
        """Make the pipe for a stream of a rank, and return its path."""
        path, reader = self._make_pipe(f"{rank}.{NAMES[stream]}")
        file = None
        name = self._streams.file_of(rank, stream)
        if name:
            in_folder = os.path.join(self._streams.folder or ".", name)
            os.makedirs(os.path.dirname(in_folder), exist_ok=True)
            file = os.open(in_folder, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            self._ends.append(file)
        pipe = _Pipe(rank, stream, path, file)
        self._selector.register(reader, selectors.EVENT_READ, pipe)
        return path

    def _make_pipe(self, name: str) -> tuple[str, int]:
        """A pipe: the path at which a rank opens it, and the descriptor from which it is read.

        On Linux it needs no file, so that none is left if this process is killed.
        """
        if sys.platform == "linux":
            reader, writer = os.pipe()
            os.set_blocking(reader, False)
            self._ends += [reader, writer]
            _enlarge(reader)
            return f"/proc/{os.getpid()}/fd/{writer}", reader
        self._folder = self._folder or tempfile.mkdtemp(prefix="distlab-run-")
        path = os.path.join(self._folder, name)
        os.mkfifo(path, 0o600)
        # also open for writing, so that it never seems to have ended
        reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._ends.append(reader)
        return path, reader

    # --- the thread ---

    def _copy(self) -> None:
        """Copy lines until the end is asked for and nothing is left."""
        while True:
            is_ending = self._ending.is_set()
            ready = self._selector.select(0.0 if is_ending else UNFINISHED)
            for key, _ in ready:
                with contextlib.suppress(BlockingIOError):
                    self._take(key.data, os.read(key.fd, READ_BYTES))
            if is_ending and (not ready or time.monotonic() > self._until):
                break
            self._show_unfinished()
            with self._copied:
                self._looks += 1
                self._copied.notify_all()
            if ready and not is_ending:
                time.sleep(PAUSE)
        for key in self._selector.get_map().values():
            self._write(key.data, key.data.rest)

    def _take(self, pipe: _Pipe, arrived: bytes) -> None:
        """Copy whole lines; a progress bar ends its lines with a carriage return."""
        end = max(arrived.rfind(b"\n"), arrived.rfind(b"\r")) + 1
        if not end and len(pipe.rest) < LONGEST_LINE:
            pipe.rest += arrived
            pipe.since = time.monotonic()
            return
        end = end or len(arrived)
        text = pipe.rest + arrived[:end]
        pipe.rest = arrived[end:]
        pipe.since = time.monotonic()
        self._write(pipe, text)

    def _show_unfinished(self) -> None:
        """Show beginnings of lines in a terminal that nothing has followed for a while."""
        late = time.monotonic() - UNFINISHED
        for key in self._selector.get_map().values():
            pipe = key.data
            if pipe.rest and pipe.since < late and self._marks[pipe.stream].in_terminal:
                rest = pipe.rest
                pipe.rest = b""
                self._write(pipe, rest)

    def _write(self, pipe: _Pipe, text: bytes) -> None:
        if not text:
            return
        pipe.last = (pipe.last + text[-LAST_BYTES:])[-LAST_BYTES:]
        if pipe.file is not None:
            _write_all(pipe.file, text)
        if self._is_closed or not self._streams.is_shown(pipe.rank, pipe.stream):
            return
        try:
            _write_all(pipe.stream, self._marks[pipe.stream].marked(pipe.rank, text))
        except OSError:  # nobody reads it any more: `distlab run ... | head`
            self._is_closed = True
            self._when_closed()

    # --- the main thread ---

    def settle(self) -> None:
        """Return when what ranks have written so far is copied, or after a second."""
        with self._copied:
            until = self._looks + 2
            self._copied.wait_for(lambda: self._looks >= until, timeout=1.0)

    def end(self) -> None:
        """Copy what is left, and remove the pipes."""
        self._until = time.monotonic() + LAST_LINES
        self._ending.set()
        self._thread.join()
        self._selector.close()
        for descriptor in self._ends:
            os.close(descriptor)
        self._ends.clear()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def last_of(self, rank: int) -> str:
        """The end of what a rank has written on stderr."""
        for key in list(self._selector.get_map().values()):
            pipe = key.data
            if (pipe.rank, pipe.stream) == (rank, STDERR):
                return str((pipe.last + pipe.rest).decode(errors="replace"))
        return ""

    @property
    def is_at_begin_of_line(self) -> bool:
        """Whether what has been shown so far ends with a whole line."""
        return all(marks.is_at_begin_of_line for marks in self._marks.values())


def _enlarge(pipe: int) -> None:
    """Let a pipe take more at once, where the system allows it."""
    import fcntl

    with contextlib.suppress(OSError, AttributeError):  # Python 3.10 has the name
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def _write_all(descriptor: int, text: bytes) -> None:
    """Write to a descriptor, however little it takes at once."""
    left = memoryview(text)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:  # a terminal that another program has made so
            time.sleep(PAUSE)
