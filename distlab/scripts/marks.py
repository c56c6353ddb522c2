"""Marks before the lines of a program, which say which rank has written them.

Runs in the launcher's process, called by terminal.py.
"""

from __future__ import annotations

import os
import re

# colours of a terminal, which are told apart on black and on white, also by people who are
# colour-blind
COLOURS = (36, 33, 35, 32, 34, 31)
ERASE = b"\x1b[K"  # what a longer progress bar has left on the line
LINES = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n|$)")


class Marks:
    """Marks the lines of one stream.

    Args:
        wanted: whether each line is marked; None where lines are marked in a terminal, once a
            second rank has written.
        in_terminal: whether the stream leads to a terminal.

    Attributes:
        in_terminal: as given.
        is_at_begin_of_line: whether nothing stands on the line that is written next.
    """

    def __init__(self, wanted: bool | None, in_terminal: bool):
        self.in_terminal = in_terminal
        self.is_at_begin_of_line = True
        self._wanted = wanted
        self._seen: set[int] = set()  # the ranks that have written
        self._last = -1  # the one that wrote last
        self._over_bar = False  # whether a progress bar stands on the line
        self._has_colours = in_terminal and not os.environ.get("NO_COLOR")

    def marked(self, rank: int, text: bytes) -> bytes:
        """What to show for a text of a rank, which is not empty."""
        self._seen.add(rank)
        before = b""
        keeps_apart = self.in_terminal or bool(self._wanted)
        if keeps_apart and rank != self._last and not self.is_at_begin_of_line:
            before = b"\n"
            self.is_at_begin_of_line = True
        self._last = rank
        if self._marks_now():
            text = self._with_marks(rank, text)
        self.is_at_begin_of_line = text.endswith((b"\n", b"\r"))
        return before + text

    def _marks_now(self) -> bool:
        if self._wanted is not None:
            return self._wanted
        return self.in_terminal and len(self._seen) > 1

    def _with_marks(self, rank: int, text: bytes) -> bytes:
        mark = self._mark_of(rank)
        parts = []
        begins = self.is_at_begin_of_line
        for line in LINES.findall(text):
            if begins and line not in (b"", b"\r"):
                parts.append(mark)
                if self._over_bar and not line.endswith(b"\r"):
                    parts.append(ERASE)
            parts.append(line)
            begins = line.endswith((b"\n", b"\r"))
            if line:
                self._over_bar = self.in_terminal and line.endswith(b"\r")
        return b"".join(parts)

    def _mark_of(self, rank: int) -> bytes:
        words = f"[{rank}] "
        if self._has_colours:
            words = f"\x1b[{COLOURS[rank % len(COLOURS)]}m[{rank}]\x1b[0m "
        return words.encode()
