"""Words and lines for a person: lists of ranks, and texts broken to the width of a page. Runs
anywhere.
"""

import textwrap
from collections.abc import Iterable
from typing import Any

# of a terminal, and of what is saved: a notebook breaks longer lines in the middle of a word
COLUMNS = 80


def rank_list(ranks: list[int] | tuple[int, ...]) -> str:
    """Name ranks in words, runs folded: "rank 2", "ranks 0-3", "ranks 0, 2 and 5-7"; "no ranks"."""
    if not ranks:
        return "no ranks"
    ranks = sorted(set(ranks))
    # in a run both rise together
    runs = grouped((rank - place, rank) for place, rank in enumerate(ranks))
    spans = list(runs.values())
    words: list[str] = []
    for span in spans:
        fold = len(span) > 2 or (len(spans) == 1 and len(span) == 2)
        words.extend([f"{span[0]}-{span[-1]}"] if fold else map(str, span))
    joined = words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
    return f"rank{'s' if len(ranks) > 1 else ''} {joined}"


def grouped(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    """Group (key, value) pairs: key -> values, in order of first appearance."""
    groups: dict[Any, list[Any]] = {}
    for key, member in pairs:
        groups.setdefault(key, []).append(member)
    return groups


def fitted(text: str) -> list[str]:
    """The lines of a text, each broken between words where it is too long; a row of a table before
    its last column.
    """
    lines = []
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        following = " " * min(indent + 8, COLUMNS // 2) if indent else ""
        row, _, code = line.rpartition("  ")
        parts = (
            [row.rstrip(), following + code]
            if len(line) > COLUMNS and indent and row.strip()
            else [line]
        )
        for part in parts:
            options = {
                "break_long_words": False,
                "break_on_hyphens": False,
                "subsequent_indent": following,
            }
            lines += textwrap.wrap(part, COLUMNS, **options) or [""]
    return lines
