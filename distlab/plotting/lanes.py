"""Bars on lanes from the top down: what was done when, where time went, how long each way took.

Every figure with lanes is drawn with this, the space-time diagram included. Runs in the notebook's kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch, Rectangle

from distlab.plotting.axes import SMALL, even_ticks, new_axes, short
from distlab.plotting.cells import text_width
from distlab.plotting.style import FAINT, HAZE, INK, MIXED, curve_color, rank_color, text_color
from distlab.text import grouped
from distlab.traces.events import pack

ROW, GAP = 0.3, 0.4  # height of a row in inches; from one lane to the next, in rows
WIDE_ENOUGH, HIGH_ENOUGH = 8, 12  # pixels of a box with an edge, and of one with a text
HIGH, LOW_SIZE = 20, 8.5  # pixels of a box whose text is as large as asked for; of others, at most this many points
THIN, COLUMN = 2.0, 5.0  # pixels: of the narrowest box, and of a column that several narrower ones share
LEGEND = 10  # font size, in points


class Look(NamedTuple):
    """How a bar is filled, and what the legend calls it."""

    fill: str
    words: str = ""
    hatched: bool = False


class Bar(NamedTuple):
    """A bar of a lane from `start` to `end`, in that row of the lane; of its texts the first that fits is written."""

    start: float
    end: float
    look: Look
    texts: Sequence[str] = ()
    row: int = 0


class Box(NamedTuple):
    """A bar in the coordinates of its axes."""

    look: Look
    left: float
    right: float
    top: float
    bottom: float
    texts: Sequence[str] = ()


# By what a rank does, from the lowest to the highest where they are drawn on top of each other: greys, cool while it
# computes and warm while data travel, so that no kind looks like a rank.
LOOKS = {
    "compute": Look("#58646E", "computing"),
    "forward": Look("#A3B1BC", "forward"),
    "backward": Look("#58646E", "backward"),
    "optimizer": Look("#2F383F", "optimizer"),
    "serve": Look("#7E93A3", "serving a remote call"),
    "move": Look("#C8B8A0", "communicating"),
    "wait": Look(FAINT, "waiting for a partner", hatched=True),
}
# by attribute of `Trace.shares()`
SHARES = {
    "compute": LOOKS["compute"]._replace(words="computes"),
    "hidden": LOOKS["forward"]._replace(words="computes while data travel"),
    "communicate": LOOKS["move"]._replace(words="data travel"),
    "wait": LOOKS["wait"]._replace(words="waits for others"),
    "other": Look(MIXED, "other"),
}


# --- figures ---


def spans(lanes: Mapping[str, Sequence[tuple]], title: str = "") -> Axes:
    """Draw what was done when, a lane for each name from the top down.

    Bars of a lane that overlap are drawn one below the other. The time is counted from the first start.

    Runs on: client.

    Args:
        lanes: by name, bars: (start, end, text), times in seconds, in the colour of the lane, which is that of rank n
            for the n-th; or (start, end, text, what), where that is one of "compute", "forward", "backward",
            "optimizer", "serve", "move" and "wait", as the `parts` of a trace's events have it.
        title: what was measured.

    Returns:
        The axes of a new figure, which a notebook shows when its cell ends.
    """
    zero = min(bar[0] for bars in lanes.values() for bar in bars)
    end = max(bar[1] for bars in lanes.values() for bar in bars) - zero
    drawn = {}
    for place, (name, bars) in enumerate(lanes.items()):
        looks = [LOOKS[bar[3]] if len(bar) > 3 else Look(rank_color(place)) for bar in bars]
        pairs = zip(bars, looks, strict=True)
        drawn[name] = in_rows(Bar(bar[0] - zero, bar[1] - zero, look, (bar[2],)) for bar, look in pairs)
    kinds = [look for look in LOOKS.values() if any(bar.look == look for bars in drawn.values() for bar in bars)]
    with new_axes(7.2, height_of(drawn) + 0.9 + 0.6 * bool(kinds), title=title, xlabel="time") as ax:
        legend_below(ax, kinds)
        draw_lanes(ax, drawn, 1.01 * end, bands=[] if kinds else [*map(rank_color, range(len(lanes)))])
    return ax


def time_shares(bars: Mapping[str, Any], title: str = "", relative: bool = False) -> Axes:
    """Draw where time went, a bar for each name from the top down; its parts add up to its length.

    Runs on: client.

    Args:
        bars: by name, for example "rank 0", seconds in parts: the values of `Trace.shares()`.
        title: what was traced.
        relative: draw each bar as 100 % of its own time, to compare bars of very different lengths.

    Returns:
        The axes of a new figure, which a notebook shows when its cell ends.
    """
    parts = {name: {kind: getattr(shares, kind) for kind in SHARES} for name, shares in bars.items()}
    totals = {name: sum(seconds.values()) or 1 for name, seconds in parts.items()}
    drawn = {}
    for name, seconds in parts.items():
        lengths = [(SHARES[kind], s * (100 / totals[name] if relative else 1)) for kind, s in seconds.items()]
        drawn[name] = stacked(lengths, [f"{s / totals[name]:.0%}" for s in seconds.values()])
    xlabel, end, unit = ("share of the time", 102, "%") if relative else ("time", 1.02 * max(totals.values()), "s")
    with new_axes(6.4, height_of(drawn) + 1.5, title=title, xlabel=xlabel) as ax:
        legend_below(ax, [SHARES[kind] for kind in SHARES if any(seconds[kind] > 0 for seconds in parts.values())])
        draw_lanes(ax, drawn, end, unit)
    return ax


def step_times(steps: Mapping[str, tuple[float, float, float]], title: str = "") -> Axes:
    """Draw how long a step takes, done in several ways, as bars from the top down.

    Runs on: client.

    Args:
        steps: by name of the way, the median time of a step, and a low and a high one, in seconds.
        title: what was measured.

    Returns:
        The axes of a new figure, which a notebook shows when its cell ends.
    """
    with new_axes(5.6, 0.9 + 0.5 * len(steps), title=title, xlabel="time of one step") as ax:
        draw_lanes(ax, dict.fromkeys(steps, ()), 1.18 * max(max(times) for times in steps.values()))
        for place, (median, low, high) in enumerate(steps.values()):
            y, color = place * (1 + GAP) + 0.5, curve_color(place)
            ax.barh(y, median, height=0.9, color=color, alpha=0.5)
            ax.plot([low, high], [y, y], color=color, linewidth=1.5)
            beside = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
            ax.annotate(short(median, "s"), (max(high, median), y), **beside)
    return ax


# --- what they are made of ---


def in_rows(bars: Iterable[Bar]) -> list[Bar]:
    """Bars in as few rows as needed, so that none overlaps another one of its row."""
    return [bar._replace(row=row) for row, packed in enumerate(pack(bars)) for bar in packed]


def stacked(lengths: Iterable[tuple[Look, float]], texts: Sequence[str]) -> list[Bar]:
    """Bars one after the other from 0 on, each with its text."""
    bars, left = [], 0.0
    for (look, length), text in zip(lengths, texts, strict=True):
        bars.append(Bar(left, left + length, look, (text,)))
        left += length
    return bars


def rows_of(bars: Sequence[Bar]) -> int:
    """How many rows a lane has."""
    return 1 + max((bar.row for bar in bars), default=0)


def height_of(lanes: Mapping[str, Sequence[Bar]]) -> float:
    """The height of lanes in inches."""
    return ROW * sum(rows_of(bars) + GAP for bars in lanes.values())


def draw_lanes(
    ax: Axes,
    lanes: Mapping[str, Sequence[Bar]],
    end: float,
    unit: str = "s",
    bands: Sequence[str] = (),
    size: float = SMALL,
) -> dict[str, float]:
    """Draw lanes with their names at the left and their bars, along a line from 0 to `end`.

    Args:
        bands: the colours of the lanes themselves; none is drawn without one.
        size: of the texts in bars, in points.

    Returns:
        Where each lane begins, in rows from the top.
    """
    tops, top = {}, 0.0
    for name, bars in lanes.items():
        tops[name] = top
        top += rows_of(bars) + GAP
    middles = [tops[name] + rows_of(bars) / 2 for name, bars in lanes.items()]
    ax.set(xlim=(0, end), ylim=(top - GAP + 0.1, -0.1), yticks=middles, yticklabels=lanes)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)
    even_ticks(ax.xaxis, unit)
    for (name, bars), color in zip(lanes.items(), bands, strict=False):
        draw_band(ax, tops[name], tops[name] + rows_of(bars), color)
    if ax.figure.get_layout_engine() is not None:
        ax.figure.draw_without_rendering()  # the layout, and so the width of the boxes, is known from here on
    placed = ((bar, tops[name] + bar.row) for name, bars in lanes.items() for bar in bars)
    draw_boxes(ax, [Box(bar.look, bar.start, bar.end, y + 0.05, y + 0.95, bar.texts) for bar, y in placed], size)
    return tops


def draw_band(ax: Axes, top: float, bottom: float, color: str) -> None:
    """Draw a lane: a tint of its colour across the axes, and an edge at the left."""
    look = {"facecolor": color, "edgecolor": "none", "transform": ax.get_yaxis_transform(), "zorder": 0.5}
    ax.add_patch(Rectangle((0, top), 1, bottom - top, alpha=HAZE, **look))
    ax.add_patch(Rectangle((-0.008, top), 0.008, bottom - top, clip_on=False, **look))
    ax.tick_params(axis="y", pad=8)


def draw_boxes(ax: Axes, boxes: Sequence[Box], size: float = SMALL) -> None:
    """Draw boxes, and in each its text where that fits; the figure's layout must be known."""
    across, down = abs(ax.transData.transform((1, 1)) - ax.transData.transform((0, 0)))  # pixels
    kinds = grouped(((box.look, (box.right - box.left) * across >= WIDE_ENOUGH), box) for box in boxes)
    for (look, edged), alike in kinds.items():
        shapes = [[(b.left, b.top), (b.right, b.top), (b.right, b.bottom), (b.left, b.bottom)] for b in alike]
        edge = outline(look) if edged else {"linewidth": 0, "antialiased": False}
        ax.add_collection(PolyCollection(shapes, facecolor=look.fill, zorder=2, **edge), autolim=False)
    written: dict[float, list[tuple[float, float]]] = {}  # by top, from where to where there are texts
    for box in boxes:
        wide, high = (box.right - box.left) * across, (box.bottom - box.top) * down
        points = size if high >= HIGH else min(size, LOW_SIZE)
        space = max(wide - 6, 0.8 * wide) / ax.figure.dpi
        text = next((text for text in box.texts if text_width(text, points) <= space), "")
        middle, half = (box.left + box.right) / 2, text_width(text, points) * ax.figure.dpi / across / 2
        beside = all(middle + half < left or right < middle - half for left, right in written.get(box.top, ()))
        if text and high >= HIGH_ENOUGH and beside:
            written.setdefault(box.top, []).append((middle - half, middle + half))
            look = {"color": text_color(box.look.fill), "ha": "center", "va": "center_baseline", "fontsize": points}
            if box.look.hatched:
                look["bbox"] = {"facecolor": box.look.fill, "edgecolor": "none", "pad": 1.2}
            ax.text(middle, (box.top + box.bottom) / 2, text, parse_math=False, zorder=9, **look)


def without_crowds(boxes: Iterable[Box]) -> tuple[list[Box], int]:
    """Boxes in pixels, those that are higher in `LOOKS` last, and how many of them stand for several.

    Those that are wide enough are drawn as they are. Of the others, one that is alone is drawn a little wider; where
    they crowd, each column of pixels shows what share of its time went where.
    """
    boxes, columns = list(boxes), 0
    narrow = [box for box in boxes if box.right - box.left < COLUMN]
    boxes = [box for box in boxes if box.right - box.left >= COLUMN]
    for (_, place), crowd in grouped(((box.top, int(box.left / COLUMN)), box) for box in narrow).items():
        if len(crowd) == 1:
            boxes.append(crowd[0]._replace(right=max(crowd[0].right, crowd[0].left + THIN)))
        else:
            columns += 1
            boxes += column(crowd, place * COLUMN)
    return sorted(boxes, key=lambda box: [*LOOKS.values()].index(box.look)), columns


def column(crowd: Sequence[Box], left: float) -> list[Box]:
    """Boxes on top of each other whose heights are the looks' shares of the column's time, from the bottom up."""
    shares: Counter[Look] = Counter()
    for box in crowd:
        shares[box.look] += box.right - box.left
    total = max(shares.total(), COLUMN)
    boxes, bottom = [], crowd[0].bottom
    for look in sorted(shares):
        top = bottom - shares[look] / total * (crowd[0].bottom - crowd[0].top)
        boxes.append(Box(look, left, left + COLUMN, top, bottom))
        bottom = top
    return boxes


def outline(look: Look) -> dict[str, Any]:
    """The edge of a shape with this look, and its hatch."""
    edge = {"edgecolor": INK, "hatch": "////"} if look.hatched else {"edgecolor": "#FFFFFF"}
    return {"linewidth": 0.7, **edge}


def legend_below(ax: Axes, looks: Sequence[Look], lines: Sequence[Any] = (), columns: int = 3) -> None:
    """Draw a legend below the axes, of looks and of lines with their labels."""
    handles = [*(Patch(facecolor=look.fill, label=look.words, **outline(look)) for look in looks), *lines]
    if handles:
        place = {"loc": "outside lower center", "ncols": columns, "frameon": False, "fontsize": LEGEND}
        ax.figure.legend(handles=handles, **place)
