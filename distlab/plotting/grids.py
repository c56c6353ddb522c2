"""What each rank holds before a call and after it, rank x slot.

Called by the notebooks, on values that were pulled from the ranks, and by tools/diagrams.py on the definition of each
collective. Runs in the notebook's kernel. Lengths are in inches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distlab.plotting import cells
from distlab.plotting.cells import TEXT, Cell, Rows, text_width
from distlab.plotting.style import rank_color

MOST_SLOTS = 8  # a longer row ends in "…"
WIDEST = 3.4  # of the cells that fit side by side at half a notebook's width
GAP = 0.44  # between two panels side by side
LANE, PITCH = 0.4, 0.464  # height of a lane; from one lane to the next
INSET = 0.032  # between a lane's edge, or a slot's, and its cell
EMPTY = Cell()
ABSENT = Cell(origin="absent")  # where a longer row of another rank has a slot; it is not drawn

Values = Sequence[Sequence[float | str | None]]  # by rank


def before_after(
    before: Sequence[object], after: Sequence[object], title: str = "", slots: Sequence[str] = ()
) -> Figure:
    """Draw what each rank held before and after a call, as cells on the lanes of the ranks.

    A value in `after` has the colour of the one rank that had this value before, light grey where several ranks had
    it, and dark grey where none had it (a sum). So give the ranks different values, whose sums are not among them.

    Runs on: client.

    Args:
        before: by rank, what it held: None, a number, a text, a tensor of any shape, or lists of these. Rows of
            nested lists and tensors are laid end to end; ranks may hold different numbers of values.
        after: the same after the call, for as many ranks.
        title: the call, for example "dist.all_gather(parts, t)".
        slots: names of the slots, written above them.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell.
    """
    befores, afters = ([flatten(held) for held in held_by_rank] for held_by_rank in (before, after))
    figure, ax, (left, right), middles = draw_panels(*traced(befores, afters), title, slots)
    if left < right:
        cells.draw_text(ax, (left + right) / 2, (middles[0] + middles[-1]) / 2, "→", fontsize=20)
    return figure


def flatten(values: Any) -> list[float | str | None]:
    """The numbers and texts in a nested list or tensor, in order; None is an empty slot."""
    values = values.tolist() if hasattr(values, "tolist") else values  # a tensor, or a NumPy array or number
    return [value for part in values for value in flatten(part)] if isinstance(values, (list, tuple)) else [values]


def traced(before: Values, after: Values) -> tuple[Rows, Rows]:
    """Both as cells: a value has the colour of its rank, and afterwards of the one rank that had it before."""
    own = [[EMPTY if value is None else Cell(value, rank) for value in row] for rank, row in enumerate(before)]
    return pad(own), pad([[cells.trace(value, before) for value in row] for row in after])


def pad(rows: Rows) -> Rows:
    """Rows of equal length: absent cells where another rank holds more, "…" where one holds more than are drawn."""
    shown = [row if len(row) <= MOST_SLOTS else [*row[: MOST_SLOTS - 1], Cell("…", "unknown")] for row in rows]
    length = max(1, *(len(row) for row in shown))
    return [row + [ABSENT] * (length - len(row)) for row in shown]


# --- panels ---


def draw_panels(
    before: Rows, after: Rows, title: str, slots: Sequence[str] = (), gap: float = GAP, family: str = cells.FONT
) -> tuple[Figure, Axes, tuple[float, float], list[float]]:
    """Draw the panels before and after on the lanes of the ranks: side by side where they fit, else below each other.

    A slot is as wide as the longest value or slot name in both panels; as its height for up to three digits.

    Runs on: client.

    Returns:
        The figure, its axes, where the gap begins and where the second panel begins, which is left of that where there
        is no gap, and the height of each lane's middle in the first panel.
    """
    texts = [cells.format_value(cell.value) for row in (*before, *after) for cell in row]
    width = max([LANE] + [text_width(text, TEXT) + 0.16 for text in [*texts, *slots]])
    head = 0.64 if slots else 0.36
    left, high = text_width(f"rank {len(before) - 1}", TEXT) + 0.32, head + len(before) * PITCH
    start = left + len(before[0]) * width
    beside = (len(before[0]) + len(after[0])) * width <= WIDEST
    x, y = (start + gap, 0.0) if beside else (left, high + 0.08)
    wide = max(start, x + len(after[0]) * width) + 0.08
    figure, ax = cells.canvas(wide, y + high - (PITCH - LANE), title, family)
    tops = [head + rank * PITCH for rank in range(len(before))]
    for down in sorted({0.0, y}):
        for rank, top in enumerate(tops):
            cells.draw_lane(ax, 0, down + top, wide, LANE, rank_color(rank), f"rank {rank}")
    for heading, rows, right, down in (("before", before, left, 0.0), ("after", after, x, y)):
        cells.draw_text(ax, right + len(rows[0]) * width / 2, down + 0.16, heading)
        for slot, name in enumerate(slots[: len(rows[0])]):
            cells.draw_text(ax, right + (slot + 0.5) * width, down + 0.46, name)
        for row, top in zip(rows, tops, strict=True):
            for slot, cell in enumerate(row):
                corner = right + slot * width + INSET, down + top + INSET
                if cell is not ABSENT:
                    cells.draw_cell(ax, *corner, width - 2 * INSET, LANE - 2 * INSET, cell)
    return figure, ax, (start, x), [top + LANE / 2 for top in tops]
