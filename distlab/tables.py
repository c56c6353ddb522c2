"""Times, bandwidths and sizes as texts, and tables of them.

Notebooks print them, and figures write them beside their marks. Runs anywhere: `distlab.measure`
offers the texts to notebooks, and results that print themselves are tables.
"""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")  # each 1024 times the one before


def format_seconds(seconds: float) -> str:
    """A time as a notebook prints it, three digits and a unit, 9 characters wide: "  1.23 ms".

    Runs on: anywhere.
    """
    # 999.6 ms would be shown as 1000 ms
    if seconds >= 0.9995:
        return f"{_three_digits(seconds)} s "
    if seconds >= 0.9995e-3:
        return f"{_three_digits(seconds / 1e-3)} ms"
    return f"{_three_digits(seconds / 1e-6)} µs"


def _three_digits(value: float) -> str:
    """A number with three digits, 6 characters wide."""
    if value < 9.995:
        return f"{value:>6.2f}"
    if value < 99.95:
        return f"{value:>6.1f}"
    return f"{value:>6.0f}"


def format_bandwidth(gigabytes_per_second: float) -> str:
    """A bandwidth as a notebook prints it, 11 characters wide: "  1.23 GB/s".

    1 GB is 1e9 bytes. Runs on: anywhere.
    """
    return f"{gigabytes_per_second:>6.2f} GB/s"


def format_bytes(num_bytes: int) -> str:
    """A size in units of 1024: "4 B", "64 KiB", "1.5 MiB".

    From 10,000 B it is rounded to three digits, unless it is fewer than 1024 of one unit exactly.

    Runs on: anywhere.
    """
    largest = len(BYTE_UNITS) - 1
    exact = num_bytes
    step = 0
    while exact >= 1024 and exact % 1024 == 0 and step < largest:
        exact //= 1024
        step += 1
    if exact < 1024 or num_bytes < 10_000:
        return f"{exact} {BYTE_UNITS[step]}"
    # the first unit of which there are fewer than 1000, so that three digits need no exponent
    step = 1
    while num_bytes >= 999.5 * 1024**step and step < largest:
        step += 1
    return f"{num_bytes / 1024**step:.3g} {BYTE_UNITS[step]}"


def count(number: int, noun: str) -> str:
    """A number of things: "1 rank", "4 ranks".

    Runs on: anywhere.
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}s"


class Hyperlink(str):
    """A cell of a table that leads to an address where it is shown as HTML.

    Attributes:
        target: the address.
    """

    target: str

    def __new__(cls, words: str, target: str) -> Hyperlink:
        link = super().__new__(cls, words)
        link.target = target
        return link

    def __reduce__(self) -> tuple[type[Hyperlink], tuple[str, str]]:
        """The class, and the arguments with which `copy` and `pickle` make it again."""
        return Hyperlink, (str(self), self.target)


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
        columns = []
        cells_by_column = zip(self.heads, *self.rows, strict=True)
        for side, cells in zip(self.sides, cells_by_column, strict=True):
            columns.append(_aligned(cells, side))
        lines = []
        if self.title:
            lines.append(self.title)
        for line in zip(*columns, strict=True):
            lines.append("   ".join(line).rstrip())
        lines += self.notes
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        title = html.escape(self.title)
        above = f'<caption style="caption-side:top;text-align:left">{title}</caption>'
        head = f"<thead>{self._html(self.heads, 'th')}</thead>"
        rows = [self._html(row, "td") for row in self.rows]
        notes = [f"<div>{html.escape(note)}</div>" for note in self.notes]
        body = f"<tbody>{''.join(rows)}</tbody>"
        return f"<table>{above}{head}{body}</table>{''.join(notes)}"

    def _html(self, row: Sequence[str], tag: str) -> str:
        """A row as HTML; `tag` is that of its cells, "td" or "th"."""
        cells = ""
        for cell, side in zip(row, self.sides, strict=True):
            align = "right" if side == "r" else "left"
            text = html.escape(cell.strip())
            if isinstance(cell, Hyperlink):
                text = f'<a href="{html.escape(cell.target)}">{text}</a>'
            cells += f'<{tag} style="text-align:{align};white-space:nowrap">{text}</{tag}>'
        return f"<tr>{cells}</tr>"


def _aligned(cells: Sequence[str], side: str) -> list[str]:
    """The cells of a column, as wide as the widest; `side` is "l" or "r"."""
    width = max(len(cell) for cell in cells)
    if side == "r":
        return [cell.rjust(width) for cell in cells]
    return [cell.ljust(width) for cell in cells]


class ShownAsTable(ABC):
    """A result that a notebook shows as its `table()`."""

    @abstractmethod
    def table(self) -> Table:
        """The result as a table."""

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()
