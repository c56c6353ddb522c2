"""Labs 52 and 53: schedules of pipelines, their memory, their bubbles; how to divide a model.

The notebooks call it through `distlab_course.figures`, in their kernel. Times are in seconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from distlab.plotting.axes import (
    End,
    even_ticks,
    label_ends,
    log_ticks,
    new_axes,
    new_panels,
    short,
)
from distlab.plotting.bars import (
    ACTIVITY_LOOKS,
    Bar,
    Lanes,
    Look,
    draw_lanes,
    height_of,
    legend_below,
)
from distlab.plotting.curves import badge
from distlab.plotting.describing import describe, of_curves
from distlab.plotting.palette import curve_colors
from distlab.plotting.style import (
    INK,
    LABEL_SIZE,
    SMALL_SIZE,
    TINY_SIZE,
    WHITE,
    rank_color,
    text_color,
)

KINDS = {
    "F": ACTIVITY_LOOKS["forward"],
    "B": ACTIVITY_LOOKS["backward"],
    "I": ACTIVITY_LOOKS["backward"]._replace(words="backward, input only"),
    "W": ACTIVITY_LOOKS["optimizer"]._replace(words="backward, weights only"),
}
MARKERS = "o+s^vD"  # of schedules
# of the regions of a map
SHADES = [ACTIVITY_LOOKS[name].fill for name in ("forward", "backward", "move", "exposed")]
FINE_POINTS = 41  # of a theory's line

Floats = Sequence[float]
Action = tuple[str, int, int, float, float]  # kind, stage, micro-batch, begin, end
Schedule = Sequence[Sequence[Action]]  # by rank, what it computes


def pipeline(schedules: Mapping[str, Schedule], simulated: str = "") -> Figure:
    """Draw schedules of pipelines below each other: a box a micro-batch, a row a stage.

    All have one scale of time. Each title ends with the share of the time, from the first begin to
    the last end, in which ranks are idle.

    Args:
        schedules: by name and by rank, what the rank computed: the kind ("F" forward, "B" backward,
            "I" and "W" its halves for the input and for the weights), the stage, the micro-batch,
            begin and end in seconds.
        simulated: on which machines, as `cluster.simulated` says it; "" for measured times.
    """
    charts = {name: lanes_of(schedule) for name, schedule in schedules.items()}
    heights = [height_of(chart) for chart in charts.values()]
    shares = {}
    end = 0.0
    for name, schedule in schedules.items():
        shares[name], seconds = idle(schedule)
        end = max(end, 1.01 * seconds)
    height = sum(heights) + 0.75 * len(charts) + 0.7
    with new_panels(7.5, height, len(charts), 1, height_ratios=heights) as (figure, axes):
        legend_below(axes[-1], _looks_in(charts.values()), columns=4)
        for ax, (name, chart) in zip(axes, charts.items(), strict=True):
            heading = f"{name}: idle {shares[name]:.0%}"
            ax.set_title(heading, fontsize=LABEL_SIZE, pad=5)
            colors = [rank_color(rank) for rank in range(len(chart))]
            tops = draw_lanes(ax, chart, end, bands=colors, size=TINY_SIZE)
            ax.spines["left"].set_visible(False)
            for rank, actions in enumerate(schedules[name]):
                top = tops[f"rank {rank}"]
                _name_stages(ax, stages_of(actions), 1.01 * end, top)
        label = f"time ({simulated})" if simulated else "time, measured"
        axes[-1].set_xlabel(label, fontsize=SMALL_SIZE)
        parts = []
        for name, schedule in schedules.items():
            share, seconds = idle(schedule)
            took = f"{len(schedule)} ranks, {short(seconds, 's')}, idle {share:.0%} of it"
            parts.append(f"{name}: {took}")
        describe(figure, f"pipeline schedules, {label}", parts)
    return figure


def _looks_in(charts: Iterable[Lanes]) -> list[Look]:
    """The looks of the bars, in the order of KINDS."""
    seen: set[Look] = set()
    for chart in charts:
        seen.update(bar.look for bar in chain.from_iterable(chart.values()))
    return [look for look in KINDS.values() if look in seen]


def _name_stages(ax: Axes, stages: Sequence[int], x: float, top: float) -> None:
    """Write the stages of a rank beside their rows, where it has more than one."""
    if len(stages) < 2:
        return
    for row, stage in enumerate(stages):
        y = top + row + 0.5
        ax.text(x, y, f"stage {stage}", fontsize=TINY_SIZE, va="center_baseline")


def stages_of(actions: Sequence[Action]) -> list[int]:
    """The stages that a rank computed, ascending."""
    return sorted({stage for _, stage, *_ in actions})


def lanes_of(schedule: Schedule) -> dict[str, list[Bar]]:
    """What each rank computed, as bars from the first begin on, in a row for each of its stages."""
    zero = min(begin for *_, begin, _ in chain.from_iterable(schedule))
    lanes = {}
    for rank, actions in enumerate(schedule):
        stages = stages_of(actions)
        bars = []
        for kind, stage, batch, begin, end in actions:
            row = stages.index(stage)
            texts = (str(batch),)
            bars.append(Bar(begin - zero, end - zero, KINDS[kind], texts, row))
        lanes[f"rank {rank}"] = bars
    return lanes


def idle(schedule: Schedule) -> tuple[float, float]:
    """The share of the time in which ranks are idle, and the seconds that all of it takes."""
    actions = list(chain.from_iterable(schedule))
    first = min(begin for *_, begin, _ in actions)
    last = max(end for *_, end in actions)
    seconds = last - first
    busy = sum(end - begin for *_, begin, end in actions)
    return 1 - busy / (len(schedule) * seconds), seconds


def alive(
    over_time: Mapping[str, tuple[Floats, Floats]],
    most: Mapping[str, Mapping[int, float]],
    title: str,
    simulated: str = "",
) -> Figure:
    """Draw how many micro-batches are alive, over the time of a step, and the most of every step.

    Args:
        over_time: by schedule, moments in seconds, and how many are alive from each of them on.
        most: by schedule, and by the number m of micro-batches: the most alive on any rank.
        title: which rank and which step `over_time` is of.
        simulated: on which machines, as `cluster.simulated` says it; "" for measured times.
    """
    colors = curve_colors(over_time)
    label = f"time ({simulated})" if simulated else "time, measured"
    counts = sorted(set(chain.from_iterable(most.values())))
    with new_panels(7.5, 3.4, 1, 2) as (figure, (left, right)):
        left.set(title=title, ylabel="micro-batches alive")
        left.set_xlabel(label, fontsize=SMALL_SIZE)
        even_ticks(left.xaxis, "s")
        right.set(title="the most on any rank", xlabel="micro-batches m")
        right.set(xticks=counts, yticks=[0, *counts], ylim=(0, 1.05 * counts[-1]))
        ends = []
        parts = []
        for name, (moments, numbers) in over_time.items():
            color = colors[name]
            left.step(moments, numbers, where="post", color=color)
            highest = max(numbers)
            reached = list(numbers).index(highest)
            middle = (moments[reached] + moments[reached + 1]) / 2
            _name_above(left, middle, highest, name, color)
            points = most[name]
            right.plot(list(points), list(points.values()), "o-", color=color)
            last = max(points)
            ends.append(End(last, points[last], name, color))
            said = ", ".join(f"{alive_then:g} for m = {m}" for m, alive_then in points.items())
            ended = short(moments[-1], "s")
            parts.append(f"{name}: at most {highest:g} alive, none after {ended}; any rank {said}")
        left.set_ylim(0, 1.12 * left.get_ylim()[1])
        label_ends(right, ends)
        describe(figure, f"micro-batches alive, {title}, {label}, and the most on any rank", parts)
    return figure


def _name_above(ax: Axes, x: float, y: float, name: str, color: str) -> None:
    """Write a curve's name above a point of it."""
    ax.annotate(
        name,
        (x, y),
        xytext=(0, 3),
        textcoords="offset points",
        color=color,
        fontsize=LABEL_SIZE,
        ha="center",
    )


def bubbles(
    shares: Mapping[str, Mapping[int, float]], p: int, stages: Sequence[int], simulated: str = ""
) -> Axes:
    """Draw the idle share of pipelines against the number of micro-batches, and the theory's lines.

    Args:
        shares: by schedule, and by the number m of micro-batches: the idle share of the time, from
            0 to 1.
        p: the number of ranks.
        stages: of each schedule, how many stages v a rank has; the theory's line is
            (p - 1) / (v m + p - 1).
        simulated: on which machines, as `cluster.simulated` says it.
    """
    counts = sorted(set(chain.from_iterable(shares.values())))
    title = f"the bubble of {p} ranks"
    xlabel = "micro-batches m"
    with new_axes(6, 4, title=title, xlabel=xlabel, ylabel="idle share of the time") as ax:
        ends = []
        colors = curve_colors(shares)
        for place, (name, v) in enumerate(zip(shares, stages, strict=True)):
            color = colors[name]
            points = shares[name]
            most = max(points)
            _draw_theory(ax, p, v, min(points), most)
            marker = MARKERS[place % len(MARKERS)]
            size = 11 if marker == "+" else 6
            percent = [100 * share for share in points.values()]
            ax.plot(list(points), percent, marker, color=color, mfc="none", mew=2, ms=size)
            ends.append(End(most, 100 * points[most], name, color))
        ax.set_xscale("log", base=2)
        ax.set(xticks=counts, xticklabels=counts, ylim=(0, None))
        even_ticks(ax.yaxis, "%")
        label_ends(ax, ends)
        formula = f"{p - 1} / (v m + {p - 1})"
        percents = {
            name: (list(points), [100 * share for share in points.values()])
            for name, points in shares.items()
        }
        parts = of_curves(percents, lambda m: f"m = {m:g}", lambda share: f"{share:.0f} %")
        describe(ax, f"{title}, idle share of the time against micro-batches m", parts)
        badge(ax, f"{simulated}; dashed: {formula}")
    return ax


def _draw_theory(ax: Axes, p: int, v: int, fewest: int, most: int) -> None:
    """Draw the bubble of p ranks with v stages each, between two numbers of micro-batches."""
    m = np.geomspace(fewest, most, FINE_POINTS)
    percent = 100 * (p - 1) / (v * m + p - 1)
    ax.plot(m, percent, color=INK, linewidth=1.2, linestyle="--")


def quickest(
    seconds: Mapping[str, Sequence[Floats]],
    bandwidths: Floats,
    tokens: Floats,
    title: str,
    networks: Mapping[str, float],
    devices: int,
) -> Axes:
    """Draw a map of the quickest way to divide a model, by bandwidth and by size of the batch.

    Args:
        seconds: by name of the way, four at most, a row for each size of the batch with a time for
            each bandwidth; infinite where the model does not fit.
        bandwidths: of each device, in bytes a second, ascending.
        tokens: in the batch, ascending.
        title: of which model on which devices.
        networks: the bandwidths of well-known networks, by name, drawn as lines.
        devices: among which the batch is divided.
    """
    best = np.argmin(list(seconds.values()), axis=0)
    shades = SHADES[: len(seconds)]
    with new_axes(
        7, 4.6, xlabel="bandwidth of each device", ylabel="tokens in the batch, and on each device"
    ) as ax:
        ax.set_title(title, loc="left", pad=24)
        colors = ListedColormap(shades)
        cells = ax.pcolormesh(bandwidths, tokens, best, cmap=colors, vmin=0, vmax=len(seconds) - 1)
        ax.set(xscale="log", yscale="log")
        log_ticks(ax.xaxis, "B/s")
        ax.minorticks_off()
        ticks = _powers_of_four(tokens[0], tokens[-1])
        ax.set_yticks(ticks, [f"{tick:,}\n{tick // devices:,} each" for tick in ticks])
        ax.grid(visible=False)
        for place, (name, shade) in enumerate(zip(seconds, shades, strict=True)):
            rows, columns = np.nonzero(best == place)
            if len(rows) == 0:  # it is nowhere the quickest
                continue
            x = bandwidths[int(np.median(columns))]
            y = tokens[int(np.median(rows))]
            box = {"facecolor": shade, "edgecolor": "none", "pad": 2}
            color = text_color(shade)
            ax.text(x, y, name, ha="center", va="center", color=color, zorder=5, bbox=box)
        for name, bandwidth in networks.items():
            _draw_network(ax, name, bandwidth)
        shares = _shares_of_area(cells, best, len(seconds))
        parts = []
        for name, share in zip(seconds, shares, strict=True):
            parts.append(f"{name} in {share:.0%} of the map")
        between = f"{short(bandwidths[0], 'B/s')} to {short(bandwidths[-1], 'B/s')} of each device"
        sizes = f"{tokens[0]:,.0f} to {tokens[-1]:,.0f} tokens in the batch"
        describe(ax, f"{title}, the quickest way for {between} and {sizes}", parts)
    return ax


def _shares_of_area(cells: QuadMesh, best: Floats, ways: int) -> list[float]:
    """The share of the map that each way has, as drawn: both axes are logarithmic."""
    corners = np.log(cells.get_coordinates())  # by row and column, then x and y
    widths = np.diff(corners[0, :, 0])
    heights = np.diff(corners[:, 0, 1])
    areas = np.outer(heights, widths)
    return [areas[best == place].sum() / areas.sum() for place in range(ways)]


def _draw_network(ax: Axes, name: str, bandwidth: float) -> None:
    """Draw the bandwidth of a network as a line across the map, and write its name above."""
    ax.axvline(bandwidth, color=WHITE, linewidth=1.2, linestyle=":")
    above = ax.get_xaxis_transform()
    ax.text(bandwidth, 1.02, name, ha="center", transform=above, fontsize=LABEL_SIZE - 1)


def _powers_of_four(first: float, last: float) -> list[float]:
    """`first` times 1, 4, 16 and so on, while they are below half of `last`; then `last`."""
    ticks = []
    tick = first
    while tick < last / 2:
        ticks.append(tick)
        tick *= 4
    return [*ticks, last]
