"""Figures of bars from the top down: what was done when, where time went, how long each way took.

Called by the notebooks. Runs in the notebook's process. Times in s.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer

from distlab.plotting.axes import SMALL, even_ticks, new_axes, short
from distlab.plotting.style import COMPUTING, FAINT, FORWARD, INK, MIXED, TRAVELLING, curve_color, text_color
from distlab.text import refuse

Bar = tuple[str, float, float, str]  # lane, start, end, kind; times in seconds
KINDS = ("compute", "communicate", "wait")
# of the attributes of `Trace.shares()`: what the legend calls each, and its fill
PARTS = {
    "compute": ("computes", COMPUTING),
    "hidden": ("computes while data travel", FORWARD),
    "communicate": ("data travel", TRAVELLING),
    "wait": ("waits for others", FAINT),
    "other": ("other", MIXED),
}


def overlap(bars: Sequence[Bar], title: str = "") -> Axes:
    """Draw what was done when, as bars on lanes: for example the overlap of communication and computation.

    Runs on: client.

    Args:
        bars: (lane, start, end, kind), times in seconds, kind "compute", "communicate" or "wait". Lanes are drawn in
            the order in which they come; the time is counted from the first start.
        title: what was measured.

    Returns:
        The axes of a new figure, which a notebook shows when its cell ends.

    Raises:
        ArgumentError: if there is no bar, a kind is unknown, or a bar ends before it starts.
    """
    example = 'Give ("rank 0", 0.0, 0.01, "compute").'
    if not bars:
        refuse("bars", "at least one bar", bars, example)
    for i, (_, start, end, kind) in enumerate(bars):
        if kind not in KINDS:
            refuse(f"bars[{i}][3]", f"one of {', '.join(KINDS)}", kind, example)
        if end < start:
            refuse(f"bars[{i}]", f"a bar that ends after its start {start!r}", end, example)
    lanes = list(dict.fromkeys(bar[0] for bar in bars))
    zero = min(bar[1] for bar in bars)
    drawn = []
    with new_axes(5.6, 1.6 + 0.66 * len(lanes), title=title, xlabel="time") as ax:
        set_lanes(ax, lanes, max(bar[2] for bar in bars) - zero)
        for place, lane in enumerate(lanes):
            ordered = sorted(bar[1:] for bar in bars if bar[0] == lane)
            halves = any(after[0] < before[1] for before, after in pairwise(ordered))
            for start, end, kind in ordered:
                # where some are at the same time, communication goes below the others
                y = place + (0.21 if kind == "communicate" else -0.21) * halves
                drawn.append((draw_bar(ax, y, start - zero, end - start, kind, 0.4 if halves else 0.7), kind))
        written = write_in(ax, drawn)
        legend_below(ax, {kind: kind for _, kind in drawn if kind not in written})
    return ax


def time_shares(bars: Mapping[str, Any], title: str = "", relative: bool = False) -> Axes:
    """Draw where time went, a bar for each name from the top down; its parts add up to its length.

    Runs on: client.

    Args:
        bars: by name, for example "rank 0", seconds in parts: the values of `Trace.shares()`.
        title: what was traced.
        relative: draw each bar as 100 % of its own time, to compare bars of very different lengths.

    Returns:
        The axes, as of `overlap`.

    Raises:
        ArgumentError: if there is no bar, one has a negative part, or all are empty.
    """
    lengths = {name: {kind: getattr(parts, kind) for kind in PARTS} for name, parts in bars.items()}
    totals = [sum(parts.values()) for parts in lengths.values()]
    if max(totals, default=0) == 0 or min(min(parts.values()) for parts in lengths.values()) < 0:
        example = 'Give trace.shares(), by name: {"rank 0": trace.shares()[0]}.'
        refuse("bars", "at least one bar that is longer than 0 s, with no part below 0 s", bars, example)
    xlabel, end, unit = ("share of the time", 102, "%") if relative else ("time", max(totals) * 1.02, "s")
    drawn = []
    with new_axes(6.4, 1.7 + 0.5 * len(bars), title=title, xlabel=xlabel) as ax:
        set_lanes(ax, bars, end, unit)
        for place, (parts, total) in enumerate(zip(lengths.values(), totals, strict=True)):
            scale, left = 100 / (total or 1) if relative else 1, 0.0
            for kind, seconds in parts.items():
                bar = draw_bar(ax, place, left, seconds * scale, kind, 0.66)
                drawn.append((bar, f"{seconds / (total or 1):.0%}"))
                left += seconds * scale
        write_in(ax, drawn)
        seen = [kind for kind in PARTS if any(parts[kind] > 0 for parts in lengths.values())]
        legend_below(ax, {PARTS[kind][0]: kind for kind in seen})
    return ax


def step_times(steps: Mapping[str, tuple[float, float, float]], title: str = "") -> Axes:
    """Draw how long a step takes, done in several ways, as bars from the top down.

    Runs on: client.

    Args:
        steps: by name of the way, the median time of a step, and a low and a high one, in seconds.
        title: what was measured.

    Returns:
        The axes, as of `overlap`.

    Raises:
        ArgumentError: if there is no way, or a time is not positive.
    """
    if not steps or min(min(times) for times in steps.values()) <= 0:
        example = 'Give {"buckets": (median, low, high)}, in seconds.'
        refuse("steps", "at least one way, with times above 0", steps, example)
    with new_axes(5.6, 0.9 + 0.5 * len(steps), title=title, xlabel="time of one step") as ax:
        set_lanes(ax, steps, 1.18 * max(max(times) for times in steps.values()))
        for place, (median, low, high) in enumerate(steps.values()):
            ax.barh(place, median, height=0.62, color=curve_color(place), alpha=0.5)
            ax.plot([low, high], [place, place], color=curve_color(place), linewidth=1.5)
            beside = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
            ax.annotate(short(median, "s"), (max(high, median), place), **beside)
    return ax


def set_lanes(ax: Axes, names: Collection[str], end: float, unit: str = "s") -> None:
    """Make room for a bar for each name from the top down, along a line from 0 to `end`."""
    ax.set(xlim=(0, end), ylim=(len(names) - 0.4, -0.6), yticks=range(len(names)), yticklabels=names)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)
    even_ticks(ax.xaxis, unit)


def draw_bar(ax: Axes, y: float, left: float, width: float, kind: str, height: float) -> BarContainer:
    """Draw a bar in the look of its kind."""
    waits = kind == "wait"
    look = {"facecolor": PARTS[kind][1], "edgecolor": INK if waits else "#FFFFFF", "hatch": "///" if waits else None}
    return ax.barh(y, width, left=left, height=height, linewidth=0.8, **look)


def write_in(ax: Axes, bars: Sequence[tuple[BarContainer, str]]) -> set[str]:
    """Write its text in each bar that is wide enough; returns the texts that were written."""
    ax.figure.draw_without_rendering()  # the layout, and so the width of the bars, is known from here on
    written = set()
    for (bar,), text in bars:
        fill, (x, y) = bar.get_facecolor(), bar.get_center()
        label = ax.text(x, y, text, ha="center", va="center_baseline", fontsize=SMALL, color=text_color(to_hex(fill)))
        if bar.get_hatch() is not None:
            label.set_bbox({"facecolor": fill, "edgecolor": "none", "pad": 1.5})
        if label.get_window_extent().width + 8 < bar.get_window_extent().width:
            written.add(text)
        else:
            label.remove()
    return written


def legend_below(ax: Axes, kinds: Mapping[str, str]) -> None:
    """Say below the axes what the looks of kinds mean: kinds by their words."""
    if kinds:
        handles = [draw_bar(ax, 0, 0, 0, kind, 0) for kind in kinds.values()]
        ax.figure.legend(handles, kinds, loc="outside lower center", ncols=3, frameon=False, fontsize=SMALL)
