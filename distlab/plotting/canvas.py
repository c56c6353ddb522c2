"""Parts of drawings: an empty figure with a title, and texts, lanes, boxes and arrows on it.

Called by every figure that is made of boxes and arrows: of `distlab.plotting`, of the course and of
tools/diagrams.py. Runs on the notebook's kernel. Lengths are in inches; y points down.
"""

import functools
from typing import Any

from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle
from matplotlib.textpath import TextPath

from distlab.plotting.drawing import Drawing
from distlab.plotting.style import (
    FONT,
    HAZE,
    INK,
    MIXED,
    TEXT_SIZE,
    TITLE_SIZE,
    WHITE,
    filled,
    new_figure,
    style,
    text_color,
)

TITLE_LINE = 0.38  # height of a line of the title
PAGE_MARGIN = 0.12  # around all that is drawn
LANE_EDGE = 0.064  # width of the edge of a lane that has a name
OUTLINE_LOOK = {"linestyle": (0, (3, 2)), "linewidth": 1.4}  # the edge of an empty box


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
    outline = TextPath((0, 0), text, size=size, prop=FontProperties(family=family))
    return outline.vertices[:, 0].max() / 72


def new_canvas(
    width: float, height: float, title: str = "", family: str = FONT
) -> tuple[Drawing, Axes]:
    """An empty figure with that much space below its title, and axes whose y is 0 there.

    A title that is wider than the space makes the figure wider.

    Runs on: the notebook's kernel.

    Args:
        width: of what is drawn.
        height: of what is drawn.
        title: in one or more lines.
        family: the font of the title.
    """
    lines = title.splitlines()
    for line in lines:
        width = max(width, text_width(line, TITLE_SIZE, family) + 0.04)
    top = TITLE_LINE * len(lines)
    figure = new_figure(width + 2 * PAGE_MARGIN, height + top + 2 * PAGE_MARGIN)
    with style():
        ax = figure.add_axes((0, 0, 1, 1))
    ax.set_xlim(-PAGE_MARGIN, width + PAGE_MARGIN)
    ax.set_ylim(height + PAGE_MARGIN, -top - PAGE_MARGIN)
    ax.set_axis_off()
    look = {"ha": "left", "fontsize": TITLE_SIZE, "family": family}
    for place, line in enumerate(lines):
        draw_text(ax, 0, place * TITLE_LINE - top + 0.14, line, **look)
    return figure, ax


def draw_text(ax: Axes, x: float, y: float, text: str, **options: Any) -> None:
    """Write a text centred on (x, y); matplotlib's text options change that.

    Runs on: the notebook's kernel.
    """
    # All that the user's settings could change is given: style() here would take longer than all
    # the rest.
    defaults = {
        "ha": "center",
        "va": "center",
        "family": FONT,
        "fontsize": TEXT_SIZE,
        "color": INK,
        "usetex": False,
        "parse_math": False,
    }
    look: dict[str, Any] = {**defaults, **options}
    ax.text(x, y, text, **look)


def draw_lane(
    ax: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    color: str,
    name: str = "",
    size: float = TEXT_SIZE,
) -> None:
    """Draw a lane, a band in a tint of its colour; with a name, it has an edge at the left.

    Runs on: the notebook's kernel.

    Args:
        ax: axes of a canvas.
        x: the left edge.
        y: the upper edge.
        width: of the lane.
        height: of the lane.
        color: as `#rrggbb`.
        name: written at the left; "" for none.
        size: of the name in points.
    """
    band = Rectangle((x, y), width, height, facecolor=color, alpha=HAZE, edgecolor="none")
    ax.add_artist(band)
    if name:
        edge = Rectangle((x, y), LANE_EDGE, height, **filled(color))
        ax.add_artist(edge)
        middle = y + height / 2
        draw_text(ax, x + 0.144, middle, name, ha="left", va="center_baseline", fontsize=size)


def draw_box(
    ax: Axes, x: float, y: float, width: float, height: float, text: str, color: str, size: float
) -> Rectangle:
    """Draw a rectangle with its upper left corner at (x, y) and a text in the middle.

    Runs on: the notebook's kernel.

    Returns:
        The rectangle, without its text.
    """
    look = {"facecolor": "none"} if color == "none" else filled(color)
    box = Rectangle((x, y), width, height, **look)
    ax.add_artist(box)
    words = {"va": "center_baseline", "fontsize": size, "color": text_color(color)}
    draw_text(ax, x + width / 2, y + height / 2, text, **words)
    return box


def draw_outline(
    ax: Axes, x: float, y: float, width: float, height: float, text: str, color: str, size: float
) -> None:
    """Like `draw_box`, but only the edge has the colour, and it is dashed.

    Runs on: the notebook's kernel.
    """
    box = draw_box(ax, x, y, width, height, text, "none", size)
    box.set(edgecolor=color, **OUTLINE_LOOK)


def draw_arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw a thin straight arrow from one place to another.

    Runs on: the notebook's kernel.
    """
    arrow = FancyArrowPatch(
        start,
        end,
        arrowstyle="-|>",
        mutation_scale=12,
        color=INK,
        linewidth=1.2,
        shrinkA=0,
        shrinkB=0,
    )
    ax.add_patch(arrow)


def draw_plus(ax: Axes, x: float, y: float, radius: float, size: float) -> None:
    """Draw the plus at the end of an arrow whose numbers are added to what is there.

    Runs on: the notebook's kernel.
    """
    ax.add_artist(Circle((x, y), radius, facecolor=MIXED, edgecolor="none", zorder=3))
    draw_text(ax, x, y, "+", color=WHITE, va="center_baseline", fontsize=size, zorder=4)
