"""Words and lines for a person: lists of ranks, and texts broken to the width of a page.

Runs anywhere, called wherever a message or a report is written.
"""

import re
import textwrap
from collections.abc import Collection, Iterable
from typing import TypeVar

# of a terminal, and of what is saved: a notebook breaks longer lines in the middle of a word
COLUMNS = 80

# runs of ranks that are named in one list, and how many of longer lists
MOST_RUNS = 20
SHOWN_RUNS = 8

GAP = re.compile(r"\s{2,}")  # between two columns of a table
# where a rank is, as a column of a table: "line 3", "train.py:3 in step"
POSITION = re.compile(r"(line |[^()]*:)\d+( in \S+)?")

Key = TypeVar("Key")
Member = TypeVar("Member")


def rank_list(ranks: Collection[int]) -> str:
    """Name ranks in words, with runs folded: "rank 2", "ranks 0-3", "ranks 0, 2 and 5-7"."""
    if not ranks:
        return "no ranks"
    runs = _consecutive(ranks)
    words: list[str] = []
    left_out = 0
    if len(runs) > MOST_RUNS:
        left_out = sum(map(len, runs[SHOWN_RUNS:]))
        runs = runs[:SHOWN_RUNS]
    for run in runs:
        # two ranks are folded only if no others are listed: "ranks 0-1", but "ranks 0, 1 and 5"
        if len(run) > 2 or (len(run) == 2 and len(runs) == 1):
            words.append(f"{run[0]}-{run[-1]}")
        else:
            words.extend(map(str, run))
    noun = "ranks" if len(set(ranks)) > 1 else "rank"
    if left_out:
        words.append(f"{left_out} more")
    *others, last = words
    if not others:
        return f"{noun} {last}"
    return f"{noun} {', '.join(others)} and {last}"


def _consecutive(ranks: Iterable[int]) -> list[list[int]]:
    """The ranks in order, in lists of those that follow each other without a gap."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return runs


def ranks_and_verb(ranks: Collection[int], one: str, several: str) -> str:
    """Ranks with the verb of their number: "rank 2 has", "ranks 0-1 have"."""
    verb = several if len(ranks) > 1 else one
    return f"{rank_list(ranks)} {verb}"


def grouped(pairs: Iterable[tuple[Key, Member]]) -> dict[Key, list[Member]]:
    """Group (key, value) pairs: key -> values, in order of first appearance."""
    groups: dict[Key, list[Member]] = {}
    for key, member in pairs:
        groups.setdefault(key, []).append(member)
    return groups


def fitted(text: str) -> list[str]:
    """The lines of a text, each broken between words where it is longer than COLUMNS.

    A row of a table is indented, and its last column may be code. Where the row is too long, the
    code moves to a line of its own, and so does its comment if that line would still be too long.
    """
    lines = []
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        rest_indent = ""
        if indent:
            rest_indent = " " * min(indent + 8, COLUMNS // 2)
        parts = [line]
        if indent and len(line) > COLUMNS:
            row, code = columns_and_code(line)
            if code:
                parts = [row.rstrip()]
                for part in _code_and_comment(code, COLUMNS - len(rest_indent)):
                    parts.append(rest_indent + part)
        for part in parts:
            lines += _broken(part, rest_indent)
    return lines


def _code_and_comment(code: str, width: int) -> list[str]:
    """A line of code as it is where it fits; else its code and its comment, if it has one."""
    gap = code.find("  #")
    if len(code) <= width or gap <= 0:
        return [code]
    return [code[:gap], code[gap:].lstrip()]


def _broken(line: str, rest_indent: str) -> list[str]:
    """A line, broken between words; an empty one stays a line."""
    broken = textwrap.wrap(
        line,
        COLUMNS,
        subsequent_indent=rest_indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return broken or [""]


def columns_and_code(row: str) -> tuple[str, str]:
    """A row of a table in two parts: its columns with the gap behind them, and its code.

    The code stands right of the column that says in which line a rank is. It may have gaps of its
    own, as before a comment. In a row without such a column it is the last one.

    Returns:
        The two parts, which make the row again; the code is "" if the row has only one column.
    """
    indent = len(row) - len(row.lstrip())
    gaps = list(GAP.finditer(row, indent))
    begin = indent
    for gap in gaps:
        if POSITION.fullmatch(row, begin, gap.start()):
            return row[: gap.end()], row[gap.end() :]
        begin = gap.end()
    if not gaps or POSITION.fullmatch(row, begin):
        return row, ""
    return row[:begin], row[begin:]
