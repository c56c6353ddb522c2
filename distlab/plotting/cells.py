"""Cells, boxes and texts on the lanes of ranks: what grids, steps and other drawings without axes are made of.

Called by `grids`, `stepping` and the course's figures, in the notebook's kernel. Lengths are in inches; y points down.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch, Rectangle
from matplotlib.textpath import TextPath

from distlab.plotting.style import FAINT, HAZE, INK, MIXED, curve_color, new_figure, rank_color, style, text_color

FONT = "DejaVu Sans"
TITLE, TEXT = 13, 12  # font sizes, in points
LINE = 0.38  # height of a line of the title
MARGIN = 0.12
LONGEST = 12  # characters of text in a cell


@dataclass(frozen=True)
class Cell:
    """One value in one slot of one rank.

    `origin` is the rank that the value came from, or "mixed" (made from several ranks' values), "shared" (several
    ranks had this value), "unknown" (unspecified), "empty" (nothing there yet) or "absent" (no slot).
    """

    value: float | str | None = None
    origin: int | str = "empty"


Rows = Sequence[Sequence[Cell]]  # by rank, of equal length


def trace(value: float | str | None, before: Sequence[Sequence[object]]) -> Cell:
    """The cell of a value, in the colour of the one rank that had it before, or neutral; "?" is unspecified.

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


@functools.cache  # one outline takes milliseconds, and a table writes the same words many times
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
    return TextPath((0, 0), text, size=size, prop={"family": family}).get_extents().x1 / 72


def canvas(width: float, height: float, title: str = "", family: str = FONT) -> tuple[Figure, Axes]:
    """An empty figure with that much room below its title, and its axes with y pointing down from there.

    Runs on: client.
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

    Runs on: client.
    """
    # All that the user's settings could change is given: style() here would take longer than all the rest.
    look = {"family": FONT, "fontsize": TEXT, "color": INK, "usetex": False, "parse_math": False}
    ax.text(x, y, text, **{"ha": "center", "va": "center", **look, **options})


def draw_lane(
    ax: Axes, x: float, y: float, width: float, height: float, color: str, name: str = "", size: float = TEXT
) -> None:
    """Draw a lane: a band with a tint of its colour and, where it has a name, that and an edge at the left.

    Runs on: client.
    """
    ax.add_patch(Rectangle((x, y), width, height, facecolor=color, alpha=HAZE, edgecolor="none"))
    if name:
        ax.add_patch(Rectangle((x, y), 0.064, height, facecolor=color, edgecolor="none"))
        draw_text(ax, x + 0.144, y + height / 2, name, ha="left", va="center_baseline", fontsize=size)


def draw_box(ax: Axes, x: float, y: float, width: float, height: float, text: str, color: str, size: float) -> None:
    """Draw a rectangle with its left upper corner at (x, y), and a text in its middle.

    Runs on: client.
    """
    ax.add_patch(Rectangle((x, y), width, height, facecolor=color, edgecolor="none"))
    draw_text(ax, x + width / 2, y + height / 2, text, va="center_baseline", fontsize=size, color=text_color(color))


def draw_cell(ax: Axes, x: float, y: float, width: float, height: float, cell: Cell, size: float = TEXT) -> None:
    """Draw a cell with its left upper corner at (x, y), coloured by the rank that its value came from.

    Runs on: client.
    """
    if isinstance(cell.origin, int):
        fill, edge = rank_color(cell.origin), curve_color(cell.origin)
    else:
        fill, edge = {"mixed": MIXED, "shared": FAINT}.get(cell.origin, "none"), INK
    scale = size / TEXT
    line = {"linewidth": 1.2 * scale, "linestyle": (0, (3, 2.5)) if cell.origin == "empty" else "solid"}
    shape = f"round,pad=0,rounding_size={0.064 * scale}"
    ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=shape, facecolor=fill, edgecolor=edge, **line))
    if cell.value is not None:
        place, text = (x + width / 2, y + height / 2), format_value(cell.value)
        draw_text(ax, *place, text, va="center_baseline", color=text_color(fill), fontsize=size)


def draw_plus(ax: Axes, x: float, y: float, radius: float, size: float) -> None:
    """Draw the sign at the end of an arrow whose numbers are added to what is there.

    Runs on: client.
    """
    ax.add_patch(Circle((x, y), radius, facecolor=MIXED, edgecolor="none", zorder=3))
    draw_text(ax, x, y, "+", color="#FFFFFF", va="center_baseline", fontsize=size, zorder=4)
