"""The source lines where the ranks are, with what they do there beside them, as text and as HTML.

No process is asked; lines of files are read. Runs on the notebook's kernel, called by display.py.
"""

import html
import linecache
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from distlab.diagnosis.lines import with_text
from distlab.diagnosis.report import rows
from distlab.wire.messages import RankStatus, States
from distlab.wire.source import Line
from distlab.words import grouped, rank_list

CONTEXT_LINES = 2  # of source around a line where a rank is
MOST_CALLS = 2  # beside a line, with their arguments
# the rest of a line of source stands right of the numbers
HANGING_INDENT = "padding-left:6ch;text-indent:-6ch"
STYLE = (
    "margin:4px 0;background:transparent;white-space:pre-wrap;word-break:normal;"
    "overflow-wrap:anywhere"
)
# of a line where ranks are, and of the others
COLOURED = "#d55e00;background:rgba(213,94,0,0.12)"
PLAIN_EDGE = "transparent"


class Mark(NamedTuple):
    """What some ranks do at a line of source.

    Attributes:
        ranks: the ranks.
        what: what they do, in words.
    """

    ranks: list[int]
    what: str


@dataclass(frozen=True)
class MarkedLine:
    """A line of source with what ranks do there.

    Attributes:
        number: its number, from 1; 0 for a gap.
        text: its text.
        marks: what ranks do there.
    """

    number: int
    text: str
    marks: list[Mark]

    @property
    def number_words(self) -> str:
        """Its number as text; "" for a gap."""
        if not self.number:
            return ""
        return str(self.number)


def marked_source(states: States, cell: str) -> list[MarkedLine]:
    """The source lines where the ranks are, with some around them; a gap has no number.

    Args:
        states: the statuses of ranks, by rank.
        cell: the text of the %%px cell, from the line with the magic; "" if the code is a function.
    """
    by_file = grouped((state.lines[-1].file, state) for state in states.values() if state.lines)
    marked: list[MarkedLine] = []
    for file in sorted(by_file):
        # a line of the cell has no file
        source = linecache.getlines(file) if file else cell.splitlines()
        marks_by_line = _marks(by_file[file], source, in_file=bool(file))
        shown = _numbers_to_show(marks_by_line, source)
        for number in shown:
            if marked and number - 1 not in shown:
                marked.append(MarkedLine(0, "...", []))
            text = source[number - 1].rstrip()
            marks = marks_by_line.get(number, [])
            marked.append(MarkedLine(number, text, marks))
    return marked


def _marks(
    states: Iterable[RankStatus], source: Sequence[str], in_file: bool
) -> dict[int, list[Mark]]:
    """What ranks do at each line of a source, by its number.

    Args:
        states: the statuses of ranks that are in this source.
        source: its lines.
        in_file: whether it is a file. In a cell, the innermost line may be of a function of another
            cell, so that an outer one counts.
    """
    by_line: dict[int, dict[int, RankStatus]] = {}
    for state in states:
        lines = state.lines[-1:] if in_file else state.lines
        number = _line_in(source, lines)
        if number is not None:
            by_line.setdefault(number, {})[state.rank] = state
    found = {}
    for number, there in by_line.items():
        found[number] = _marks_at_one_line(there)
    return found


def _marks_at_one_line(states: States) -> list[Mark]:
    """What ranks do that are at the same line: only the names of the calls where these are many."""
    there = rows(states)
    if len(there) <= MOST_CALLS:
        return [Mark(row.ranks, f"{row.what} {row.tensors}".rstrip()) for row in there]
    by_name: dict[str, list[int]] = {}
    for row in there:
        # the report has the arguments of each
        name, _, _ = row.what.partition("(")
        by_name.setdefault(f"{name} {row.tensors}".rstrip(), []).extend(row.ranks)
    return [Mark(sorted(ranks), what) for what, ranks in by_name.items()]


def _line_in(source: Sequence[str], lines: Sequence[Line]) -> int | None:
    """The number of the innermost line that is in this source, or None if none is.

    A line of a function from another cell is not: its text is another one.
    """
    for line in reversed(lines):
        shown = with_text(line)
        if not 1 <= shown.number <= len(source):
            continue
        text = source[shown.number - 1]
        if text.strip() == shown.text:
            return shown.number
    return None


def _numbers_to_show(numbers: Iterable[int], source: Sequence[str]) -> list[int]:
    """The numbers of the lines to show: those where ranks are, and some around them, in order.

    An empty line is left out at the edge of such a piece of source.
    """
    near: set[int] = set()
    for number in numbers:
        near.update(range(number - CONTEXT_LINES, number + CONTEXT_LINES + 1))
    shown = []
    for number in sorted(near):
        if not 1 <= number <= len(source):
            continue
        is_inside = number - 1 in near and number + 1 in near
        if is_inside or source[number - 1].strip():
            shown.append(number)
    return shown


def source_text(marked: Sequence[MarkedLine]) -> str:
    """`marked_source` as text: an arrow and the ranks at the lines where they are."""
    width = max(len(line.text) for line in marked)
    texts = []
    for line in marked:
        marks = []
        for mark in line.marks:
            marks.append(f"{rank_list(mark.ranks)}: {mark.what}")
        arrow = ">" if marks else " "
        code = f"{arrow} {line.number_words:>3}  {line.text:<{width}}"
        texts.append(f"{code}   {'; '.join(marks)}".rstrip())
    return "\n".join(texts)


def source_html(marked: Sequence[MarkedLine], chips: Callable[[Sequence[int]], str]) -> str:
    """`marked_source` as HTML: a coloured edge and the ranks at the lines where they are.

    Args:
        marked: the lines.
        chips: gives the ranks' colours as HTML.
    """
    body = []
    for line in marked:
        marks = []
        for mark in line.marks:
            marks.append(_mark_html(mark, chips(mark.ranks)))
        color = COLOURED if marks else PLAIN_EDGE
        code = f"{line.number_words:>4}  {html.escape(line.text)}"
        text = f"{code}   {'; '.join(marks)}".rstrip()
        body.append(f'<div style="border-left:3px solid {color};{HANGING_INDENT}">{text}</div>')
    return f'<pre style="{STYLE}">{"".join(body)}</pre>'


def _mark_html(mark: Mark, chips: str) -> str:
    """What ranks do at a line, as HTML, with their colours.

    Where a narrow pane breaks it, the colours stay with the names of the ranks.
    """
    who = html.escape(rank_list(mark.ranks))
    label = f'<span style="white-space:nowrap">{chips}{who}:</span>'
    return f"{label} {html.escape(mark.what)}"
