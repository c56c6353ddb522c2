"""Curves: times against message size, measured or simulated, and what changes during training.

Called by the notebooks and by `Sweep.plot`, in the notebook's kernel. Sizes are in bytes, times in
seconds.
"""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from distlab.plotting.axes import SMALL, End, Line, label_ends, log_ticks, new_axes, new_panels
from distlab.plotting.style import INK, curve_color

# x, medians, lows, highs
Curve = tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[float]]
MOST_MARKERS = 40  # with more points a line has none


# --- what the figures share ---


def draw_curves(ax: Axes, curves: Mapping[str, Curve], theory: Mapping[str, Line]) -> list[End]:
    """Draw medians with their spread, and theory as dashed lines, in the colour of the curve of the
    same name.

    The points of a curve with a theory are not joined.

    Returns:
        The ends to label.
    """
    ends = {}
    for place, (name, curve) in enumerate(curves.items()):
        x, medians, lows, highs = map(np.asarray, curve)
        spread = (medians - lows).clip(0), (highs - medians).clip(0)
        look = {
            "fmt": "o" if name in theory else "o-",
            "markersize": 5,
            "elinewidth": 1.4,
            "capsize": 3,
        }
        ax.errorbar(x, medians, yerr=spread, color=curve_color(place, name), **look)
        ends[name] = (*max(zip(*curve[:2], strict=True)), name, curve_color(place, name))
    for name, (x, y) in theory.items():
        end = (x[-1], y[-1], name, ends[name][-1] if name in ends else INK)
        ax.plot(x, y, color=end[-1], linewidth=1.2, linestyle="--")
        if name not in ends or x[-1] > ends[name][0]:
            ends[name] = end
    return [*ends.values()]


def badge(ax: Axes, text: str) -> None:
    """Write between the title and the axes where virtual times come from; nothing for "".

    Runs on: the notebook's kernel.

    Args:
        text: on which machines: `cluster.simulated`.
    """
    if text:
        lines = textwrap.wrap(text, 64)
        ax.set_title(ax.get_title("left"), loc="left", pad=6 + 13 * len(lines))
        look = {
            "ha": "left",
            "va": "bottom",
            "fontsize": SMALL - 1,
            "style": "italic",
            "color": INK,
            "gid": "badge",
        }
        ax.text(0, 1.02, "\n".join(lines), transform=ax.transAxes, **look)


# --- against message size ---


def time_against_size(
    curves: Mapping[str, Curve], title: str = "", ylabel: str = "time of one call"
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
    return ax


def draw_sizes(panels: Mapping[Axes, Mapping[str, Curve]], theory: Mapping[str, Line]) -> None:
    """Draw curves and theory on logarithmic axes, which may share their scales."""
    ends = {}
    for ax, curves in panels.items():
        ax.set(xscale="log", yscale="log", xlabel="tensor size")
        ends[ax] = draw_curves(ax, curves, theory)
    for ax in panels:  # the scales are known once all is drawn
        log_ticks(ax.xaxis, "B")
        log_ticks(ax.yaxis, "s")
        label_ends(ax, ends[ax])


def size_panels(
    panels: Mapping[str, Mapping[str, Curve]], theory: Mapping[str, Line], simulated: str
) -> Figure:
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
    with new_panels(5.6, 3.4 * len(panels), len(panels), 1, sharex=True, sharey=True) as (
        figure,
        axes,
    ):
        for ax, title in zip(axes, panels, strict=True):
            ax.set(title=title, ylabel="time of one call")
            badge(ax, simulated)
            ax.tick_params(labelbottom=True, labelsize=SMALL)
        draw_sizes(dict(zip(axes, panels.values(), strict=True)), theory)
    return figure


# --- against the number of ranks ---


def scaling(
    curves: Mapping[str, Sequence[tuple[int, float, bool]]], title: str, ylabel: str
) -> Axes:
    """Draw what each rank does a second against how many they are: a level line loses nothing.

    Runs on: the notebook's kernel.

    Args:
        curves: by name, (ranks, rate of each, whether it fits into memory); what does not has a
            hollow mark.
    """
    with new_axes(5.6, 3.8, title=title, xlabel="ranks", ylabel=ylabel) as ax:
        ends, sizes = [], sorted({n for points in curves.values() for n, *_ in points})
        for place, (name, points) in enumerate(curves.items()):
            color = curve_color(place, name)
            ax.plot(*zip(*[point[:2] for point in points], strict=True), color=color)
            for n, rate, fits in points:
                ax.plot(
                    n,
                    rate,
                    "o",
                    color=color,
                    markerfacecolor=color if fits else "white",
                    markersize=6,
                )
            ends.append((*points[-1][:2], name, color))
        if not all(fits for points in curves.values() for *_, fits in points):
            hollow = ax.plot(
                [], [], "o", color=INK, markerfacecolor="white", label="does not fit into memory"
            )
            ax.legend(handles=hollow, loc="best", fontsize=SMALL)
        ax.set(xscale="log", ylim=(0, None))
        ax.set_xticks(sizes, [f"{n:,}" for n in sizes])
        ax.xaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter("{x:,g}")
        label_ends(ax, ends)
    return ax


# --- during training ---


def training_curves(
    panels: Mapping[str, Mapping[str, Line]], title: str = "", xlabel: str = "epoch"
) -> Figure:
    """Draw what changed during training, a panel for each quantity, with a label at the end of each
    line.

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
    rows = -(-len(panels) // columns)
    with new_panels(4.8 if columns == 1 else 7.5, 3.4 * rows, rows, columns, title) as (
        figure,
        axes,
    ):
        for ax in axes[len(panels) :]:
            ax.remove()
        for ax, (quantity, lines) in zip(axes, panels.items(), strict=False):
            label_ends(ax, draw_lines(ax, quantity, lines, xlabel))
    return figure


def draw_lines(ax: Axes, quantity: str, lines: Mapping[str, Line], xlabel: str) -> list[End]:
    """Draw the lines of a panel that have points, and choose where its axes begin and end; returns
    the lines' ends.
    """
    ends = []
    for place, (name, (x, y)) in enumerate(lines.items()):
        if len(x):
            marks = "o-" if len(x) <= MOST_MARKERS else "-"
            ax.plot(x, y, marks, color=curve_color(place, name), linewidth=1.6, markersize=4)
            ends.append((x[-1], y[-1], name, curve_color(place, name)))
    low, high = ax.get_ylim()
    ax.set(
        xlabel=xlabel,
        ylabel=quantity,
        ylim=(min(0, low), max(105, high) if quantity.endswith("%") else high),
    )
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return ends
