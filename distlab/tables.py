"""Times, bandwidths and sizes as texts, and tables of them: what notebooks print and figures write
beside their marks.

`distlab.measure` offers the texts to notebooks; results that print themselves are tables. Runs
anywhere.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass


def format_seconds(seconds: float) -> str:
    """A time as a notebook prints it, three digits and a unit, 9 characters wide: "  1.23 ms".

    Runs on: anywhere.
    """
    scales = (("s ", 1.0), ("ms", 1e-3), ("µs", 1e-6))
    unit, scale = next((pair for pair in scales if seconds >= pair[1] * 0.9995), scales[-1])
    value = seconds / scale
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:>6.{digits}f} {unit}"


def format_bandwidth(gigabytes_per_second: float) -> str:
    """A bandwidth as a notebook prints it, 11 characters wide: "  1.23 GB/s", where 1 GB is 1e9
    bytes.

    Runs on: anywhere.
    """
    return f"{gigabytes_per_second:>6.2f} GB/s"


def format_bytes(num_bytes: int) -> str:
    """A size in units of 1024: "4 B", "64 KiB", "1.5 MiB"; above 10,000 B rounded, unless it is a
    multiple of a unit.

    Runs on: anywhere.
    """
    units, value, step = ("B", "KiB", "MiB", "GiB"), num_bytes, 0
    while value >= 1024 and value % 1024 == 0 and step < 3:
        value, step = value // 1024, step + 1
    if value < 1024 or num_bytes < 10_000:
        return f"{value} {units[step]}"
    # three digits are enough from there on
    step = 1 + sum(num_bytes >= 999.5 * 1024**larger for larger in (1, 2))
    return f"{num_bytes / 1024**step:.3g} {units[step]}"


def count(number: int, noun: str) -> str:
    """A number of things: "1 rank", "4 ranks".

    Runs on: anywhere.
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class Link(str):
    """A cell of a table that leads to `target`, an address, where it is shown as HTML."""

    def __new__(cls, words: str, target: str) -> "Link":
        link = super().__new__(cls, words)
        link.target = target
        return link


@dataclass(frozen=True)
class Table:
    """Rows of texts under their headings, shown as text or HTML.

    Args:
        title: one line above; "" for none.
        heads: a name for each column.
        rows: the cells, one for each head.
        sides: a letter for each column: "l" to align it to the left, "r" to the right.
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
        forms = [
            f"{{:{'>' if side == 'r' else '<'}{width}}}"
            for side, width in zip(self.sides, widths, strict=True)
        ]
        texts = ["   ".join(forms).format(*line).rstrip() for line in lines]
        return "\n".join([*filter(None, [self.title]), *texts, *self.notes])

    def _repr_html_(self) -> str:
        body = "".join(self._html(line, "td") for line in self.rows)
        above = (
            f'<caption style="caption-side:top;text-align:left">{html.escape(self.title)}</caption>'
        )
        below = "".join(f"<div>{html.escape(note)}</div>" for note in self.notes)
        return f"<table>{above}<thead>{self._html(self.heads, 'th')}</thead><tbody>{body}</tbody></table>{below}"

    def _html(self, line: Sequence[str], tag: str) -> str:
        cells = ""
        for cell, side in zip(line, self.sides, strict=True):
            align = "right" if side == "r" else "left"
            text = html.escape(cell.strip())
            if isinstance(cell, Link):
                text = f'<a href="{html.escape(cell.target)}">{text}</a>'
            cells += f'<{tag} style="text-align:{align};white-space:nowrap">{text}</{tag}>'
        return f"<tr>{cells}</tr>"


class ShownAsTable:
    """A result that a notebook shows as its `table()`."""

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()
