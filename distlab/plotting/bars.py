"""Bars along a line of time: what was done when, on lanes.

Called by the notebooks. Runs in the notebook's process.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from distlab.errors import ArgumentError
from distlab.plotting.curves import SMALL, even_ticks, own_axes
from distlab.plotting.style import FAINT, INK, rank_color, style, text_color
from distlab.plotting.units import format_seconds

Bar = tuple[str, float, float, str]  # lane, start, end, kind; times in seconds
KINDS = ("compute", "communicate", "wait")


def overlap(bars: Sequence[Bar], title: str = "", ax: Axes | None = None) -> Axes:
    """Draw what was done when, as bars on lanes: for example the overlap of communication and computation.

    Runs on: client.

    Args:
        bars: (lane, start, end, kind), times in seconds, kind "compute", "communicate" or "wait". Lanes are drawn in
            the order in which they come; the time is counted from the first start.
        title: what was measured.
        ax: axes to draw on; without it, those of a new figure, which a notebook shows when its cell ends.

    Returns:
        The axes.

    Raises:
        ArgumentError: if there is no bar, a kind is unknown, or a bar ends before it starts.
    """
    check_bars(bars)
    lanes = list(dict.fromkeys(bar[0] for bar in bars))
    ax = own_axes(5.6, 1.6 + 0.66 * len(lanes)) if ax is None else ax
    zero = min(bar[1] for bar in bars)
    with style():
        ax.set(title=title, xlabel="time", ylim=(len(lanes) - 0.4, -0.6), yticks=range(len(lanes)), yticklabels=lanes)
        ax.set_xlim(0, max(bar[2] for bar in bars) - zero)
        ax.grid(visible=False, axis="y")
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)
        even_ticks(ax.xaxis, format_seconds)
        for place, lane in enumerate(lanes):
            draw_bars(ax, place, [(start - zero, end - zero, kind) for name, start, end, kind in bars if name == lane])
        label_bars(ax)
    return ax


def check_bars(bars: Sequence[Bar]) -> None:
    """Raise if there is no bar, a kind is unknown, or a bar ends before it starts."""
    example = 'Give ("rank 0", 0.0, 0.01, "compute").'
    if not bars:
        raise ArgumentError(f"bars must be at least one bar, got {bars!r}. {example}")
    for i, (_, start, end, kind) in enumerate(bars):
        if kind not in KINDS:
            raise ArgumentError(f"bars[{i}][3] must be one of {', '.join(KINDS)}, got {kind!r}. {example}")
        if end < start:
            raise ArgumentError(f"bars[{i}] must be a bar that ends after its start {start!r}, got {end!r}. {example}")


def draw_bars(ax: Axes, place: int, bars: Sequence[tuple[float, float, str]]) -> None:
    """Draw the bars of one lane; where some are at the same time, communication goes below the others."""
    ordered = sorted(bars)
    halves = any(after[0] < before[1] for before, after in pairwise(ordered))
    looks = {
        "compute": {"facecolor": rank_color(0)},
        "communicate": {"facecolor": rank_color(1)},
        "wait": {"facecolor": FAINT, "hatch": "///"},
    }
    for start, end, kind in ordered:
        y = place + (0.21 if kind == "communicate" else -0.21) * halves
        look = {"edgecolor": INK if kind == "wait" else "#FFFFFF", "linewidth": 0.8, **looks[kind]}
        ax.barh(y, end - start, left=start, height=0.4 if halves else 0.7, label=kind, **look)


def label_bars(ax: Axes) -> None:
    """Write its kind in each bar that is wide enough; a kind that fits in none of its bars goes into a legend."""
    ax.figure.draw_without_rendering()  # the layout, and so the width of the bars, is known from here on
    written = set()
    for bars in ax.containers:
        kind, bar = bars.get_label(), bars.patches[0]
        written |= {kind} if write_in(ax, bar, kind) else set()
    handles = {bars.get_label(): bars for bars in ax.containers if bars.get_label() not in written}
    if handles:
        ax.figure.legend(handles.values(), handles, loc="outside lower center", ncols=len(handles), frameon=False)


def write_in(ax: Axes, bar: Rectangle, text: str) -> bool:
    """Write a text in a bar if it fits; returns whether it does."""
    center = (bar.get_x() + bar.get_width() / 2, bar.get_y() + bar.get_height() / 2)
    fill = to_hex(bar.get_facecolor())
    label = ax.text(*center, text, ha="center", va="center_baseline", fontsize=SMALL, color=text_color(fill))
    if bar.get_hatch() is not None:
        label.set_bbox({"facecolor": fill, "edgecolor": "none", "pad": 1.5})
    fits = label.get_window_extent().width + 8 < bar.get_window_extent().width
    if not fits:
        label.remove()
    return fits
