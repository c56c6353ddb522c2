"""Data as cells on the lanes of ranks: what the diagrams and the before/after grids are both made of.

Called by `diagrams` and `grids`. Runs in the notebook's process.
Lengths are in units of one lane's cell; y points down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.textpath import TextPath

from distlab.plotting.style import FAINT, HAZE, INK, MIXED, curve_color, new_figure, rank_color, style, text_color

UNIT = 0.4  # inches
PITCH = 1.16  # from one lane to the next
TITLE = 13  # font sizes, in points
TEXT = 12
LONGEST = 12  # characters of text in a cell
MARGIN = 0.3


@dataclass(frozen=True)
class Cell:
    """One value in one slot of one rank.

    `origin` is the rank that the value came from, or "mixed" (made from several ranks' values), "shared" (several
    ranks had this value), "unknown" (unspecified) or "empty" (nothing there).
    """

    value: float | str | None = None
    origin: int | str = "empty"


Rows = Sequence[Sequence[Cell]]  # by rank, of equal length


def format_value(value: float | str | None) -> str:
    """A value as the text of its cell: integral numbers as integers, others with three digits.

    Runs on: anywhere.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        line = " ".join(value.split())
        return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
    integral = float(value).is_integer() and abs(value) < 1e6
    return str(int(value)) if integral else f"{value:.3g}"


def text_width(text: str, size: float, family: str = "DejaVu Sans") -> float:
    """Width of a text, in units.

    Runs on: anywhere.

    Args:
        text: one line.
        size: its font size in points.
        family: its font.
    """
    if not text.strip():
        return 0.0
    return TextPath((0, 0), text, size=size, prop={"family": family}).get_extents().x1 / 72 / UNIT


def canvas(width: float, height: float, title: str = "", family: str = "DejaVu Sans") -> tuple[Figure, Axes]:
    """An empty figure with that many units below its title, and its axes with y pointing down from there.

    Runs on: client.
    """
    lines = title.splitlines()
    width = max([width] + [text_width(line, TITLE, family) + 0.1 for line in lines])
    top = 0.95 * len(lines)
    size = (width + 2 * MARGIN, height + top + 2 * MARGIN)
    figure = new_figure(size[0] * UNIT, size[1] * UNIT)
    with style():
        ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(-MARGIN, width + MARGIN), ylim=(height + MARGIN, -top - MARGIN))
    ax.set_axis_off()
    for i, line in enumerate(lines):
        draw_text(ax, 0, i * 0.95 - top + 0.35, line, ha="left", fontsize=TITLE, family=family)
    return figure, ax


def draw_text(ax: Axes, x: float, y: float, text: str, **options: object) -> None:
    """Write a text centred on (x, y); matplotlib's text options change that.

    Runs on: client.
    """
    # All that the user's settings could change is given: style() here would take longer than all the rest.
    look = {"family": "DejaVu Sans", "fontsize": TEXT, "color": INK, "usetex": False, "parse_math": False}
    ax.text(x, y, text, **{"ha": "center", "va": "center", **look, **options})


def draw_lane(ax: Axes, y: float, rank: int, width: float) -> None:
    """Draw the lane of a rank: a band in its colour from x=0 to `width`, with its name at the left.

    Runs on: client.
    """
    color = rank_color(rank)
    ax.add_patch(Rectangle((0, y), width, 1, facecolor=color, alpha=HAZE, edgecolor="none"))
    ax.add_patch(Rectangle((0, y), 0.16, 1, facecolor=color, edgecolor="none"))
    draw_text(ax, 0.36, y + 0.5, f"rank {rank}", ha="left", va="center_baseline")


def label_width(ranks: int) -> float:
    """Width that the lanes' names need.

    Runs on: anywhere.
    """
    return text_width(f"rank {ranks - 1}", TEXT) + 0.8


def draw_cell(ax: Axes, x: float, y: float, cell: Cell, width: float = 1.0) -> None:
    """Draw a cell with its left upper corner at (x, y), coloured by the rank that its value came from.

    Runs on: client.
    """
    looks = {
        "mixed": {"facecolor": MIXED, "edgecolor": INK},
        "shared": {"facecolor": FAINT, "edgecolor": INK},
        "unknown": {"facecolor": "none", "edgecolor": INK},
        "empty": {"facecolor": "none", "edgecolor": INK, "linestyle": (0, (3, 2.5))},
    }
    if isinstance(cell.origin, int):
        look = {"facecolor": rank_color(cell.origin), "edgecolor": curve_color(cell.origin)}
    else:
        look = looks[cell.origin]
    shape = "round,pad=0,rounding_size=0.16"
    ax.add_patch(FancyBboxPatch((x + 0.08, y + 0.08), width - 0.16, 0.84, boxstyle=shape, linewidth=1.2, **look))
    if cell.value is not None:
        color = INK if cell.origin == "unknown" else text_color(look["facecolor"])
        draw_text(ax, x + width / 2, y + 0.5, format_value(cell.value), va="center_baseline", color=color)


def slot_width(panels: Sequence[Rows], slots: Sequence[str] = ()) -> float:
    """Width of a slot in every panel: that of the longest value or slot name, 1 for up to three digits.

    Runs on: anywhere.
    """
    texts = [format_value(cell.value) for rows in panels for row in rows for cell in row]
    return max([1.0] + [text_width(text, TEXT) + 0.4 for text in [*texts, *slots]])


def head_height(slots: Sequence[str]) -> float:
    """Height of what stands above the lanes: the heading and the slots' names.

    Runs on: anywhere.
    """
    return 1.6 if slots else 0.9


def draw_panel(ax: Axes, x: float, y: float, heading: str, rows: Rows, width: float, slots: Sequence[str] = ()) -> None:
    """Draw a heading, the slots' names and each rank's cells.

    Runs on: client.
    """
    draw_text(ax, x + len(rows[0]) * width / 2, y + 0.4, heading, color=INK)
    for slot, name in enumerate(slots[: len(rows[0])]):
        draw_text(ax, x + (slot + 0.5) * width, y + 1.15, name, color=INK)
    for rank, row in enumerate(rows):
        for slot, cell in enumerate(row):
            draw_cell(ax, x + slot * width, y + head_height(slots) + rank * PITCH, cell, width)


def side_by_side(
    before: Rows, after: Rows, gap: float, title: str, family: str, slots: Sequence[str] = ()
) -> tuple[Figure, Axes, tuple[float, float], list[float]]:
    """Draw two panels on the same lanes, with a gap between them for whatever leads from one to the other.

    Runs on: client.

    Returns:
        The figure, its axes, where the gap begins and ends, and the height of each lane's middle.
    """
    width, left, head = slot_width((before, after), slots), label_width(len(before)), head_height(slots)
    start = left + len(before[0]) * width
    lanes = start + gap + len(after[0]) * width + 0.2
    figure, ax = canvas(lanes, head + len(before) * PITCH - (PITCH - 1), title, family)
    for rank in range(len(before)):
        draw_lane(ax, head + rank * PITCH, rank, lanes)
    draw_panel(ax, left, 0, "before", before, width, slots)
    draw_panel(ax, start + gap, 0, "after", after, width, slots)
    return figure, ax, (start, start + gap), [head + rank * PITCH + 0.5 for rank in range(len(before))]


def stacked(before: Rows, after: Rows, title: str, family: str, slots: Sequence[str] = ()) -> Figure:
    """Draw the panel before above the panel after.

    Runs on: client.
    """
    width, left, head = slot_width((before, after), slots), label_width(len(before)), head_height(slots)
    lanes = left + max(len(before[0]), len(after[0])) * width + 0.2
    block = head + len(before) * PITCH + 0.2
    figure, ax = canvas(lanes, 2 * block - 0.2 - (PITCH - 1), title, family)
    for heading, rows, y in (("before", before, 0.0), ("after", after, block)):
        for rank in range(len(rows)):
            draw_lane(ax, y + head + rank * PITCH, rank, lanes)
        draw_panel(ax, left, y, heading, rows, width, slots)
    return figure
