"""Bars on lanes, from the top down: what was done when, where the time went, how long each way
took.

Every figure with lanes is drawn with this, the space-time diagram included. Runs in the notebook's
kernel.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from distlab.plotting.axes import SMALL, even_ticks, new_axes, short
from distlab.plotting.cells import text_width
from distlab.plotting.style import (
    CURVES,
    FAINT,
    HAZE,
    INK,
    MIXED,
    curve_color,
    rank_color,
    text_color,
)
from distlab.traces.events import pack
from distlab.words import grouped

ROW, GAP = 0.3, 0.4  # height of a row in inches; from one lane to the next, in rows
MARGIN = 0.05  # above and below a bar, in rows
WIDE_ENOUGH, HIGH_ENOUGH = 8, 12  # pixels of a bar with an edge, and of one with a text
# pixels of a bar whose text is as large as asked for; of others, at most this many points
HIGH, LOW_SIZE = 20, 8.5
LEGEND = 10  # font size, in points


class Look(NamedTuple):
    """How a bar is filled, and what the legend calls it."""

    fill: str
    words: str = ""
    hatched: bool = False


class Bar(NamedTuple):
    """A bar of a lane from `start` to `end`, `row` below the lane's top; the first of its texts
    that fits is written.

    `row` and `height` are in rows.
    """

    start: float
    end: float
    look: Look
    texts: Sequence[str] = ()
    row: float = 0.0
    height: float = 1.0


# By what a rank does, from the lowest to the highest where one covers another: greys and navy while
# it computes, sand while data travel, so that no kind looks like a rank.
LOOKS = {
    "compute": Look("#58646E", "computing"),
    "forward": Look("#A3B1BC", "forward"),
    "backward": Look(CURVES[-1], "backward"),
    "optimizer": Look("#2F383F", "optimizer"),
    "serve": Look("#7E93A3", "serving a remote call"),
    "move": Look("#C8B8A0", "communicating"),
    "exposed": Look("#94713A", "exposed communication"),
    "wait": Look(FAINT, "waiting for a partner", hatched=True),
    "lost": Look("#E58A83", "without a partner", hatched=True),
}
# in the order of `Trace.shares()`
SHARES = (
    LOOKS["compute"]._replace(words="computing"),
    LOOKS["forward"]._replace(words="computing while data travel"),
    LOOKS["exposed"],
    LOOKS["wait"]._replace(words="waiting for others"),
    Look(MIXED, "other"),
)


# --- figures ---


def spans(lanes: Mapping[str, Sequence[tuple]], title: str = "") -> Axes:
    """Draw what was done when, a lane for each name from the top down.

    Bars of a lane that overlap are drawn one below the other. Time counts from the first start.

    Runs on: the notebook's kernel.

    Args:
        lanes: by name, bars: (start, end, text), times in seconds, in the colour of the lane, which
            is that of rank n for the n-th lane; or (start, end, text, what), where `what` is one of
            "compute", "forward", "backward", "optimizer", "serve", "move", "exposed" and "wait", as
            in the `parts` of a trace's events.
        title: what was measured.

    Returns:
        The axes of a new figure, which a notebook shows when its cell ends.
    """
    zero = min(bar[0] for bars in lanes.values() for bar in bars)
    end = max(bar[1] for bars in lanes.values() for bar in bars) - zero
    drawn = {}
    for place, (name, bars) in enumerate(lanes.items()):
        plain = Look(rank_color(place))
        own = [
            Bar(b[0] - zero, b[1] - zero, LOOKS[b[3]] if len(b) > 3 else plain, (b[2],))
            for b in bars
        ]
        drawn[name] = [
            bar._replace(row=row) for row, packed in enumerate(pack(own)) for bar in packed
        ]
    kinds = used(LOOKS.values(), drawn)
    with new_axes(
        7.2, height_of(drawn) + 0.9 + 0.6 * bool(kinds), title=title, xlabel="time"
    ) as ax:
        legend_below(ax, kinds)
        draw_lanes(
            ax, drawn, 1.01 * end, bands=[] if kinds else [*map(rank_color, range(len(lanes)))]
        )
    return ax


def time_shares(
    bars: Mapping[str, Sequence[float]], title: str = "", relative: bool = False
) -> Axes:
    """Draw where the time went, a bar for each name from the top down, whose parts add up to its
    length.

    Runs on: the notebook's kernel.

    Args:
        bars: by name, for example "rank 0", the values of `Trace.shares()`.
        title: what was traced.
        relative: draw each bar as 100 % of its own time, to compare bars of very different lengths.

    Returns:
        The axes of a new figure, which a notebook shows when its cell ends.
    """
    drawn = {}
    for name, parts in bars.items():
        whole = sum(parts) or 1
        lengths = [100 * seconds / whole if relative else seconds for seconds in parts]
        drawn[name] = stacked(
            zip(SHARES, lengths, strict=True), [f"{seconds / whole:.0%}" for seconds in parts]
        )
    xlabel, end, unit = (
        ("share of the time", 100, "%") if relative else ("time", max(map(sum, bars.values())), "s")
    )
    with new_axes(6.4, height_of(drawn) + 1.5, title=title, xlabel=xlabel) as ax:
        legend_below(ax, used(SHARES, drawn))
        draw_lanes(ax, drawn, 1.02 * end, unit)
    return ax


def step_times(steps: Mapping[str, tuple[float, float, float]], title: str = "") -> Axes:
    """Draw how long a step takes when done in several ways, as bars from the top down.

    Runs on: the notebook's kernel.

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


def stacked(lengths: Iterable[tuple[Look, float]], texts: Sequence[str]) -> list[Bar]:
    """Bars one after the other from 0 on, each with its text."""
    bars, left = [], 0.0
    for (look, length), text in zip(lengths, texts, strict=True):
        if length:
            bars.append(Bar(left, left + length, look, (text,)))
        left += length
    return bars


def used(looks: Iterable[Look], lanes: Mapping[str, Sequence[Bar]]) -> list[Look]:
    """The looks that some bar has."""
    return [
        look for look in looks if any(bar.look == look for bars in lanes.values() for bar in bars)
    ]


def rows_of(bars: Sequence[Bar]) -> float:
    """How many rows a lane has."""
    return max((bar.row + bar.height for bar in bars), default=1.0)


def height_of(lanes: Mapping[str, Sequence[Bar]], gap: float = GAP) -> float:
    """The height of lanes in inches."""
    return ROW * sum(rows_of(bars) + gap for bars in lanes.values())


def draw_lanes(
    ax: Axes,
    lanes: Mapping[str, Sequence[Bar]],
    end: float,
    unit: str = "s",
    bands: Sequence[str] = (),
    size: float = SMALL,
    start: float = 0.0,
    gap: float = GAP,
) -> dict[str, float]:
    """Draw lanes with their names at the left and their bars, along an axis from `start` to `end`.

    Args:
        bands: the colours of the lanes themselves; a lane without one is not coloured.
        size: of the texts in bars, in points.
        gap: from one lane to the next, in rows.

    Returns:
        Where each lane begins, in rows from the top.
    """
    tops, top = {}, 0.0
    for name, bars in lanes.items():
        tops[name] = top
        top += rows_of(bars) + gap
    middles = [tops[name] + rows_of(bars) / 2 for name, bars in lanes.items()]
    ax.set(xlim=(start, end), ylim=(top - gap + 0.1, -0.1), yticks=middles, yticklabels=lanes)
    ax.grid(visible=False, axis="y")
    ax.spines["left"].set_visible(not bands)
    ax.tick_params(axis="y", length=0, pad=8 if bands else 3.5)
    even_ticks(ax.xaxis, unit)
    # a tint of the lane's colour, and an edge
    for (name, bars), color in zip(lanes.items(), bands, strict=False):
        ax.axhspan(
            tops[name], tops[name] + rows_of(bars), color=color, alpha=HAZE, linewidth=0, zorder=0.5
        )
        look = {
            "color": color,
            "linewidth": 0,
            "transform": ax.get_yaxis_transform(),
            "clip_on": False,
        }
        ax.add_patch(Rectangle((-0.008, tops[name]), 0.008, rows_of(bars), **look))
    # the layout, and so the width of the bars, is known from here on
    ax.figure.draw_without_rendering()
    draw_bars(
        ax,
        [bar._replace(row=tops[name] + bar.row) for name, bars in lanes.items() for bar in bars],
        size,
    )
    return tops


def draw_bars(ax: Axes, bars: Sequence[Bar], size: float) -> None:
    """Draw bars, and in each its text where that fits; the figure's layout must be known."""
    across, down = abs(ax.transData.transform((1, 1)) - ax.transData.transform((0, 0)))  # pixels
    places = (
        (bar.look, bar.row, bar.height, (bar.end - bar.start) * across >= WIDE_ENOUGH)
        for bar in bars
    )
    for (look, row, height, edged), alike in grouped(zip(places, bars, strict=True)).items():
        edge = outline(look) if edged else {"linewidth": 0.7, "edgecolor": look.fill}
        spans = [(bar.start, bar.end - bar.start) for bar in alike]
        ax.broken_barh(
            spans, (row + MARGIN, height - 2 * MARGIN), facecolor=look.fill, zorder=2, **edge
        )
    # by row, from where to where there are texts
    written: dict[float, list[tuple[float, float]]] = {}
    for bar in bars:
        length, height = bar.end - bar.start, bar.height - 2 * MARGIN
        wide, high = length * across, height * down
        points = size if high >= HIGH else min(size, LOW_SIZE)
        widths = {text: text_width(text, points) * ax.figure.dpi + 4 for text in bar.texts}
        text = next((text for text, width in widths.items() if width <= wide), "")
        middle, half = (bar.start + bar.end) / 2, widths.get(text, 0) / across / 2
        beside = all(
            middle + half < left or right < middle - half
            for left, right in written.get(bar.row, ())
        )
        if text and high >= HIGH_ENOUGH and beside:
            written.setdefault(bar.row, []).append((middle - half, middle + half))
            look = {
                "color": text_color(bar.look.fill),
                "ha": "center",
                "va": "center_baseline",
                "fontsize": points,
            }
            # so that hatches and arrows do not cross the text
            look["bbox"] = {
                "facecolor": bar.look.fill,
                "edgecolor": "none",
                "pad": 1.2 if bar.look.hatched else 0.3,
            }
            inside = Rectangle(
                (bar.start, bar.row + MARGIN), length, height, transform=ax.transData
            )
            look |= {"parse_math": False, "zorder": 9, "clip_on": True}
            ax.text(middle, bar.row + bar.height / 2, text, **look).set_clip_path(inside)


def outline(look: Look) -> dict[str, Any]:
    """The edge of a shape with this look, and its hatch."""
    edge = {"edgecolor": INK, "hatch": "////"} if look.hatched else {"edgecolor": "#FFFFFF"}
    return {"linewidth": 0.7, **edge}


def legend_below(
    ax: Axes, looks: Sequence[Look], lines: Sequence[Any] = (), columns: int = 3
) -> None:
    """Draw a legend below the axes, of looks and of lines with their labels."""
    handles = [
        *(Patch(facecolor=look.fill, label=look.words, **outline(look)) for look in looks),
        *lines,
    ]
    if handles:
        place = {
            "loc": "outside lower center",
            "ncols": columns,
            "frameon": False,
            "fontsize": LEGEND,
        }
        ax.figure.legend(handles=handles, **place)
