"""Names, numbers and worlds as a verdict writes them.

Runs where a comparison is judged, called by verdict.py and by the files of findings beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from distlab.wire.source import Line

MOST_NAMES = 3  # of parameters in a sentence
MOST_ROWS = 6  # numbers of rows in a sentence


def number(value: float, digits: int = 2) -> str:
    """A number with few digits: "4e-7", "0.25", "16"."""
    text = f"{value:.{digits}g}"
    if abs(value) >= 1 and abs(value) < 1e6:
        text = f"{float(text):.10g}"
    return re.sub(r"e([+-])0*(\d)", lambda found: f"e{found[1].strip('+')}{found[2]}", text)


def listed(words: Sequence[str]) -> str:
    """Several words as a list: "a", "a and b", "a, b and c"."""
    *others, last = words
    if not others:
        return last
    return f"{', '.join(others)} and {last}"


def name_list(names: Sequence[str]) -> str:
    """Names of parameters, the first few of them: "0.weight, 0.bias, 2.weight and 5 more"."""
    if len(names) <= MOST_NAMES + 1:
        return listed(names)
    return listed([*names[:MOST_NAMES], f"{len(names) - MOST_NAMES} more"])


def row_list(numbers: Sequence[int]) -> str:
    """Rows by number: "row 17", "rows 3, 4 and 9", "rows 0, 1, 2, 3, 4, 5 and 26 more"."""
    noun = "row" if len(numbers) == 1 else "rows"
    words = [str(one) for one in sorted(numbers)]
    if len(words) > MOST_ROWS + 1:
        words = [*words[:MOST_ROWS], f"{len(words) - MOST_ROWS} more"]
    return f"{noun} {listed(words)}"


def on_worlds(sizes: Sequence[int]) -> str:
    """Worlds by their sizes: "on 4 ranks", "on 2 and on 4 ranks"; "in one process" for 0 or 1."""
    several = [size for size in sorted(set(sizes)) if size > 1]
    words = []
    if len(several) < len(set(sizes)):
        words.append("in one process")
    for size in several:
        words.append(f"on {size}")
    if not several:
        return words[0]
    return f"{listed(words)} ranks"


def different(lines: Iterable[Line | None]) -> tuple[Line, ...]:
    """The lines that are known, each once."""
    found: list[Line] = []
    for line in lines:
        if line is not None and line not in found:
            found.append(line)
    return tuple(found)
