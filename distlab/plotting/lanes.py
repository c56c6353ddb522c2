"""What was done when, and where the time went, as bars on lanes from the top down.

Called by the notebooks, by `Prediction.plot` and by `make bench`, on the notebook's kernel. Times
are in seconds.
"""

from collections.abc import Mapping, Sequence
from itertools import chain

from matplotlib.axes import Axes

from distlab.plotting.axes import new_axes, short
from distlab.plotting.bars import (
    ACTIVITY_LOOKS,
    LANE_GAP,
    Bar,
    Look,
    draw_lanes,
    height_of,
    legend_below,
    stacked,
    used,
)
from distlab.plotting.describing import describe, of_lanes
from distlab.plotting.palette import curve_colors
from distlab.plotting.style import MIXED, WHITE, blend, rank_color
from distlab.traces.events import pack_into_rows

# in the order of `Trace.shares()`
SHARES = (
    ACTIVITY_LOOKS["compute"],
    ACTIVITY_LOOKS["forward"]._replace(words="computing while data travel"),
    ACTIVITY_LOOKS["exposed"],
    ACTIVITY_LOOKS["wait"]._replace(words="waiting for others"),
    Look(MIXED, "other"),
)


def spans(lanes: Mapping[str, Sequence[tuple]], title: str = "") -> Axes:
    """Draw what was done when, a lane for each name from the top down.

    Bars of a lane that overlap are drawn one below the other. Time counts from the first start.

    Runs on: the notebook's kernel.

    Args:
        lanes: by name, bars: (start, end, text), times in seconds, in the colour of the lane, which
            is that of rank n for the n-th lane; or (start, end, text, what), where `what` is one of
            "load", "compute", "forward", "backward", "optimizer", "serve", "move", "exposed" and
            "wait", as in the `parts` of a trace's events.
        title: what was measured.

    Returns:
        The axes of a new figure, which a notebook shows when its cell ends.
    """
    starts = []
    ends = []
    for given in lanes.values():
        starts += [bar[0] for bar in given]
        ends += [bar[1] for bar in given]
    zero = min(starts)
    end = max(ends) - zero
    drawn = {}
    colors = []
    for place, (name, given) in enumerate(lanes.items()):
        color = rank_color(place)
        colors.append(color)
        drawn[name] = _in_rows([_span(bar, zero, color) for bar in given])
    activities = used(ACTIVITY_LOOKS.values(), drawn)
    height = height_of(drawn) + 0.9
    if activities:  # bars have colours of their own, which a legend explains, and lanes have none
        height += 0.6
        colors = []
    with new_axes(7.2, height, title=title, xlabel="time") as ax:
        legend_below(ax, activities)
        draw_lanes(ax, drawn, 1.01 * end, bands=colors)
        describe(ax, title or "what was done when", of_lanes(drawn))
    return ax


def _span(given: tuple, zero: float, color: str) -> Bar:
    """The bar of (start, end, text), in the lane's colour, or of (start, end, text, what)."""
    start, end, text, *what = given
    look = Look(color)
    if what:
        look = ACTIVITY_LOOKS[what[0]]
    return Bar(start - zero, end - zero, look, (text,))


def _in_rows(bars: Sequence[Bar]) -> list[Bar]:
    """Bars with as many rows as they need for none to overlap another."""
    placed: list[Bar] = []
    for row, packed in enumerate(pack_into_rows(bars)):
        placed += [bar._replace(row=row) for bar in packed]
    return placed


def time_shares(
    bars: Mapping[str, Sequence[float]], title: str = "", relative: bool = False
) -> Axes:
    """Draw where the time went: a bar for each name from the top down, cut into shares.

    Runs on: the notebook's kernel.

    Args:
        bars: by name, for example "rank 0", the values of `Trace.shares()`, which add up to the
            bar's length.
        title: what was traced.
        relative: draw each bar as 100 % of its own time, to compare bars of very different lengths.

    Returns:
        The axes of a new figure, which a notebook shows when its cell ends.
    """
    drawn = {name: _share_bars(parts, relative) for name, parts in bars.items()}
    if relative:
        xlabel = "share of the time"
        end = 100.0
        unit = "%"
    else:
        xlabel = "time"
        end = max(sum(parts) for parts in bars.values())
        unit = "s"
    with new_axes(6.4, height_of(drawn) + 1.5, title=title, xlabel=xlabel) as ax:
        legend_below(ax, used(SHARES, drawn))
        draw_lanes(ax, drawn, 1.02 * end, unit)
        describe(ax, title or "where the time went", _of_shares(bars))
    return ax


def _of_shares(bars: Mapping[str, Sequence[float]]) -> list[str]:
    """The shares of each bar in words, and its length."""
    parts = []
    for name, lengths in bars.items():
        whole = sum(lengths)
        named = zip(SHARES, lengths, strict=True)
        shares = [f"{part / (whole or 1):.0%} {look.words}" for look, part in named if part]
        parts.append(f"{name}, {short(whole, 's')}: {', '.join(shares)}")
    return parts


def _share_bars(parts: Sequence[float], relative: bool) -> list[Bar]:
    """The shares of a time, in seconds or in percent, one after the other."""
    whole = sum(parts) or 1
    texts = [f"{seconds / whole:.0%}" for seconds in parts]
    lengths = parts
    if relative:
        lengths = [100 * seconds / whole for seconds in parts]
    return stacked(zip(SHARES, lengths, strict=True), texts)


def step_times(steps: Mapping[str, tuple[float, float, float]], title: str = "") -> Axes:
    """Draw how long a step takes when done in several ways, as bars from the top down.

    Runs on: the notebook's kernel.

    Args:
        steps: by name of the way, the median time of a step, and a low and a high one, in seconds.
        title: what was measured.

    Returns:
        The axes of a new figure, which a notebook shows when its cell ends.
    """
    longest = max(chain.from_iterable(steps.values()))
    with new_axes(5.6, 0.9 + 0.5 * len(steps), title=title, xlabel="time of one step") as ax:
        draw_lanes(ax, dict.fromkeys(steps, ()), 1.18 * longest)
        colors = curve_colors(steps)
        for place, (name, (median, low, high)) in enumerate(steps.items()):
            y = place * (1 + LANE_GAP) + 0.5
            color = colors[name]
            ax.barh(y, median, height=0.9, facecolor=blend(color, WHITE, 0.5), edgecolor=color)
            ax.plot([low, high], [y, y], color=color, linewidth=1.5)
            ax.annotate(
                short(median, "s"),
                (max(high, median), y),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
            )
        parts = [f"{name} {short(median, 's')}" for name, (median, _, _) in steps.items()]
        describe(ax, f"{title or 'time of one step'}, medians", parts)
    return ax
