"""Figures of measured times: against message size and against the number of ranks.

Called by the notebooks and by `distlab.timing`'s results. Runs in the notebook's process. Sizes in bytes, times in s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from distlab.plotting.curves import (
    SMALL,
    Curve,
    check_curve,
    draw_curve,
    draw_curves,
    even_ticks,
    label_ends,
    log_ticks,
    start_curves,
)
from distlab.plotting.style import HAZE, INK, curve_color, new_figure, style
from distlab.plotting.units import format_bandwidth, format_bytes, format_seconds


class Fit(Protocol):
    """A fitted line alpha + beta n: what `latency_bandwidth` needs to know of it."""

    alpha: float  # s
    beta: float  # s/byte

    def seconds(self, num_bytes: float) -> float:
        """The time of a message of that size."""


def latency_bandwidth(
    num_bytes: Sequence[float],
    seconds: Sequence[float],
    low: Sequence[float] | None = None,
    high: Sequence[float] | None = None,
    fit: Fit | None = None,
    title: str = "",
) -> Figure:
    """Draw time and bandwidth against message size, one above the other.

    Runs on: client.

    Args:
        num_bytes: sizes of the messages, in bytes.
        seconds: median time of each, in seconds.
        low: its lowest (or a low percentile); without it no spread is drawn.
        high: its highest (or a high percentile).
        fit: the line alpha + n beta: any object with `alpha` in s, `beta` in s/byte and `seconds(num_bytes)`.
        title: what was measured.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell.

    Raises:
        ArgumentError: if the lists are empty, of different lengths or not positive.
    """
    curve = (num_bytes, seconds, seconds if low is None else low, seconds if high is None else high)
    check_curve("measured", curve)
    x = list(num_bytes)
    # The highest time is the lowest bandwidth.
    rates = tuple([n / t for n, t in zip(x, part, strict=True)] for part in (curve[1], curve[3], curve[2]))
    figure = new_figure(5, 5.6, layout="constrained")
    with style():
        upper, lower = figure.subplots(2, 1, sharex=True)
        upper.set(xscale="log", yscale="log", ylabel="time t", title=title, xlim=(min(x) / 1.6, max(x) * 1.6))
        lower.set(yscale="log", ylabel="bandwidth n/t", xlabel="message size n")
        for ax, part in ((upper, curve), (lower, (x, *rates))):
            draw_curve(ax, part, curve_color(0), line=fit is None)
        if fit is not None:
            draw_fit(upper, lower, x, fit)
        log_ticks(upper.yaxis, format_seconds)
        log_ticks(lower.yaxis, format_bandwidth)
        log_ticks(lower.xaxis, format_bytes)
    return figure


def draw_fit(upper: Axes, lower: Axes, num_bytes: Sequence[float], fit: Fit) -> None:
    """Draw a fitted line and its asymptote, and write alpha and 1/beta beside them."""
    color = curve_color(5)
    sizes = log_steps(min(num_bytes), max(num_bytes))
    upper.plot(sizes, [fit.seconds(n) for n in sizes], color=color, linewidth=1.5, linestyle="--")
    lower.plot(sizes, [n / fit.seconds(n) for n in sizes], color=color, linewidth=1.5, linestyle="--")
    label = f"fit: α + βn\nα = {format_seconds(fit.alpha)}"
    # Times rise with the size, so the left upper corner is free.
    upper.text(0.03, 0.97, label, transform=upper.transAxes, color=color, va="top", fontsize=SMALL)
    if fit.beta > 0:
        lower.axhline(1 / fit.beta, color=color, linewidth=1, linestyle=":")
        label = f"1/β = {format_bandwidth(1 / fit.beta)}"
        place = {"xytext": (5, 4), "textcoords": "offset points", "xycoords": lower.get_yaxis_transform()}
        lower.annotate(label, (0, 1 / fit.beta), color=color, va="bottom", fontsize=SMALL, **place)
        lower.margins(y=0.12)


def log_steps(low: float, high: float, count: int = 60) -> list[float]:
    """Numbers from low to high in equal ratios."""
    return [low * (high / low) ** (i / (count - 1)) for i in range(count)]


def time_against_size(
    curves: Mapping[str, Curve],
    title: str = "",
    ylabel: str = "time of one call",
    theory: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw times against message size, with a label at the end of each curve.

    Runs on: client.

    Args:
        curves: by name, sizes in bytes and the median, low and high time of each, in seconds.
        title: what was measured.
        ylabel: what a time is the time of.
        theory: by name, sizes in bytes and times in seconds, drawn as a thin dashed line. One with the name of a curve
            has its colour and no label of its own.
        ax: axes to draw on; without it, those of a new figure, which a notebook shows when its cell ends.

    Returns:
        The axes.

    Raises:
        ArgumentError: if there is no curve, or one is empty, of lists of different lengths or not positive.
    """
    ax = start_curves(curves, ax, title, ylabel)
    with style():
        ax.set(xscale="log", yscale="log", xlabel="message size")
        ends = draw_curves(ax, curves, theory or ())
        for name, (sizes, seconds) in (theory or {}).items():
            known = list(curves).index(name) if name in curves else None
            color = INK if known is None else curve_color(known)
            ax.plot(sizes, seconds, color=color, linewidth=1.2, linestyle="--")
            if known is None:
                ends.append((sizes[-1], seconds[-1], name, color))
        log_ticks(ax.xaxis, format_bytes)
        log_ticks(ax.yaxis, format_seconds)
        label_ends(ax, ends)
    return ax


def time_against_ranks(
    curves: Mapping[str, Curve], title: str = "", cores: int | None = None, ax: Axes | None = None
) -> Axes:
    """Draw times against the number of ranks, with a label at the end of each curve.

    Runs on: client.

    Args:
        curves: by name, numbers of ranks and the median, low and high time of each, in seconds.
        title: what was measured.
        cores: cores of the machine; where there are more ranks than cores is shaded.
        ax: axes to draw on; without it, those of a new figure, which a notebook shows when its cell ends.

    Returns:
        The axes.

    Raises:
        ArgumentError: if there is no curve, or one is empty, of lists of different lengths or not positive.
    """
    ax = start_curves(curves, ax, title, "time of one call")
    ranks = sorted({n for curve in curves.values() for n in curve[0]})
    highest = max(max(curve[3]) for curve in curves.values())
    with style():
        ends = draw_curves(ax, curves)
        ax.set(xlabel="ranks", xlim=(ranks[0] - 0.3, ranks[-1] + 0.3), ylim=(0, highest * 1.2))
        ax.xaxis.set_major_locator(FixedLocator(ranks))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        even_ticks(ax.yaxis, format_seconds)
        if cores is not None and ranks[-1] > cores:
            shade_beyond(ax, cores)
        label_ends(ax, ends)
    return ax


def shade_beyond(ax: Axes, cores: int) -> None:
    """Shade where there are more ranks than cores, and say so at the top."""
    left, right = ax.get_xlim()
    ax.axvspan(max(left, cores + 0.5), right, color=INK, alpha=HAZE, zorder=0, linewidth=0)
    note = f"more ranks than the {cores} cores" if cores > 1 else "more ranks than the 1 core"
    ax.text(0.98, 0.97, note, transform=ax.transAxes, ha="right", va="top", color=INK, fontsize=SMALL)
