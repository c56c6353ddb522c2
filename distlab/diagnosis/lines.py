"""Lines of source in reports: their text, where they are, and the ranks beside them.

Lines of files are read. Runs on the notebook's kernel, called by readable.py, failures.py,
deaths.py, report.py and marks.py beside it; `where` also runs on ranks, called by rpc_calls.py.
"""

import linecache
from collections.abc import Sequence
from dataclasses import replace

from distlab.wire.source import Line
from distlab.words import rank_list

MOST_LINES = 10  # of one rank's traceback


def with_text(line: Line) -> Line:
    """A line that a rank has reported, with its text, which the rank may not have."""
    text = line.text or linecache.getline(line.file, line.number).strip()
    return replace(line, text=text)


def where(ranks: Sequence[int], lines: Sequence[Line]) -> str:
    """The learner's lines, outermost first, with the ranks beside the first one.

    A line that is in no cell has the name of its file.
    """
    label = rank_list(ranks)
    rows = []
    for line in lines:
        rows.append(f"  {label}   {position_words(line)}   {line.text}".rstrip())
        label = " " * len(label)  # beside the first line only
    if len(rows) > MOST_LINES:  # a recursion
        half = MOST_LINES // 2
        gap = f"  {label}   ... {len(rows) - MOST_LINES} more calls ..."
        rows = [*rows[:half], gap, *rows[-half:]]
    return "\n".join(rows)


def position_words(line: Line) -> str:
    """Where a line is, and in which function: "line 3 in step", "train.py:3"."""
    if not line.function:
        return line.position
    return f"{line.position} in {line.function}"
