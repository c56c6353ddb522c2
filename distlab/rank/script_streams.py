"""stdin, stdout and stderr of a person's program on this rank, of Python and of compiled code.

Runs on every rank, called by program.py. stdout and stderr lead into pipes, which
scripts/terminal.py copies to the terminal.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from distlab.wire.program import Program

NAMES = ("stdin", "stdout", "stderr")  # by descriptor


@contextlib.contextmanager
def own_streams(rank: int, program: Program) -> Iterator[None]:
    """Have the three standard streams lead where the launcher has said, and put them back."""
    if not program.streams:
        yield
        return
    stdout, stderr = program.streams[rank]
    stdin = os.devnull
    if rank == 0 and program.stdin:
        stdin = program.stdin
    kept = [(os.dup(number), getattr(sys, name)) for number, name in enumerate(NAMES)]
    _open_as(0, stdin, os.O_RDONLY)
    _open_as(1, stdout, os.O_WRONLY)
    _open_as(2, stderr, os.O_WRONLY)
    for number, name in enumerate(NAMES):
        stream = _python_stream(number, kept[number][1])
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    try:
        yield
    finally:
        flush_all()
        for number, (descriptor, stream) in enumerate(kept):
            setattr(sys, NAMES[number], stream)
            setattr(sys, f"__{NAMES[number]}__", stream)
            os.dup2(descriptor, number)
            os.close(descriptor)


def _open_as(number: int, path: str, how: int) -> None:
    """Open a file under the number of a descriptor; nothing, if it cannot be opened."""
    try:
        opened = os.open(path, how | os.O_NOCTTY)
    except OSError:  # a socket, or what belongs to another user
        opened = os.open(os.devnull, how)
    os.dup2(opened, number)
    os.close(opened)


def _python_stream(number: int, before: Any) -> TextIO:
    """Python's stream of a descriptor, as Python makes it when it starts.

    A whole line is written at once, unlike with `python -u`, which writes its end by itself.

    Args:
        before: the stream in its place, which Python has made.
    """
    if number == 0:
        return open(0, closefd=False)
    errors = getattr(before, "errors", None) or ("backslashreplace" if number == 2 else "strict")
    encoding = getattr(before, "encoding", None)
    return open(number, "w", buffering=1, closefd=False, encoding=encoding, errors=errors)


def flush_all() -> None:
    """Write what Python and C still keep. A program may have put anything in Python's place."""
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        stream: Any = getattr(sys, name)
        with contextlib.suppress(Exception):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
