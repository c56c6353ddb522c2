"""Figures of times and rates against the number of ranks, measured or simulated.

Called by the notebooks. Runs in the notebook's process. Times are in seconds, rates in samples a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distlab.plotting.axes import SMALL, End, Line, even_ticks, label_ends, new_axes
from distlab.plotting.curves import Curve, check_curves, draw_lines
from distlab.plotting.style import HAZE, INK, new_figure, style
from distlab.plotting.units import count

MOST_EVEN = 16  # times as many ranks at the right as at the left; beyond that the axis is logarithmic


def time_against_ranks(
    curves: Mapping[str, Curve], title: str = "", cores: int | None = None, theory: Mapping[str, Line] | None = None
) -> Axes:
    """Draw times against the number of ranks, with a label at the end of each curve.

    Runs on: client.

    Args:
        curves: by name, numbers of ranks and the median, low and high time of each, in seconds.
        title: what was measured.
        cores: cores of the machine; where there are more ranks than cores is shaded.
        theory: by name, numbers of ranks and times in seconds, drawn as a thin dashed line. One with the name of a
            curve has its colour, and may go on beyond it.

    Returns:
        The axes of a new figure, which a notebook shows when its cell ends.

    Raises:
        ArgumentError: if there is no curve, or one is empty, of lists of different lengths or not positive.
    """
    check_curves(curves)
    with new_axes(5.6, 4, title=title, ylabel="time of one call") as ax:
        ends = draw_against_ranks(ax, curves, cores, theory or {})
        even_ticks(ax.yaxis, "s")
        label_ends(ax, ends)
    return ax


def speedup(curves: Mapping[str, Curve], title: str = "", cores: int | None = None) -> Axes:
    """Draw how many times the samples of one rank several ranks take in a second, beside the ideal.

    The label of a curve ends with its efficiency at the most ranks: the speed-up divided by the number of ranks.

    Runs on: client.

    Args:
        curves: by name, numbers of ranks from 1 up and the median, low and high of the samples a second.
        title, cores: see `time_against_ranks`.

    Returns:
        The axes, as there.

    Raises:
        ArgumentError: as in `time_against_ranks`, or if a curve does not begin with 1 rank.
    """
    check_curves(curves, from_one=True)
    labelled = {f"{name}, {efficiency(curve)[1][-1]:.0f}%": relative(curve) for name, curve in curves.items()}
    with new_axes(5.6, 4, title=title, ylabel="speed-up") as ax:
        label_ends(ax, draw_against_ranks(ax, labelled, cores, ideal(curves, lambda n: n)))
    return ax


def scaling(curves: Mapping[str, Curve], title: str = "", cores: int | None = None, unit: str = "samples/s") -> Figure:
    """Draw throughput, speed-up and efficiency against the number of ranks, a panel for each, with the ideal.

    Speed-up is the rate as a multiple of one rank's, efficiency the speed-up divided by the number of ranks.

    Runs on: client.

    Args:
        curves: by name, numbers of ranks from 1 up and the median, low and high of the rate.
        title, cores: see `time_against_ranks`.
        unit: of the rate.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell.

    Raises:
        ArgumentError: as in `speedup`.
    """
    check_curves(curves, from_one=True)
    panels = {
        f"throughput, {unit}": (lambda curve: curve, {}),
        "speed-up": (relative, ideal(curves, lambda n: n)),
        "efficiency, %": (efficiency, ideal(curves, lambda n: 100)),
    }
    figure = new_figure(7.5, 6.4, layout="constrained")
    with style():
        figure.suptitle(title, x=0.02, ha="left", fontsize=13)
        for place, (ylabel, (change, line)) in enumerate(panels.items(), start=1):
            ax = figure.add_subplot(2, 2, place, ylabel=ylabel)
            ends = draw_against_ranks(ax, {name: change(curve) for name, curve in curves.items()}, cores, line)
        label_ends(ax, ends, in_layout=False)  # beside the last one, where there is no fourth panel
    return figure


def relative(curve: Curve) -> Curve:
    """A curve of rates as multiples of its first median."""
    ranks, *rates = curve
    return (ranks, *(np.divide(part, curve[1][0]) for part in rates))


def efficiency(curve: Curve) -> Curve:
    """A curve of rates as percentages of what as many times one rank's would be."""
    ranks, *rates = relative(curve)
    return (ranks, *(100 * part / ranks for part in rates))


def draw_against_ranks(
    ax: Axes, curves: Mapping[str, Curve], cores: int | None, theory: Mapping[str, Line]
) -> list[End]:
    """Draw curves and theory against the number of ranks, from 0 up, with room at the top; returns their ends.

    Args:
        cores: of the machine; where there are more ranks than cores is shaded.
    """
    lines = [*curves.values(), *theory.values()]
    ranks = sorted({n for line in lines for n in line[0]})
    ends = draw_lines(ax, curves, theory)
    left, right = ranks[0] - 0.3, ranks[-1] + 0.3
    if ranks[-1] > MOST_EVEN * ranks[0]:
        left, right = ranks[0] / 1.1, ranks[-1] * 1.1
        ax.set_xscale("log", base=2)
    highest = max(max(line[-1]) for line in lines)
    ax.set(xlabel="ranks", xlim=(left, right), ylim=(0, 1.2 * highest), xticks=ranks, xticklabels=map(str, ranks))
    if cores is not None and ranks[-1] > cores:
        ax.axvspan(max(left, cores + 0.5), right, color=INK, alpha=HAZE, zorder=0, linewidth=0)
        note = f"more ranks than the {count(cores, 'core')}"
        ax.text(0.98, 0.97, note, transform=ax.transAxes, ha="right", va="top", color=INK, fontsize=SMALL)
    return ends


def ideal(curves: Mapping[str, Curve], of: Callable[[int], float]) -> dict[str, Line]:
    """The line of what n ranks should reach, as theory for `draw_against_ranks`."""
    ranks = sorted({n for curve in curves.values() for n in curve[0]})
    return {"ideal": (ranks, [of(n) for n in ranks])}
