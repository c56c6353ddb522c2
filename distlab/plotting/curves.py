"""Curves: times against message size, rates against ranks, and what changes during training.

Called by the notebooks, by `Sweep.plot` and by `Predictions.plot`, on the notebook's kernel. Sizes
are in bytes, times in seconds.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from distlab.plotting.axes import (
    Curve,
    End,
    label_ends,
    log_ticks,
    new_axes,
    new_panels,
    short,
)
from distlab.plotting.describing import add_words, counted, describe, number, of_curves
from distlab.plotting.palette import curve_colors, known_color
from distlab.plotting.style import INK, LABEL_SIZE
from distlab.tables import format_bytes

Floats = Sequence[float]
MeasuredCurve = tuple[Floats, Floats, Floats, Floats]  # x, medians, lows, highs
# by name
Curves = Mapping[str, Curve]
MeasuredCurves = Mapping[str, MeasuredCurve]
Rate = tuple[int, float, bool]  # ranks, rate of each, whether it fits into memory
MOST_MARKERS = 40  # a line through more points has no markers


# --- what the figures share ---


def draw_curves(ax: Axes, curves: MeasuredCurves, theory: Curves) -> list[End]:
    """Draw medians with their spread, and theory as dashed lines.

    A theory has the colour of the curve of the same name, whose points are then not joined.

    Returns:
        The ends to label.
    """
    ends: dict[str, End] = {}
    colors = curve_colors(curves)
    for name, curve in curves.items():
        color = colors[name]
        _draw_medians(ax, curve, color, joined=name not in theory)
        xs, medians, *_ = curve
        x, y = max(zip(xs, medians, strict=True))
        ends[name] = End(x, y, name, color)
    for name, (xs, ys) in theory.items():
        explained = ends.get(name)
        color = explained.color if explained else known_color(name) or INK
        ax.plot(xs, ys, color=color, linewidth=1.2, linestyle="--")
        if explained is None or xs[-1] > explained.x:
            ends[name] = End(xs[-1], ys[-1], name, color)
    return list(ends.values())


def _draw_medians(ax: Axes, curve: MeasuredCurve, color: str, joined: bool) -> None:
    """Draw the points of a curve, with bars from the lows to the highs."""
    x, medians, lows, highs = map(np.asarray, curve)
    below = (medians - lows).clip(0)
    above = (highs - medians).clip(0)
    ax.errorbar(
        x,
        medians,
        yerr=(below, above),
        fmt="o-" if joined else "o",
        color=color,
        markersize=5,
        elinewidth=1.4,
        capsize=3,
    )


def badge(ax: Axes, text: str) -> None:
    """Write between the title and the axes where virtual times come from.

    Runs on: the notebook's kernel.

    Args:
        ax: axes with a title at the left, which moves up.
        text: on which machines: `cluster.simulated`; "" for measured times, which get no badge.
    """
    if not text:
        return
    add_words(ax, text)
    lines = textwrap.wrap(text, 64)
    title = ax.get_title("left")
    ax.set_title(title, loc="left", pad=6 + 13 * len(lines))
    ax.text(
        0,
        1.02,
        "\n".join(lines),
        transform=ax.transAxes,
        ha="left",
        va="bottom",
        fontsize=LABEL_SIZE - 1,
        style="italic",
        color=INK,
        gid="badge",
    )


# --- against message size ---


def time_against_size(
    curves: MeasuredCurves, title: str = "", ylabel: str = "time of one call"
) -> Axes:
    """Draw times against message size, with a label at the end of each curve.

    Runs on: the notebook's kernel.

    Args:
        curves: by name, sizes in bytes and the median, low and high time of each, in seconds.
        title: what was measured.
        ylabel: what takes this time.

    Returns:
        The axes of a new figure, which a notebook shows when its cell ends.
    """
    with new_axes(5.6, 4, title=title, ylabel=ylabel) as ax:
        draw_sizes({ax: curves}, {})
        describe(ax, _heading(title, ylabel), of_sizes(curves))
    return ax


def _heading(title: str, quantity: str) -> str:
    """What a figure shows, in words: its title and what is on its axis."""
    return f"{title}, {quantity}" if title else quantity


def of_sizes(curves: Mapping[str, Sequence[Floats]]) -> list[str]:
    """Times against message size, in words."""
    return of_curves(curves, lambda size: format_bytes(round(size)), lambda t: short(t, "s"))


def draw_sizes(panels: Mapping[Axes, MeasuredCurves], theory: Curves) -> None:
    """Draw curves and theory on logarithmic axes, which may share their scales."""
    ends_by_panel = {}
    for ax, curves in panels.items():
        ax.set(xscale="log", yscale="log", xlabel="tensor size")
        ends_by_panel[ax] = draw_curves(ax, curves, theory)
    # shared scales are known only when everything is drawn
    for ax, ends in ends_by_panel.items():
        log_ticks(ax.xaxis, "B")
        log_ticks(ax.yaxis, "s")
        label_ends(ax, ends)


def size_panels(panels: Mapping[str, MeasuredCurves], theory: Curves, simulated: str) -> Figure:
    """Draw times against message size in panels, one below the other on the same scales.

    Runs on: the notebook's kernel.

    Args:
        panels: by title, what was measured, as `time_against_size` takes it.
        theory: by name, sizes in bytes and times in seconds, drawn as thin dashed lines in every
            panel.
        simulated: where virtual times come from, written into every panel; "" for measured times.

    Returns:
        The figure; a notebook shows it if it is the last value of a cell.
    """
    rows = len(panels)
    with new_panels(5.6, 3.4 * rows, rows, 1, sharex=True, sharey=True) as (figure, axes):
        curves_by_panel = {}
        for ax, (title, curves) in zip(axes, panels.items(), strict=True):
            ax.set(title=title, ylabel="time of one call")
            badge(ax, simulated)
            ax.tick_params(labelbottom=True, labelsize=LABEL_SIZE)
            curves_by_panel[ax] = curves
        draw_sizes(curves_by_panel, theory)
        parts = []
        for title, curves in panels.items():
            parts += [f"{title}, {words}" for words in of_sizes(curves)]
        parts += [f"dashed, {words}" for words in of_sizes(theory)]
        described = "time of one call against tensor size"
        describe(figure, f"{described}, {simulated}" if simulated else described, parts)
    return figure


# --- against the number of ranks ---


def scaling(curves: Mapping[str, Sequence[Rate]], title: str, ylabel: str) -> Axes:
    """Draw what each rank does a second against the number of ranks: a level line loses nothing.

    Runs on: the notebook's kernel.

    Args:
        curves: by name, (ranks, rate of each, whether it fits into memory). A point that does not
            fit has a hollow mark.
        title: what was measured or predicted.
        ylabel: what the rate counts.

    Returns:
        The axes of a new figure, which a notebook shows when its cell ends.
    """
    points = list(chain.from_iterable(curves.values()))
    counts = sorted({ranks for ranks, _, _ in points})
    with new_axes(5.6, 3.8, title=title, xlabel="ranks", ylabel=ylabel) as ax:
        ends = []
        colors = curve_colors(curves)
        for name, curve in curves.items():
            color = colors[name]
            _draw_rates(ax, curve, color)
            ranks, rate, _ = curve[-1]
            ends.append(End(ranks, rate, name, color))
        if not all(fits for _, _, fits in points):
            words = "does not fit into memory"
            hollow = ax.plot([], [], "o", color=INK, markerfacecolor="white", label=words)
            ax.legend(handles=hollow, loc="best", fontsize=LABEL_SIZE)
        ax.set(xscale="log", ylim=(0, None))
        ax.set_xticks(counts, [f"{count:,}" for count in counts])
        ax.xaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter("{x:,g}")
        label_ends(ax, ends)
        rates = {name: list(zip(*curve, strict=True))[:2] for name, curve in curves.items()}
        parts = of_curves(rates, counted("ranks"), number)
        for name, curve in curves.items():
            too_large = [f"{ranks:,}" for ranks, _, fits in curve if not fits]
            if too_large:
                parts.append(f"{name} does not fit into memory on {', '.join(too_large)} ranks")
        describe(ax, _heading(title, ylabel), parts)
    return ax


def _draw_rates(ax: Axes, curve: Sequence[Rate], color: str) -> None:
    """Draw a line through the points, and a mark for each, hollow where it does not fit."""
    counts, rates, _ = zip(*curve, strict=True)
    ax.plot(counts, rates, color=color)
    for ranks, rate, fits in curve:
        fill = color if fits else "white"
        ax.plot(ranks, rate, "o", color=color, markerfacecolor=fill, markersize=6)


# --- during training ---


def training_curves(panels: Mapping[str, Curves], title: str = "", xlabel: str = "epoch") -> Figure:
    """Draw what changed during training, a panel for each quantity, with a label on each line.

    A line that is named after a rank, "rank 2", has its colour.

    Runs on: the notebook's kernel.

    Args:
        panels: by quantity, for example "loss", and by name of the line, its x and y. The axis of a
            quantity whose name ends in "%" goes from at most 0 to at least 100, any other axis
            begins at 0 or below.
        title: what was trained.
        xlabel: what x counts.

    Returns:
        The figure; a notebook shows it if it is the last value of a cell.
    """
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = 4.8 if columns == 1 else 7.5
    with new_panels(width, 3.4 * rows, rows, columns, title) as (figure, axes):
        for unused in axes[len(panels) :]:
            unused.remove()
        for ax, (quantity, lines) in zip(axes, panels.items(), strict=False):
            label_ends(ax, draw_lines(ax, quantity, lines, xlabel))
        parts = []
        for quantity, lines in panels.items():
            for words in of_curves(lines, counted(xlabel), number):
                parts.append(f"{quantity} of {words}")
        describe(figure, title or f"training, by {xlabel}", parts)
    return figure


def draw_lines(ax: Axes, quantity: str, lines: Curves, xlabel: str) -> list[End]:
    """Draw the lines of a panel that have points, and set the limits of its axes.

    Returns:
        The ends to label.
    """
    ends = []
    colors = curve_colors(lines)
    for name, (x, y) in lines.items():
        if len(x) == 0:  # the training has not begun
            continue
        color = colors[name]
        marks = "o-" if len(x) <= MOST_MARKERS else "-"
        ax.plot(x, y, marks, color=color, linewidth=1.6, markersize=4)
        ends.append(End(x[-1], y[-1], name, color))
    low, high = ax.get_ylim()
    if quantity.endswith("%"):
        high = max(105, high)
    ax.set(xlabel=xlabel, ylabel=quantity, ylim=(min(0, low), high))
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return ends
