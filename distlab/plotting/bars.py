"""Bars on lanes, from the top down, and the legend that explains their looks.

Called by every figure that has lanes along an axis: lanes.py, the space-time diagram, and the
course's pipelines and memory. Runs on the notebook's kernel.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from distlab.plotting.axes import even_ticks, figure_of
from distlab.plotting.canvas import text_width
from distlab.plotting.style import (
    CURVE_COLORS,
    FAINT,
    HAZE,
    INK,
    LABEL_SIZE,
    NAME_SIZE,
    TINY_SIZE,
    WHITE,
    edge_color,
    filled,
    text_color,
)

ROW_HEIGHT = 0.3  # height of a row, in inches
LANE_GAP = 0.4  # from one lane to the next, in rows
BAR_MARGIN = 0.05  # above and below a bar, in rows
EDGED_WIDTH = 8  # pixels: the least width of a bar with an edge
TEXT_HEIGHT = 12  # pixels: the least height of a bar with a text
FULL_HEIGHT = 20  # pixels: the least height of a bar whose text is as large as asked for


class Look(NamedTuple):
    """How a bar is filled.

    Attributes:
        fill: its colour.
        words: what the legend calls it.
        hatched: whether lines are drawn over the fill.
    """

    fill: str
    words: str = ""
    hatched: bool = False


class Bar(NamedTuple):
    """A bar of a lane.

    Attributes:
        start, end: along the axis.
        look: how it is filled.
        texts: the first one that fits is written in it.
        row: where it begins, in rows below the lane's top.
        height: in rows.
    """

    start: float
    end: float
    look: Look
    texts: Sequence[str] = ()
    row: float = 0.0
    height: float = 1.0

    @property
    def middle(self) -> float:
        """The place along the axis that is as far from the start as from the end."""
        return (self.start + self.end) / 2

    @property
    def filled_height(self) -> float:
        """The height in rows without the margins above and below."""
        return self.height - 2 * BAR_MARGIN


Lanes = Mapping[str, Sequence[Bar]]  # by name, from the top down


# By what a rank does, from the lowest to the highest where one covers another: greys and navy while
# it computes, sand while data travel, so that no kind looks like a rank.
ACTIVITY_LOOKS = {
    "load": Look("#DCE1E6", "loading data"),
    "compute": Look("#58646E", "computing"),
    "forward": Look("#A3B1BC", "forward"),
    "backward": Look(CURVE_COLORS[-1], "backward"),
    "optimizer": Look("#2F383F", "optimizer"),
    "serve": Look("#7E93A3", "serving a remote call"),
    "move": Look("#C8B8A0", "communicating"),
    "exposed": Look("#94713A", "exposed communication"),
    "wait": Look(FAINT, "waiting for a partner", hatched=True),
    "lost": Look("#E58A83", "without a partner", hatched=True),
}


def stacked(lengths: Iterable[tuple[Look, float]], texts: Sequence[str]) -> list[Bar]:
    """Bars one after the other from 0 on, each with its text; lengths of 0 are left out."""
    bars = []
    start = 0.0
    for (look, length), text in zip(lengths, texts, strict=True):
        if length:
            bars.append(Bar(start, start + length, look, (text,)))
        start += length
    return bars


def used(looks: Iterable[Look], lanes: Lanes) -> list[Look]:
    """The looks that some bar has."""
    seen = {bar.look for bar in chain.from_iterable(lanes.values())}
    return [look for look in looks if look in seen]


def height_in_rows(bars: Sequence[Bar]) -> float:
    """The height of a lane with these bars, in rows."""
    return max((bar.row + bar.height for bar in bars), default=1.0)


def height_of(lanes: Lanes, gap: float = LANE_GAP) -> float:
    """The height of lanes in inches, with a gap of so many rows after each."""
    return ROW_HEIGHT * sum(height_in_rows(bars) + gap for bars in lanes.values())


def draw_lanes(
    ax: Axes,
    lanes: Lanes,
    end: float,
    unit: str = "s",
    bands: Sequence[str] = (),
    size: float = LABEL_SIZE,
    start: float = 0.0,
    gap: float = LANE_GAP,
) -> dict[str, float]:
    """Draw lanes with their names at the left and their bars, along an axis from `start` to `end`.

    Args:
        ax: axes that have their legend.
        lanes: by name, from the top down.
        end: where the axis ends.
        unit: of the axis, as for `even_ticks`.
        bands: the colours of the lanes themselves; a lane without one is not coloured.
        size: of the texts in bars, in points.
        start: where the axis begins.
        gap: from one lane to the next, in rows.

    Returns:
        Where each lane begins, in rows from the top.
    """
    tops = {}
    middles = []
    below = 0.0
    for name, bars in lanes.items():
        height = height_in_rows(bars)
        tops[name] = below
        middles.append(below + height / 2)
        below += height + gap
    ax.set_xlim(start, end)
    ax.set_ylim(below - gap + 0.1, -0.1)
    even_ticks(ax.xaxis, unit)
    _name_lanes(ax, list(lanes), middles, have_bands=bool(bands))
    for (name, bars), color in zip(lanes.items(), bands, strict=False):
        _draw_band(ax, tops[name], height_in_rows(bars), color)
    # The layout is known from here on, and with it the width of the bars.
    figure_of(ax).draw_without_rendering()
    placed = []
    for name, bars in lanes.items():
        for bar in bars:
            placed.append(bar._replace(row=tops[name] + bar.row))
    draw_bars(ax, placed, size)
    return tops


def _name_lanes(ax: Axes, names: list[str], middles: list[float], have_bands: bool) -> None:
    """Write the names of lanes at the left of their middles, further left if bands have edges."""
    ax.set_yticks(middles, names)
    ax.grid(visible=False, axis="y")
    ax.spines["left"].set_visible(not have_bands)
    ax.tick_params(axis="y", length=0, pad=8 if have_bands else 3.5)


def _draw_band(ax: Axes, top: float, height: float, color: str) -> None:
    """Draw a lane itself: a tint of its colour, and an edge at the left of the axes."""
    ax.axhspan(top, top + height, color=color, alpha=HAZE, linewidth=0, zorder=0.5)
    edge = Rectangle(
        (-0.008, top),
        0.008,
        height,
        **filled(color),
        transform=ax.get_yaxis_transform(),
        clip_on=False,
    )
    ax.add_patch(edge)


def draw_bars(ax: Axes, bars: Sequence[Bar], size: float) -> None:
    """Draw bars, and in each its text where that fits; the figure's layout must be known.

    Args:
        ax: axes with their limits.
        bars: their rows count from the top of the axes.
        size: of the texts, in points.
    """
    # pixels of a unit of the x axis, and of a row
    to_pixels = ax.transData.transform
    across, down = abs(to_pixels((1, 1)) - to_pixels((0, 0)))
    # bars that look alike in a row are one artist of matplotlib
    alike: dict[tuple[Look, float, float, bool], list[Bar]] = {}
    for bar in bars:
        has_edge = (bar.end - bar.start) * across >= EDGED_WIDTH
        alike.setdefault((bar.look, bar.row, bar.height, has_edge), []).append(bar)
    for (look, row, _, has_edge), some in alike.items():
        colors = outline(look)
        if not has_edge:  # neither hatched, nor white at the edges
            edge = edge_color(look.fill)
            colors = {"facecolor": look.fill, "edgecolor": edge, "linewidth": 0.7}
        ax.broken_barh(
            [(bar.start, bar.end - bar.start) for bar in some],
            (row + BAR_MARGIN, some[0].filled_height),
            zorder=2,
            **colors,
        )
    _write_texts(ax, bars, size, across, down)


def _write_texts(ax: Axes, bars: Sequence[Bar], size: float, across: float, down: float) -> None:
    """Write into each bar the first of its texts that fits, where no other text of its row is.

    Args:
        ax, bars, size: as for `draw_bars`.
        across: pixels of a unit of the x axis.
        down: pixels of a row.
    """
    dpi = figure_of(ax).dpi
    written: dict[float, list[tuple[float, float]]] = {}  # by row, from where to where
    for bar in bars:
        height = bar.filled_height * down
        if height < TEXT_HEIGHT:
            continue
        points = size if height >= FULL_HEIGHT else min(size, TINY_SIZE)
        text = _first_that_fits(bar.texts, points, dpi, (bar.end - bar.start) * across)
        if not text:
            continue
        half = _pixels(text, points, dpi) / across / 2
        left = bar.middle - half
        right = bar.middle + half
        others = written.setdefault(bar.row, [])
        if all(right < other_left or other_right < left for other_left, other_right in others):
            others.append((left, right))
            _write_text(ax, bar, text, points)


def _first_that_fits(texts: Sequence[str], points: float, dpi: float, room: float) -> str:
    """The first of the texts that needs at most `room` pixels; "" if none does."""
    for text in texts:
        if _pixels(text, points, dpi) <= room:
            return text
    return ""


def _pixels(text: str, points: float, dpi: float) -> float:
    """The width in pixels that a text needs, with a little space at its ends."""
    return text_width(text, points) * dpi + 4


def _write_text(ax: Axes, bar: Bar, text: str, points: float) -> None:
    """Write a text in the middle of a bar, on a box that keeps hatches and arrows from it."""
    written = ax.text(
        bar.middle,
        bar.row + bar.height / 2,
        text,
        color=text_color(bar.look.fill),
        ha="center",
        va="center_baseline",
        fontsize=points,
        bbox={
            "facecolor": bar.look.fill,
            "edgecolor": "none",
            "pad": 1.2 if bar.look.hatched else 0.3,
        },
        parse_math=False,
        zorder=9,
        clip_on=True,
    )
    corner = (bar.start, bar.row + BAR_MARGIN)
    length = bar.end - bar.start
    inside = Rectangle(corner, length, bar.filled_height, transform=ax.transData)
    written.set_clip_path(inside)


def outline(look: Look) -> dict[str, Any]:
    """The fill of a shape with this look, its edge and its hatch, as matplotlib's options.

    Neighbours are apart by a white edge, or by a darker one where the fill is light.
    """
    look_of_edge: dict[str, Any] = {"linewidth": 0.7, "edgecolor": edge_color(look.fill)}
    if look.hatched:
        look_of_edge |= {"edgecolor": INK, "hatch": "////"}
    elif look_of_edge["edgecolor"] == look.fill:
        look_of_edge["edgecolor"] = WHITE
    return {"facecolor": look.fill, **look_of_edge}


def legend_below(
    ax: Axes, looks: Sequence[Look], lines: Sequence[Any] = (), columns: int = 3
) -> None:
    """Draw a legend of looks and of lines with their labels below the axes; none if both are empty.

    Args:
        ax: axes of a figure whose layout is "constrained".
        looks: the fills to explain.
        lines: artists that have labels.
        columns: how many entries stand side by side.
    """
    handles: list[Any] = []
    for look in looks:
        handles.append(Patch(label=look.words, **outline(look)))
    handles.extend(lines)
    if not handles:
        return
    figure_of(ax).legend(
        handles=handles,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=NAME_SIZE,
    )
