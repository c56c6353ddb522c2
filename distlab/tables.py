"""A table of texts that shows itself: as plain text and, in a notebook, as HTML.

Called by results that print themselves. Runs anywhere.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Rows of texts under their heads, shown as text or HTML.

    Args:
        title: one line above. heads: a name for each column. rows: the cells, as many as heads each.
        sides: a letter for each column, "l" where it is aligned to the left, "r" to the right.
        notes: lines below.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    sides: str
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        lines = [self.heads, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.heads))]
        return "\n".join([self.title, *(self._text(line, widths) for line in lines), *self.notes])

    def _text(self, line: Sequence[str], widths: Sequence[int]) -> str:
        cells = (
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(line, widths, self.sides, strict=True)
        )
        return "   ".join(cells).rstrip()

    def _repr_html_(self) -> str:
        body = "".join(self._html(line, "td") for line in self.rows)
        above = f'<caption style="caption-side:top;text-align:left">{html.escape(self.title)}</caption>'
        below = "".join(f"<div>{html.escape(note)}</div>" for note in self.notes)
        return f"<table>{above}<thead>{self._html(self.heads, 'th')}</thead><tbody>{body}</tbody></table>{below}"

    def _html(self, line: Sequence[str], tag: str) -> str:
        sides = ("right" if side == "r" else "left" for side in self.sides)
        cells = (
            f'<{tag} style="text-align:{side};white-space:nowrap">{html.escape(cell.strip())}</{tag}>'
            for cell, side in zip(line, sides, strict=True)
        )
        return f"<tr>{''.join(cells)}</tr>"
