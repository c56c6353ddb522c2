"""What a program leaves while it is recorded: what it writes to its streams, and empty folders.

Called by rank_children.py, in the process of a rank that is recorded.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

LAST_LINES = 5  # of stderr, shown with an error
OVERWRITTEN = re.compile(r"[^\n]*\r(?!\n)")  # what a progress bar has written over


class _Copied(io.StringIO):
    """A text that is also written to this process's stderr, in case the process ends at once."""

    def write(self, text: str) -> int:
        print(text, end="", file=sys.__stderr__, flush=True)
        return super().write(text)


class Output:
    """The texts that a program has written to its two streams."""

    def __init__(self) -> None:
        self._stdout = io.StringIO()
        self._stderr = _Copied()

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Meanwhile what is written is kept here."""
        with contextlib.redirect_stdout(self._stdout), contextlib.redirect_stderr(self._stderr):
            yield

    @property
    def length(self) -> tuple[int, int]:
        """How much it has written to stdout, and to stderr."""
        return self._stdout.tell(), self._stderr.tell()

    @property
    def printed(self) -> str:
        """What it has written to stdout, of progress bars the last state."""
        return OVERWRITTEN.sub("", self._stdout.getvalue())

    @property
    def warned(self) -> str:
        """What it has written to stderr, likewise."""
        return OVERWRITTEN.sub("", self._stderr.getvalue())

    def last_words(self, of_stdout: bool) -> str:
        """The end of what it has written to stderr; or, if that is nothing, to stdout.

        Args:
            of_stdout: whether stdout counts.
        """
        words = self.warned.strip()
        if of_stdout and not words:
            words = self.printed.strip()
        return "\n".join(words.splitlines()[-LAST_LINES:])


@contextlib.contextmanager
def without_empty_folders() -> Iterator[None]:
    """Afterwards remove the folders that a program has made, if they are empty.

    Checkpoints are not written, and a program that found a folder without one would try to load it.
    """
    made: list[str] = []
    make = os.mkdir

    def noted(path: Any, *args: Any, **kwargs: Any) -> None:
        make(path, *args, **kwargs)
        made.append(os.path.abspath(path))

    os.mkdir = noted
    try:
        yield
    finally:
        os.mkdir = make
        for path in reversed(made):
            with contextlib.suppress(OSError):  # it is not empty
                os.rmdir(path)
