"""Cells on the lanes of ranks: what each rank holds before and after a call.

The notebooks call `before_after`, with values that they pulled from the ranks. stepping.py, the
course's sharding.py and tools/diagrams.py draw cells with the rest. Runs on the notebook's kernel.
Lengths are in inches; y points down.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from distlab.plotting.canvas import draw_lane, draw_text, new_canvas, text_width
from distlab.plotting.describing import describe
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


Value = float | str | None  # None where there is nothing
Values = Sequence[Sequence[Value]]  # by rank

# Where a value came from: a rank, "mixed" (made from several ranks' values), "shared" (several
# ranks had it), "unknown" (it is unspecified) or "empty" (nothing is there yet).
Origin = int | Literal["mixed", "shared", "unknown", "empty"]


@dataclass(frozen=True)
class Slot:
    """One slot of one rank: the value in it, and where that came from.

    Attributes:
        value: None for an empty slot.
        origin: decides the colour of the cell.
    """

    value: Value = None
    origin: Origin = "empty"


Rows = Sequence[Sequence[Slot]]  # by rank


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
    values_before = [flatten(held) for held in before]
    values_after = [flatten(held) for held in after]
    rows_before, rows_after = with_origins(values_before, values_after)
    panels = draw_panels(rows_before, rows_after, title, slots)
    if panels.are_side_by_side:
        x = (panels.gap_left + panels.gap_right) / 2
        y = (panels.middles[0] + panels.middles[-1]) / 2
        draw_text(panels.ax, x, y, "→", fontsize=20)
    describe(panels.figure, title, _of_ranks(values_before, values_after))
    return panels.figure


def _of_ranks(before: Sequence[Sequence[Value]], after: Sequence[Sequence[Value]]) -> list[str]:
    """What each rank held before and after, in words."""
    parts = []
    for rank, pair in enumerate(zip(before, after, strict=True)):
        old, new = (", ".join(format_value(value) or "-" for value in row) for row in pair)
        parts.append(f"rank {rank} held {old or 'nothing'} and then {new or 'nothing'}")
    return parts


def flatten(values: Any) -> list[Value]:
    """The numbers and texts in a nested list or tensor, in order; None is an empty slot."""
    if hasattr(values, "tolist"):  # a tensor, or a NumPy array or number
        values = values.tolist()
    if not isinstance(values, (list, tuple)):
        return [values]
    flat: list[Value] = []
    for part in values:
        flat.extend(flatten(part))
    return flat


def with_origins(before: Values, after: Values) -> tuple[list[list[Slot]], list[list[Slot]]]:
    """Both as rows of slots that know where each value came from.

    A value before the call came from its own rank, one after it from the rank that had it before.
    """
    own = []
    for rank, row in enumerate(before):
        slots = [_own_slot(value, rank) for value in row]
        own.append(_drawn_slots(slots))
    found = []
    for row in after:
        slots = [Slot(value, origin_of(value, before)) for value in row]
        found.append(_drawn_slots(slots))
    return own, found


def _own_slot(value: Value, rank: int) -> Slot:
    """The slot of a value that the rank itself brought to the call."""
    if value is None:
        return Slot()
    return Slot(value, rank)


def _drawn_slots(row: list[Slot]) -> list[Slot]:
    """A row as it is drawn: "…" is the last cell of one that holds more."""
    if len(row) <= MOST_SLOTS:
        return row
    return [*row[: MOST_SLOTS - 1], Slot("…", "unknown")]


@dataclass(frozen=True)
class _Panel:
    """The cells before a call or after it, and where they stand.

    Attributes:
        heading: "before" or "after".
        rows: by rank, its slots.
        slots: how many slots the longest row has, at least 1.
        left: where the first slot begins.
        top: where the panel begins.
    """

    heading: str
    rows: Rows
    slots: int
    left: float
    top: float


class Panels(NamedTuple):
    """The panels before and after a call, as they are drawn.

    Attributes:
        figure: with both panels.
        ax: the axes of the figure.
        gap_left: where the first panel ends.
        gap_right: where the second panel begins; if it is below the first one, this is further
            left.
        middles: by rank, the height of its lane's middle in the first panel.
    """

    figure: Figure
    ax: Axes
    gap_left: float
    gap_right: float
    middles: Sequence[float]

    @property
    def are_side_by_side(self) -> bool:
        """Whether there is a gap between the panels, and not one panel below the other."""
        return self.gap_left < self.gap_right


def draw_panels(
    before: Rows,
    after: Rows,
    title: str,
    names: Sequence[str] = (),
    gap: float = PANEL_GAP,
    family: str = FONT,
) -> Panels:
    """Draw the panels before and after a call on the lanes of the ranks.

    They stand side by side if they fit, else one below the other. A slot is as wide as the longest
    value or slot name in both panels; with up to three digits it is a square.

    Runs on: the notebook's kernel.

    Args:
        before: what each rank held.
        after: the same after the call.
        title: the call, in one or more lines.
        names: of the slots.
        gap: between two panels side by side.
        family: the font of the title.
    """
    slots_before = _most_slots(before)
    slots_after = _most_slots(after)
    slot_width = _slot_width(before, after, names)
    head = NAMED_HEAD if names else PANEL_HEAD
    height = head + len(before) * PANEL_PITCH
    left = text_width(f"rank {len(before) - 1}", TEXT_SIZE) + 0.32
    end = left + slots_before * slot_width
    first = _Panel("before", before, slots_before, left, 0.0)
    if (slots_before + slots_after) * slot_width <= WIDEST_SIDE_BY_SIDE:
        second = _Panel("after", after, slots_after, end + gap, 0.0)
    else:
        second = _Panel("after", after, slots_after, left, height + 0.08)
    width = max(end, second.left + slots_after * slot_width) + 0.08
    below_last_lane = PANEL_PITCH - PANEL_LANE
    figure, ax = new_canvas(width, second.top + height - below_last_lane, title, family)
    tops = [head + rank * PANEL_PITCH for rank in range(len(before))]
    _draw_lanes(ax, tops, width)
    if second.top > first.top:
        _draw_lanes(ax, [second.top + top for top in tops], width)
    for panel in (first, second):
        _draw_panel(ax, panel, slot_width, names, tops)
    middles = [top + PANEL_LANE / 2 for top in tops]
    return Panels(figure, ax, gap_left=end, gap_right=second.left, middles=middles)


def _draw_lanes(ax: Axes, tops: Sequence[float], width: float) -> None:
    """Draw a lane for each rank, with its name."""
    for rank, top in enumerate(tops):
        draw_lane(ax, 0, top, width, PANEL_LANE, rank_color(rank), f"rank {rank}")


def _most_slots(rows: Rows) -> int:
    """How many slots the longest row has, at least 1."""
    return max(1, *map(len, rows))


def _slot_width(before: Rows, after: Rows, names: Sequence[str]) -> float:
    """The width of a slot that all values and names of slots fit into."""
    texts = list(names)
    for row in (*before, *after):
        texts.extend(format_value(slot.value) for slot in row)
    widths = [text_width(text, TEXT_SIZE) + 0.16 for text in texts]
    return max([PANEL_LANE, *widths])


def _draw_panel(
    ax: Axes, panel: _Panel, width: float, names: Sequence[str], tops: Sequence[float]
) -> None:
    """Draw the heading of a panel, the names of its slots and its cells.

    Args:
        ax: axes that have the lanes.
        panel: its slots, and where it stands.
        width: of a slot.
        names: of the slots.
        tops: by rank, where its lane begins in the panel.
    """
    middle = panel.left + panel.slots * width / 2
    draw_text(ax, middle, panel.top + 0.16, panel.heading)
    for place, name in enumerate(names[: panel.slots]):
        x = panel.left + (place + 0.5) * width
        draw_text(ax, x, panel.top + 0.46, name)
    cell_width = width - 2 * CELL_INSET
    cell_height = PANEL_LANE - 2 * CELL_INSET
    for row, top in zip(panel.rows, tops, strict=True):
        y = panel.top + top + CELL_INSET
        for place, slot in enumerate(row):
            x = panel.left + place * width + CELL_INSET
            draw_cell(ax, x, y, cell_width, cell_height, slot)


# --- one cell ---


def origin_of(value: Value, before: Sequence[Sequence[object]]) -> Origin:
    """Where a value came from that a rank has after a call.

    It is the one rank that had the value before; "?" is a value that is unspecified.

    Runs on: anywhere.

    Args:
        value: what a rank has in a slot now.
        before: by rank, the values that it had.
    """
    if value is None:
        return "empty"
    if value == "?":
        return "unknown"
    ranks = [rank for rank, row in enumerate(before) if value in row]
    if not ranks:
        return "mixed"
    if len(ranks) > 1:
        return "shared"
    return ranks[0]


def format_value(value: Value) -> str:
    """A value as the text of its cell: whole numbers as integers, others with three digits.

    Runs on: anywhere.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        line = " ".join(value.split())
        if len(line) <= LONGEST_TEXT:
            return line
        return line[: LONGEST_TEXT - 1] + "…"
    if float(value).is_integer() and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.3g}"


def draw_cell(
    ax: Axes, x: float, y: float, width: float, height: float, slot: Slot, size: float = TEXT_SIZE
) -> None:
    """Draw a cell with its upper left corner at (x, y), in the colour of its value's origin.

    Runs on: the notebook's kernel.

    Args:
        ax: axes of a canvas.
        x: its left edge.
        y: its upper edge.
        width: of the cell.
        height: of the cell.
        slot: what is in it.
        size: of the text in points.
    """
    fill, edge = _colors_of(slot.origin)
    scale = size / TEXT_SIZE
    cell = FancyBboxPatch(
        (x, y),
        width,
        height,
        boxstyle=f"round,pad=0,rounding_size={CORNER_RADIUS * scale}",
        facecolor=fill,
        edgecolor=edge,
        linewidth=1.2 * scale,
        linestyle=EMPTY_DASHES if slot.origin == "empty" else "solid",
    )
    ax.add_artist(cell)
    if slot.value is not None:
        text = format_value(slot.value)
        look = {"va": "center_baseline", "color": text_color(fill), "fontsize": size}
        draw_text(ax, x + width / 2, y + height / 2, text, **look)


def _colors_of(origin: Origin) -> tuple[str, str]:
    """The colours of a cell and of its edge."""
    if isinstance(origin, int):
        return rank_color(origin), line_color(origin)
    if origin == "mixed":
        return MIXED, INK
    if origin == "shared":
        return FAINT, INK
    return "none", INK
