"""Figures of times against message size, measured or simulated, and what every figure of curves shares.

Called by the notebooks, by `Sweep.plot` and by more_ranks.py. Runs in the notebook's process. Sizes are in bytes, times
in seconds.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distlab.plotting.axes import SMALL, End, Line, label_ends, log_ticks, new_axes, short
from distlab.plotting.style import INK, curve_color, new_figure, style
from distlab.plotting.units import count
from distlab.text import refuse

if TYPE_CHECKING:
    from distlab.measure.timing import Fit

Curve = tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[float]]  # x, medians, lows, highs
HEIGHT = 3.4  # of a panel of a sweep, in inches
ROW = 0.08  # from one line of text to the next, as a share of such a panel's axes
MOST_FITS = 4  # whose numbers are written: more would fill the figure
EXAMPLE = 'Give {"gloo": (x, medians, lows, highs)}.'
FROM_ONE = 'Give {"digits": ([1, 2], medians, lows, highs)}.'


# --- what the figures share ---


def check_curves(curves: Mapping[str, Curve], from_one: bool = False) -> None:
    """Raise if there is no curve, or the lists of one are of different lengths, empty or not positive.

    Args:
        from_one: whether each curve must begin with 1 rank.
    """
    example = FROM_ONE if from_one else EXAMPLE
    if not curves:
        refuse("curves", "at least one curve", curves, example)
    for name, curve in curves.items():
        lengths = {len(part) for part in curve}
        if len(curve) != 4 or len(lengths) != 1 or 0 in lengths:
            refuse(f"curves[{name!r}]", "four lists of one length, 1 or more", curve, "Give (x, medians, lows, highs).")
        smallest = min(min(part) for part in curve)
        if smallest <= 0:
            advice = "Measure a longer time, or leave this point out."
            refuse(f"curves[{name!r}]", "positive numbers", smallest, advice)
        if from_one and curve[0][0] != 1:
            refuse(f"curves[{name!r}]", "a curve that begins with 1 rank", curve[0][0], example)


def draw_curves(ax: Axes, curves: Mapping[str, Curve], fitted: Collection[str]) -> list[End]:
    """Draw medians as points, on a line unless they are fitted, and their spread as bars; returns the curves' ends."""
    ends = []
    for place, (name, curve) in enumerate(curves.items()):
        x, medians, lows, highs = map(np.asarray, curve)
        spread = (medians - lows).clip(0), (highs - medians).clip(0)
        look = {"fmt": "o" if name in fitted else "o-", "markersize": 5, "elinewidth": 1.4, "capsize": 3}
        ax.errorbar(x, medians, yerr=spread, color=curve_color(place), **look)
        ends.append((*max(zip(*curve[:2], strict=True)), name, curve_color(place)))
    return ends


def draw_theory(ax: Axes, x: Sequence[float], y: Sequence[float], color: str = INK) -> None:
    """Draw what a model or an ideal says, as a thin dashed line."""
    ax.plot(x, y, color=color, linewidth=1.2, linestyle="--")


def draw_lines(ax: Axes, curves: Mapping[str, Curve], theory: Mapping[str, Line]) -> list[End]:
    """Draw curves, and theory in the colour of the curve of its name, if there is one; returns the ends to label."""
    ends = {name: (x, y, name, color) for x, y, name, color in draw_curves(ax, curves, theory)}
    for name, (x, y) in theory.items():
        end = (x[-1], y[-1], name, ends[name][-1] if name in ends else INK)
        draw_theory(ax, x, y, end[-1])
        if name not in ends or x[-1] > ends[name][0]:
            ends[name] = end
    return [*ends.values()]


def badge(ax: Axes, text: str) -> None:
    """Write between the title and the axes what times are virtual; nothing for "".

    Runs on: client.

    Args:
        text: on which machines, as `cluster.simulated` says it.
    """
    if text:
        lines = textwrap.wrap(text, 64)
        ax.set_title(ax.get_title("left"), loc="left", pad=6 + 13 * len(lines))
        look = {"ha": "left", "va": "bottom", "fontsize": SMALL - 1, "style": "italic", "color": INK, "gid": "badge"}
        ax.text(0, 1.02, "\n".join(lines), transform=ax.transAxes, **look)


# --- against message size ---


def latency_bandwidth(
    num_bytes: Sequence[float],
    seconds: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    fit: Fit,
    title: str = "",
) -> Figure:
    """Draw time and bandwidth against message size, one above the other.

    Runs on: client.

    Args:
        num_bytes: sizes of the messages, in bytes.
        seconds: median time of each, in seconds.
        low: its lowest (or a low percentile).
        high: its highest (or a high percentile).
        fit: the line alpha + n beta: any object with `alpha` in s and `beta` in s/byte, above 0.
        title: what was measured.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell.

    Raises:
        ArgumentError: if the lists are empty, of different lengths or not positive.
    """
    times = (num_bytes, seconds, low, high)
    check_curves({"measured": times})
    # the highest time is the lowest bandwidth
    rates = (num_bytes, *(np.divide(num_bytes, part) for part in (times[1], times[3], times[2])))
    figure = new_figure(5, 5.6, layout="constrained")
    with style():
        upper, lower = figure.subplots(2, 1, sharex=True)
        upper.set(title=title, ylabel="time t", xscale="log", yscale="log")
        upper.set_xlim(min(num_bytes) / 1.6, max(num_bytes) * 1.6)
        lower.set(xlabel="message size n", ylabel="bandwidth n/t", yscale="log")
        for ax, curve in ((upper, times), (lower, rates)):
            draw_curves(ax, {"measured": curve}, {"measured"})
        draw_fit(upper, lower, num_bytes, fit)
        for axis, unit in ((upper.yaxis, "s"), (lower.yaxis, "B/s"), (lower.xaxis, "B")):
            log_ticks(axis, unit)
    return figure


def draw_fit(upper: Axes, lower: Axes, num_bytes: Sequence[float], fit: Fit) -> None:
    """Draw a fitted line and its asymptote, and write alpha and 1/beta beside them."""
    color = curve_color(5)
    sizes, times = fitted_line(num_bytes, fit)
    draw_theory(upper, sizes, times, color)
    draw_theory(lower, sizes, sizes / times, color)
    label = f"fit: α + βn\nα = {short(fit.alpha, 's')}"
    # times rise with the size, so the left upper corner is free
    upper.text(0.03, 0.97, label, transform=upper.transAxes, color=color, va="top", fontsize=SMALL)
    lower.axhline(1 / fit.beta, color=color, linewidth=1, linestyle=":")
    place = {"transform": lower.get_yaxis_transform(), "va": "bottom"}
    lower.text(0.02, 1.1 / fit.beta, f"1/β = {short(1 / fit.beta, 'B/s')}", color=color, fontsize=SMALL, **place)
    lower.margins(y=0.12)


def fitted_line(num_bytes: Sequence[float], fit: Fit) -> tuple[np.ndarray, np.ndarray]:
    """Sizes from the smallest to the largest in equal ratios, and the time that the fit gives each."""
    sizes = np.geomspace(min(num_bytes), max(num_bytes), 60)
    return sizes, fit.alpha + fit.beta * sizes


def time_against_size(
    curves: Mapping[str, Curve], title: str = "", ylabel: str = "time of one call", ax: Axes | None = None
) -> Axes:
    """Draw times against message size, with a label at the end of each curve.

    Runs on: client.

    Args:
        curves: by name, sizes in bytes and the median, low and high time of each, in seconds.
        title: what was measured.
        ylabel: what a time is the time of.
        ax: axes to draw on; without it, those of a new figure, which a notebook shows when its cell ends.

    Returns:
        The axes.

    Raises:
        ArgumentError: if there is no curve, or one is empty, of lists of different lengths or not positive.
    """
    check_curves(curves)
    with new_axes(5.6, 4, ax, title=title, ylabel=ylabel) as ax:
        finish(ax, draw_sizes(ax, curves, {}))
    return ax


def draw_sizes(ax: Axes, curves: Mapping[str, Curve], theory: Mapping[str, Line]) -> list[End]:
    """Draw curves and theory on logarithmic axes; returns the ends to label."""
    ax.set(xscale="log", yscale="log", xlabel="message size")
    return draw_lines(ax, curves, theory)


def finish(ax: Axes, ends: Sequence[End]) -> None:
    """Set the ticks and write the labels, once all is drawn on the axes and on those that share their scales."""
    log_ticks(ax.xaxis, "B")
    log_ticks(ax.yaxis, "s")
    label_ends(ax, ends)


def sweep_panels(
    curves: Mapping[int, Mapping[str, Curve]],
    fits: Mapping[int, Mapping[str, Fit]],
    cores: int | None,
    title: str = "",
    theory: Mapping[str, Line] | None = None,
    simulated: str = "",
) -> Figure:
    """Draw a panel for each number of ranks, one below the other on the same scales.

    Runs on: client.

    Args:
        curves: by number of ranks, what was measured there, as `time_against_size` takes it.
        fits: by number of ranks, the fitted lines of some of the curves, by name.
        cores: of the machine; None where it does not count.
        title: what was measured.
        theory: by name, sizes in bytes and times in seconds, drawn as thin dashed lines in every panel.
        simulated: what times are virtual, written into every panel; "" for measured ones.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell.
    """
    figure = new_figure(5.6, HEIGHT * len(curves), layout="constrained")
    with style():
        panels = figure.subplots(len(curves), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        ends = []
        for ax, ranks in zip(panels, curves, strict=True):
            crowded = f" on {count(cores, 'core')}" if cores is not None and ranks > cores else ""
            ax.set(title=f"{title}{title and ', '}{count(ranks, 'rank')}{crowded}", ylabel="time of one call")
            lines = {name: fitted_line(curves[ranks][name][0], fit) for name, fit in fits[ranks].items()}
            ends.append(draw_sizes(ax, curves[ranks], {**lines, **(theory or {})}))
            write_fits(ax, curves[ranks], fits[ranks])
        low, high = ax.get_ylim()
        share = ROW * max(len(ax.texts) for ax in panels)  # of a panel's height, for the fits
        ax.set_ylim(low, high * (high / low) ** (share / (1 - share)))
        for ax, labels in zip(panels, ends, strict=True):
            finish(ax, labels)
            badge(ax, simulated)
            ax.tick_params(labelbottom=True, labelsize=SMALL)
    return figure


def write_fits(ax: Axes, curves: Mapping[str, Curve], fits: Mapping[str, Fit]) -> None:
    """Write alpha and 1/beta of each fitted line at the top, in its colour."""
    for row, (name, fit) in enumerate(fits.items() if len(fits) <= MOST_FITS else ()):
        # where the whole message costs next to nothing beside the latency, its bandwidth was not measured
        measured = fit.beta * max(curves[name][0]) > 0.01 * fit.alpha
        text = f"{name}: α {short(fit.alpha, 's')}" + (f", 1/β {short(1 / fit.beta, 'B/s')}" if measured else "")
        look = {"color": curve_color(list(curves).index(name)), "va": "top", "fontsize": 10}
        ax.text(0.02, 0.98 - row * ROW, text, transform=ax.transAxes, **look)
