"""Cells, boxes and texts on the lanes of ranks: what each rank holds before and after a call, rank
x slot.

`before_after` is called by the notebooks, on values that were pulled from the ranks; the parts by
`stepping`, the course's figures and tools/diagrams.py. Runs in the notebook's kernel. Lengths are
in inches; y points down.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch, Rectangle
from matplotlib.textpath import TextPath

from distlab.plotting.drawing import Drawing
from distlab.plotting.style import (
    FAINT,
    HAZE,
    INK,
    MIXED,
    line_color,
    new_figure,
    rank_color,
    style,
    text_color,
)

FONT = "DejaVu Sans"
TITLE, TEXT = 13, 12  # font sizes, in points
LINE = 0.38  # height of a line of the title
MARGIN = 0.12
LONGEST = 12  # characters of text in a cell
MOST_SLOTS = 8  # a longer row ends in "…"
WIDEST = 3.4  # of the cells that fit side by side at half a notebook's width
GAP = 0.44  # between two panels side by side
LANE, PITCH = 0.4, 0.464  # height of a lane; from one lane to the next
INSET = 0.032  # between a lane's edge, or a slot's, and its cell


@dataclass(frozen=True)
class Cell:
    """One value in one slot of one rank.

    `origin` is the rank that the value came from, or "mixed" (made from several ranks' values),
    "shared" (several ranks had this value), "unknown" (unspecified) or "empty" (nothing there yet).
    """

    value: float | str | None = None
    origin: int | str = "empty"


Rows = Sequence[Sequence[Cell]]  # by rank
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
    befores, afters = ([flatten(held) for held in held_by_rank] for held_by_rank in (before, after))
    figure, ax, (left, right), middles = draw_panels(*traced(befores, afters), title, slots)
    if left < right:
        draw_text(ax, (left + right) / 2, (middles[0] + middles[-1]) / 2, "→", fontsize=20)
    return figure


def flatten(values: Any) -> list[float | str | None]:
    """The numbers and texts in a nested list or tensor, in order; None is an empty slot."""
    # a tensor, or a NumPy array or number
    values = values.tolist() if hasattr(values, "tolist") else values
    return (
        [value for part in values for value in flatten(part)]
        if isinstance(values, (list, tuple))
        else [values]
    )


def traced(before: Values, after: Values) -> tuple[Rows, Rows]:
    """Both as cells: a value has the colour of its rank, and afterwards of the one rank that had it
    before.
    """
    own = [
        [Cell() if value is None else Cell(value, rank) for value in row]
        for rank, row in enumerate(before)
    ]
    return shortened(own), shortened([[trace(value, before) for value in row] for row in after])


def shortened(rows: Rows) -> Rows:
    """Rows as they are drawn: "…" is the last cell of one that holds more."""
    return [
        row if len(row) <= MOST_SLOTS else [*row[: MOST_SLOTS - 1], Cell("…", "unknown")]
        for row in rows
    ]


def draw_panels(
    before: Rows,
    after: Rows,
    title: str,
    slots: Sequence[str] = (),
    gap: float = GAP,
    family: str = FONT,
) -> tuple[Figure, Axes, tuple[float, float], list[float]]:
    """Draw the panels before and after on the lanes of the ranks: side by side if they fit, else
    below each other.

    A slot is as wide as the longest value or slot name in both panels; with up to three digits it
    is a square.

    Runs on: the notebook's kernel.

    Returns:
        The figure, its axes, where the gap and the second panel begin (without a gap, the second
        panel begins further left), and the height of each lane's middle in the first panel.
    """
    texts = [format_value(cell.value) for row in (*before, *after) for cell in row]
    width = max([LANE] + [text_width(text, TEXT) + 0.16 for text in [*texts, *slots]])
    head = 0.64 if slots else 0.36
    left, high = text_width(f"rank {len(before) - 1}", TEXT) + 0.32, head + len(before) * PITCH
    slots_before, slots_after = (max(1, *map(len, rows)) for rows in (before, after))
    start = left + slots_before * width
    beside = (slots_before + slots_after) * width <= WIDEST
    x, y = (start + gap, 0.0) if beside else (left, high + 0.08)
    wide = max(start, x + slots_after * width) + 0.08
    figure, ax = canvas(wide, y + high - (PITCH - LANE), title, family)
    tops = [head + rank * PITCH for rank in range(len(before))]
    for down in sorted({0.0, y}):
        for rank, top in enumerate(tops):
            draw_lane(ax, 0, down + top, wide, LANE, rank_color(rank), f"rank {rank}")
    panels = (("before", before, slots_before, left, 0.0), ("after", after, slots_after, x, y))
    for heading, rows, longest, right, down in panels:
        draw_text(ax, right + longest * width / 2, down + 0.16, heading)
        for slot, name in enumerate(slots[:longest]):
            draw_text(ax, right + (slot + 0.5) * width, down + 0.46, name)
        for row, top in zip(rows, tops, strict=True):
            for slot, cell in enumerate(row):
                corner = right + slot * width + INSET, down + top + INSET
                draw_cell(ax, *corner, width - 2 * INSET, LANE - 2 * INSET, cell)
    return figure, ax, (start, x), [top + LANE / 2 for top in tops]


# --- parts of drawings ---


def trace(value: float | str | None, before: Sequence[Sequence[object]]) -> Cell:
    """The cell of a value, in the colour of the one rank that had it before, or neutral; "?" is
    unspecified.

    Runs on: anywhere.

    Args:
        before: by rank, the values that it had.
    """
    if value is None:
        return Cell()
    if value == "?":
        return Cell(value, "unknown")
    ranks = [rank for rank, row in enumerate(before) if value in row]
    return Cell(value, "mixed" if not ranks else ranks[0] if len(ranks) == 1 else "shared")


def format_value(value: float | str | None) -> str:
    """A value as the text of its cell: whole numbers as integers, others with three digits.

    Runs on: anywhere.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        line = " ".join(value.split())
        return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
    integral = float(value).is_integer() and abs(value) < 1e6
    return str(int(value)) if integral else f"{value:.3g}"


@functools.cache  # an outline takes milliseconds, and a table has the same words many times
def text_width(text: str, size: float, family: str = FONT) -> float:
    """Width of a text.

    Runs on: anywhere.

    Args:
        text: one line.
        size: its font size in points.
        family: its font.
    """
    if not text.strip():
        return 0.0
    return TextPath((0, 0), text, size=size, prop={"family": family}).vertices[:, 0].max() / 72


def canvas(
    width: float, height: float, title: str = "", family: str = FONT
) -> tuple[Drawing, Axes]:
    """An empty figure with that much space below its title, and its axes with y pointing down from
    there.

    Runs on: the notebook's kernel.
    """
    lines = title.splitlines()
    width = max([width] + [text_width(line, TITLE, family) + 0.04 for line in lines])
    top = LINE * len(lines)
    figure = new_figure(width + 2 * MARGIN, height + top + 2 * MARGIN)
    with style():
        ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(-MARGIN, width + MARGIN), ylim=(height + MARGIN, -top - MARGIN))
    ax.set_axis_off()
    for i, line in enumerate(lines):
        draw_text(ax, 0, i * LINE - top + 0.14, line, ha="left", fontsize=TITLE, family=family)
    return figure, ax


def draw_text(ax: Axes, x: float, y: float, text: str, **options: object) -> None:
    """Write a text centred on (x, y); matplotlib's text options change that.

    Runs on: the notebook's kernel.
    """
    # All that the user's settings could change is given: style() here would take longer than all
    # the rest.
    look = {"family": FONT, "fontsize": TEXT, "color": INK, "usetex": False, "parse_math": False}
    ax.text(x, y, text, **{"ha": "center", "va": "center", **look, **options})


def draw_lane(
    ax: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    color: str,
    name: str = "",
    size: float = TEXT,
) -> None:
    """Draw a lane: a band in a tint of its colour, with its name and an edge at the left if it has
    a name.

    Runs on: the notebook's kernel.
    """
    ax.add_artist(Rectangle((x, y), width, height, facecolor=color, alpha=HAZE, edgecolor="none"))
    if name:
        ax.add_artist(Rectangle((x, y), 0.064, height, facecolor=color, edgecolor="none"))
        draw_text(
            ax, x + 0.144, y + height / 2, name, ha="left", va="center_baseline", fontsize=size
        )


def draw_box(
    ax: Axes, x: float, y: float, width: float, height: float, text: str, color: str, size: float
) -> None:
    """Draw a rectangle with its upper left corner at (x, y) and a text in the middle.

    Runs on: the notebook's kernel.
    """
    ax.add_artist(Rectangle((x, y), width, height, facecolor=color, edgecolor="none"))
    draw_text(
        ax,
        x + width / 2,
        y + height / 2,
        text,
        va="center_baseline",
        fontsize=size,
        color=text_color(color),
    )


def draw_cell(
    ax: Axes, x: float, y: float, width: float, height: float, cell: Cell, size: float = TEXT
) -> None:
    """Draw a cell with its upper left corner at (x, y), coloured by the rank that its value came
    from.

    Runs on: the notebook's kernel.
    """
    if isinstance(cell.origin, int):
        fill, edge = rank_color(cell.origin), line_color(cell.origin)
    else:
        fill, edge = {"mixed": MIXED, "shared": FAINT}.get(cell.origin, "none"), INK
    scale = size / TEXT
    line = {
        "linewidth": 1.2 * scale,
        "linestyle": (0, (3, 2.5)) if cell.origin == "empty" else "solid",
    }
    shape = f"round,pad=0,rounding_size={0.064 * scale}"
    ax.add_artist(
        FancyBboxPatch(
            (x, y), width, height, boxstyle=shape, facecolor=fill, edgecolor=edge, **line
        )
    )
    if cell.value is not None:
        place, text = (x + width / 2, y + height / 2), format_value(cell.value)
        draw_text(ax, *place, text, va="center_baseline", color=text_color(fill), fontsize=size)


def draw_plus(ax: Axes, x: float, y: float, radius: float, size: float) -> None:
    """Draw the plus at the end of an arrow whose numbers are added to what is there.

    Runs on: the notebook's kernel.
    """
    ax.add_artist(Circle((x, y), radius, facecolor=MIXED, edgecolor="none", zorder=3))
    draw_text(ax, x, y, "+", color="#FFFFFF", va="center_baseline", fontsize=size, zorder=4)
