"""The source lines where the ranks are, with what they do there beside them, as text and as HTML:
pure functions.

Runs on the notebook's kernel, called by display.py.
"""

import html
import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from distlab.diagnosis.failures import with_text
from distlab.diagnosis.report import rows
from distlab.wire.messages import RankStatus
from distlab.wire.source import Line
from distlab.words import grouped, rank_list

CONTEXT_LINES = 2  # of source around a line where a rank is
# the rest of a line of source stands right of the numbers
HANG = "padding-left:6ch;text-indent:-6ch"


@dataclass(frozen=True)
class MarkedLine:
    """A line of source: its number (0 for a gap), its text, and what the ranks do there as (ranks,
    words).
    """

    number: int
    text: str
    notes: list[tuple[list[int], str]]


def marked_source(states: Mapping[int, RankStatus], cell: str) -> list[MarkedLine]:
    """The source lines where the ranks are, with some around them; a gap is a line without a
    number.

    Args:
        cell: the text of the %%px cell, from the line with the magic; "" if the code is a function.
    """
    marked: list[MarkedLine] = []
    for file, there in sorted(
        grouped((s.lines[-1].file, s) for s in states.values() if s.lines).items()
    ):
        source = linecache.getlines(file) if file else cell.splitlines()
        places = grouped((_line_in(source, s.lines[-1:] if file else s.lines), s) for s in there)
        places.pop(0, None)
        activities = {at: rows({s.rank: s for s in those}) for at, those in places.items()}
        notes = {
            at: [(row[0], f"{row[1]} {row[2]}".rstrip()) for row in found]
            for at, found in activities.items()
        }
        near = {n for at in notes for n in range(at - CONTEXT_LINES, at + CONTEXT_LINES + 1)}
        shown = {
            n
            for n in near
            if 1 <= n <= len(source) and (source[n - 1].strip() or {n - 1, n + 1} <= near)
        }
        for number in sorted(shown):
            if marked and number - 1 not in shown:
                marked.append(MarkedLine(0, "...", []))
            marked.append(MarkedLine(number, source[number - 1].rstrip(), notes.get(number, [])))
    return marked


def _line_in(source: Sequence[str], lines: Sequence[Line]) -> int:
    """The number of the innermost line that is in this source; 0 for none: a function may be from
    another cell.
    """
    shown = [*map(with_text, lines)]
    found = [
        s.number
        for s in shown
        if 1 <= s.number <= len(source) and source[s.number - 1].strip() == s.text
    ]
    return found[-1] if found else 0


def source_text(marked: Sequence[MarkedLine]) -> str:
    """`marked_source` as text: an arrow and the ranks at the lines where they are."""
    width = max(len(line.text) for line in marked)
    texts = []
    for line in marked:
        notes = "; ".join(f"{rank_list(ranks)}: {what}" for ranks, what in line.notes)
        head = f"{'>' if notes else ' '} {line.number or '':>3}  "
        texts.append(f"{head}{line.text:<{width}}   {notes}".rstrip())
    return "\n".join(texts)


def source_html(marked: Sequence[MarkedLine], chips: Callable[[Sequence[int]], str]) -> str:
    """`marked_source` as HTML: a coloured edge and the ranks at the lines where they are.

    Args:
        marked: the lines.
        chips: gives the ranks' colours as HTML.
    """
    body = []
    for line in marked:
        notes = "; ".join(
            _note_html(chips(ranks), rank_list(ranks), what) for ranks, what in line.notes
        )
        color = "#d55e00;background:rgba(213,94,0,0.12)" if notes else "transparent"
        text = f"{line.number or '':>4}  {html.escape(line.text)}   {notes}".rstrip()
        body.append(f'<div style="border-left:3px solid {color};{HANG}">{text}</div>')
    look = "margin:4px 0;background:transparent;white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"
    return f'<pre style="{look}">{"".join(body)}</pre>'


def _note_html(chips: str, who: str, what: str) -> str:
    """What ranks do at a line; where a narrow pane breaks it, their colours stay with their names."""
    return f'<span style="white-space:nowrap">{chips}{html.escape(who)}:</span> {html.escape(what)}'
