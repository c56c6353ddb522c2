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
        title: one line above; "" for none.
        heads: a name for each column.
        rows: the cells, as many as heads each.
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
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        forms = [f"{{:{'>' if side == 'r' else '<'}{width}}}" for side, width in zip(self.sides, widths, strict=True)]
        texts = ["   ".join(forms).format(*line).rstrip() for line in lines]
        return "\n".join([*filter(None, [self.title]), *texts, *self.notes])

    def _repr_html_(self) -> str:
        body = "".join(self._html(line, "td") for line in self.rows)
        above = f'<caption style="caption-side:top;text-align:left">{html.escape(self.title)}</caption>'
        below = "".join(f"<div>{html.escape(note)}</div>" for note in self.notes)
        return f"<table>{above}<thead>{self._html(self.heads, 'th')}</thead><tbody>{body}</tbody></table>{below}"

    def _html(self, line: Sequence[str], tag: str) -> str:
        cells = ""
        for cell, side in zip(line, self.sides, strict=True):
            align = "right" if side == "r" else "left"
            cells += f'<{tag} style="text-align:{align};white-space:nowrap">{html.escape(cell.strip())}</{tag}>'
        return f"<tr>{cells}</tr>"
