"""Words and lines for a person: lists of ranks, and texts broken to the width of a page.

Runs anywhere, called wherever a message or a report is written.
"""

import textwrap
from collections.abc import Collection, Iterable
from typing import TypeVar

# of a terminal, and of what is saved: a notebook breaks longer lines in the middle of a word
COLUMNS = 80

Key = TypeVar("Key")
Member = TypeVar("Member")


def rank_list(ranks: Collection[int]) -> str:
    """Name ranks in words, with runs folded: "rank 2", "ranks 0-3", "ranks 0, 2 and 5-7"."""
    if not ranks:
        return "no ranks"
    ordered = sorted(set(ranks))
    # within a run, a rank and its place in the list rise together
    runs = grouped((rank - place, rank) for place, rank in enumerate(ordered))
    words: list[str] = []
    for run in runs.values():
        # two ranks are folded only if no others are listed: "ranks 0-1", but "ranks 0, 1 and 5"
        if len(run) > 2 or (len(run) == 2 and len(runs) == 1):
            words.append(f"{run[0]}-{run[-1]}")
        else:
            words.extend(map(str, run))
    noun = "ranks" if len(ordered) > 1 else "rank"
    if len(words) == 1:
        return f"{noun} {words[0]}"
    return f"{noun} {', '.join(words[:-1])} and {words[-1]}"


def grouped(pairs: Iterable[tuple[Key, Member]]) -> dict[Key, list[Member]]:
    """Group (key, value) pairs: key -> values, in order of first appearance."""
    groups: dict[Key, list[Member]] = {}
    for key, member in pairs:
        groups.setdefault(key, []).append(member)
    return groups


def fitted(text: str) -> list[str]:
    """The lines of a text, each broken between words where it is longer than COLUMNS."""
    lines = []
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        following = " " * min(indent + 8, COLUMNS // 2) if indent else ""
        for part in _parts(line, indent, following):
            lines += textwrap.wrap(
                part,
                COLUMNS,
                subsequent_indent=following,
                break_long_words=False,
                break_on_hyphens=False,
            ) or [""]
    return lines


def _parts(line: str, indent: int, following: str) -> list[str]:
    """A line in the parts that are broken each by itself.

    A row of a table is indented, and its last column is a line of code after two spaces. Where the
    row is too long, the code moves as a whole to a line of its own.
    """
    row, _, code = line.rpartition("  ")
    if len(line) > COLUMNS and indent and row.strip():
        return [row.rstrip(), following + code]
    return [line]
