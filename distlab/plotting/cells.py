"""Cells on the lanes of ranks: what each rank holds before and after a call.

`before_after` is called by the notebooks, on values that were pulled from the ranks; the parts by
`stepping`, the course's figures and tools/diagrams.py. Runs on the notebook's kernel. Lengths are
in inches; y points down.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from distlab.plotting.canvas import canvas, draw_lane, draw_text, text_width
from distlab.plotting.style import (
    FAINT,
    FONT,
    INK,
    MIXED,
    TEXT_SIZE,
    line_color,
    rank_color,
    text_color,
)

LONGEST_TEXT = 12  # characters of text in a cell
MOST_SLOTS = 8  # a longer row ends in "…"
WIDEST_SIDE_BY_SIDE = 3.4  # of the cells that fit side by side at half a notebook's width
PANEL_GAP = 0.44  # between two panels side by side
PANEL_LANE = 0.4  # height of a lane
PANEL_PITCH = 0.464  # from one lane to the next
CELL_INSET = 0.032  # between a lane's edge, or a slot's, and its cell
CORNER_RADIUS = 0.064  # radius of a cell's corners
EMPTY_DASHES = (0, (3, 2.5))  # the edge of an empty cell
PANEL_HEAD = 0.36  # height above the lanes of a panel
NAMED_HEAD = 0.64  # height above the lanes of a panel whose slots have names


@dataclass(frozen=True)
class Slot:
    """One value in one slot of one rank.

    Attributes:
        value: None for an empty slot.
        origin: the rank that the value came from, or "mixed" (made from several ranks' values),
            "shared" (several ranks had this value), "unknown" (unspecified) or "empty" (nothing
            there yet).
    """

    value: float | str | None = None
    origin: int | str = "empty"


Rows = Sequence[Sequence[Slot]]  # by rank
Values = Sequence[Sequence[float | str | None]]  # by rank


# --- before and after ---


def before_after(
    before: Sequence[object], after: Sequence[object], title: str = "", slots: Sequence[str] = ()
) -> Figure:
    """Draw what each rank held before and after a call, as cells on the lanes of the ranks.

    A value in `after` has the colour of the one rank that had it before, light grey if several
    ranks had it, and dark grey if none had it (a sum). So give the ranks different values, and none
    that equals a sum of others.

    Runs on: the notebook's kernel.

    Args:
        before: by rank, what it held: None, a number, a text, a tensor of any shape, or lists of
            these. Rows of nested lists and tensors are joined end to end; ranks may hold different
            numbers of values.
        after: the same after the call, for equally many ranks.
        title: the call, for example "dist.all_gather(parts, t)".
        slots: names of the slots, written above them.

    Returns:
        The figure; a notebook shows it if it is the last value of a cell.
    """
    rows_before, rows_after = with_origins(
        [flatten(held) for held in before], [flatten(held) for held in after]
    )
    figure, ax, gap, middles = draw_panels(rows_before, rows_after, title, slots)
    left, right = gap
    if left < right:
        draw_text(ax, (left + right) / 2, (middles[0] + middles[-1]) / 2, "→", fontsize=20)
    return figure


def flatten(values: Any) -> list[float | str | None]:
    """The numbers and texts in a nested list or tensor, in order; None is an empty slot."""
    if hasattr(values, "tolist"):  # a tensor, or a NumPy array or number
        values = values.tolist()
    if not isinstance(values, (list, tuple)):
        return [values]
    return [value for part in values for value in flatten(part)]


def with_origins(before: Values, after: Values) -> tuple[Rows, Rows]:
    """Both as rows of cells that show where each value came from.

    A value before the call has the colour of its rank, one after it the colour of the one rank that
    had it before.
    """
    own = [[_own_cell(value, rank) for value in row] for rank, row in enumerate(before)]
    found = [[trace(value, before) for value in row] for row in after]
    return shortened(own), shortened(found)


def _own_cell(value: float | str | None, rank: int) -> Slot:
    if value is None:
        return Slot()
    return Slot(value, rank)


def shortened(rows: Sequence[list[Slot]]) -> Rows:
    """Rows as they are drawn: "…" is the last cell of a row that holds more."""
    shown = []
    for row in rows:
        if len(row) > MOST_SLOTS:
            row = [*row[: MOST_SLOTS - 1], Slot("…", "unknown")]
        shown.append(row)
    return shown


@dataclass(frozen=True)
class _Panel:
    """The cells before a call or after it, and where they stand.

    Attributes:
        heading: "before" or "after".
        rows: by rank, its cells.
        slots: the number of slots of the longest row, at least 1.
        left: where the first slot begins.
        top: where the panel begins.
    """

    heading: str
    rows: Rows
    slots: int
    left: float
    top: float


def draw_panels(
    before: Rows,
    after: Rows,
    title: str,
    slots: Sequence[str] = (),
    gap: float = PANEL_GAP,
    family: str = FONT,
) -> tuple[Figure, Axes, tuple[float, float], list[float]]:
    """Draw the panels before and after a call on the lanes of the ranks.

    They stand side by side if they fit, else one below the other. A slot is as wide as the longest
    value or slot name in both panels; with up to three digits it is a square.

    Runs on: the notebook's kernel.

    Returns:
        The figure, its axes, where the gap and the second panel begin (without a gap, the second
        panel begins further left), and the height of each lane's middle in the first panel.
    """
    ranks = range(len(before))
    head = NAMED_HEAD if slots else PANEL_HEAD
    left = text_width(f"rank {len(before) - 1}", TEXT_SIZE) + 0.32
    height = head + len(before) * PANEL_PITCH
    slot = _slot_width(before, after, slots)
    first = _Panel("before", before, _most_slots(before), left, 0.0)
    end = left + first.slots * slot
    if (first.slots + _most_slots(after)) * slot <= WIDEST_SIDE_BY_SIDE:
        second = _Panel("after", after, _most_slots(after), end + gap, 0.0)
    else:
        second = _Panel("after", after, _most_slots(after), left, height + 0.08)
    width = max(end, second.left + second.slots * slot) + 0.08
    figure, ax = canvas(width, second.top + height - (PANEL_PITCH - PANEL_LANE), title, family)
    tops = [head + rank * PANEL_PITCH for rank in ranks]
    for panel_top in sorted({first.top, second.top}):
        for rank in ranks:
            name = f"rank {rank}"
            draw_lane(ax, 0, panel_top + tops[rank], width, PANEL_LANE, rank_color(rank), name)
    for panel in (first, second):
        _draw_panel(ax, panel, slot, slots, tops)
    return figure, ax, (end, second.left), [top + PANEL_LANE / 2 for top in tops]


def _most_slots(rows: Rows) -> int:
    """The number of slots of the longest row, at least 1."""
    return max(1, *(len(row) for row in rows))


def _slot_width(before: Rows, after: Rows, names: Sequence[str]) -> float:
    """The width of a slot that all values and names of slots fit into."""
    texts = [format_value(cell.value) for row in (*before, *after) for cell in row]
    widths = [text_width(text, TEXT_SIZE) + 0.16 for text in (*texts, *names)]
    return max([PANEL_LANE, *widths])


def _draw_panel(
    ax: Axes, panel: _Panel, width: float, names: Sequence[str], tops: Sequence[float]
) -> None:
    """Draw the heading of a panel, the names of its slots and its cells.

    Args:
        ax: axes that have the lanes.
        panel: its cells, and where it stands.
        width: of a slot.
        names: of the slots.
        tops: by rank, where its lane begins in the panel.
    """
    draw_text(ax, panel.left + panel.slots * width / 2, panel.top + 0.16, panel.heading)
    for slot, name in enumerate(names[: panel.slots]):
        draw_text(ax, panel.left + (slot + 0.5) * width, panel.top + 0.46, name)
    for row, top in zip(panel.rows, tops, strict=True):
        y = panel.top + top + CELL_INSET
        for slot, cell in enumerate(row):
            x = panel.left + slot * width + CELL_INSET
            draw_cell(ax, x, y, width - 2 * CELL_INSET, PANEL_LANE - 2 * CELL_INSET, cell)


# --- parts of drawings ---


def trace(value: float | str | None, before: Sequence[Sequence[object]]) -> Slot:
    """The cell of a value after a call, in the colour of the one rank that had it before.

    It is neutral if several ranks had it, or none; "?" is unspecified.

    Runs on: anywhere.

    Args:
        value: what a rank has in a slot now.
        before: by rank, the values that it had.
    """
    if value is None:
        return Slot()
    if value == "?":
        return Slot(value, "unknown")
    ranks = [rank for rank, row in enumerate(before) if value in row]
    if not ranks:
        return Slot(value, "mixed")
    if len(ranks) > 1:
        return Slot(value, "shared")
    return Slot(value, ranks[0])


def format_value(value: float | str | None) -> str:
    """A value as the text of its cell: whole numbers as integers, others with three digits.

    Runs on: anywhere.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        line = " ".join(value.split())
        return line if len(line) <= LONGEST_TEXT else line[: LONGEST_TEXT - 1] + "…"
    if float(value).is_integer() and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.3g}"


def draw_cell(
    ax: Axes, x: float, y: float, width: float, height: float, cell: Slot, size: float = TEXT_SIZE
) -> None:
    """Draw a cell with its upper left corner at (x, y), in the colour of its value's origin.

    Runs on: the notebook's kernel.
    """
    fill, edge = _colors_of(cell)
    scale = size / TEXT_SIZE
    box = FancyBboxPatch(
        (x, y),
        width,
        height,
        boxstyle=f"round,pad=0,rounding_size={CORNER_RADIUS * scale}",
        facecolor=fill,
        edgecolor=edge,
        linewidth=1.2 * scale,
        linestyle=EMPTY_DASHES if cell.origin == "empty" else "solid",
    )
    ax.add_artist(box)
    if cell.value is not None:
        look = {"va": "center_baseline", "color": text_color(fill), "fontsize": size}
        draw_text(ax, x + width / 2, y + height / 2, format_value(cell.value), **look)


def _colors_of(cell: Slot) -> tuple[str, str]:
    """The colours of a cell and of its edge."""
    if isinstance(cell.origin, int):
        return rank_color(cell.origin), line_color(cell.origin)
    if cell.origin == "mixed":
        return MIXED, INK
    if cell.origin == "shared":
        return FAINT, INK
    return "none", INK
