"""Labs 04, 05, 11 and 20: what messages cost, and times and rates by number of ranks.

The notebooks call it through `distlab_course.figures`, in their kernel. Sizes are in bytes,
times in seconds, rates in samples a second.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distlab.plotting.axes import (
    Curve,
    End,
    even_ticks,
    label_ends,
    log_ticks,
    new_axes,
    new_panels,
    short,
)
from distlab.plotting.curves import Curves, MeasuredCurve, MeasuredCurves, draw_curves
from distlab.plotting.describing import counted, describe, number, of_curves
from distlab.plotting.palette import MODEL_COLOR
from distlab.plotting.style import HAZE, INK, LABEL_SIZE
from distlab.tables import count, format_bytes

Floats = Sequence[float]
# times as many ranks at the right as at the left; beyond that the axis is logarithmic
MOST_EVEN = 16
MOST_TICKS = 12  # more numbers of ranks on an axis would touch each other


class Fit(Protocol):
    """The cost of a message of m bytes, alpha + beta m: in seconds, and in seconds a byte."""

    @property
    def alpha(self) -> float: ...

    @property
    def beta(self) -> float: ...


def latency_bandwidth(
    num_bytes: Floats, seconds: Floats, low: Floats, high: Floats, fit: Fit, title: str = ""
) -> Figure:
    """Draw time and bandwidth against message size, one above the other.

    Args:
        num_bytes: sizes of the messages.
        seconds: median time of each.
        low: its lowest (or a low percentile).
        high: its highest (or a high percentile).
        fit: the line alpha + beta m: an object with `alpha` in s and `beta` in s/byte, above 0.
        title: what was measured.
    """
    with new_panels(5, 5.6, 2, 1, sharex=True) as (figure, (upper, lower)):
        upper.set(title=title, ylabel="time t", xscale="log", yscale="log")
        upper.set_xlim(min(num_bytes) / 1.6, max(num_bytes) * 1.6)
        lower.set(xlabel="message size m", ylabel="bandwidth m/t", yscale="log")
        lower.margins(y=0.12)

        sizes = np.geomspace(min(num_bytes), max(num_bytes), 60)
        times = fit.alpha + fit.beta * sizes
        measured = (num_bytes, seconds, low, high)
        _draw_measured_and_fit(upper, measured, (sizes.tolist(), times.tolist()))
        # the highest time is the lowest bandwidth
        rates = (
            num_bytes,
            np.divide(num_bytes, seconds).tolist(),
            np.divide(num_bytes, high).tolist(),
            np.divide(num_bytes, low).tolist(),
        )
        _draw_measured_and_fit(lower, rates, (sizes.tolist(), (sizes / times).tolist()))

        _write_alpha(upper, fit.alpha)
        lower.axhline(1 / fit.beta, color=MODEL_COLOR, linewidth=1, linestyle=":")
        _draw_knee(upper, lower, fit.alpha / fit.beta, num_bytes)
        _write_beta(lower, fit.beta)
        log_ticks(upper.yaxis, "s")
        log_ticks(lower.yaxis, "B/s")
        log_ticks(lower.xaxis, "B")
        parts = [f"fit α + βm with α {short(fit.alpha, 's')}, 1/β {short(1 / fit.beta, 'B/s')}"]
        parts += of_curves({"measured": (num_bytes, seconds)}, _size, _seconds)
        describe(figure, f"{title}, time and bandwidth against message size", parts)
    return figure


def _size(num_bytes: float) -> str:
    return format_bytes(round(num_bytes))


def _seconds(value: float) -> str:
    return short(value, "s")


def _draw_measured_and_fit(ax: Axes, curve: MeasuredCurve, line: Curve) -> None:
    """Draw a measured curve and the line that was fitted to it."""
    draw_curves(ax, {"fit": curve}, {"fit": line})
    ax.lines[-1].set_color(MODEL_COLOR)


def _write_alpha(ax: Axes, alpha: float) -> None:
    """Write the latency of the fit into the left upper corner, which is free: times rise."""
    ax.text(
        0.03,
        0.97,
        f"fit: α + βm\nα = {short(alpha, 's')}",
        transform=ax.transAxes,
        color=MODEL_COLOR,
        va="top",
        fontsize=LABEL_SIZE,
        bbox={"facecolor": "#FFFFFF", "edgecolor": "none", "alpha": 0.85, "pad": 1},
    )


def _write_beta(ax: Axes, beta: float) -> None:
    """Write the bandwidth of the fit above its line."""
    ax.text(
        0.02,
        1.1 / beta,
        f"1/β = {short(1 / beta, 'B/s')}",
        color=MODEL_COLOR,
        transform=ax.get_yaxis_transform(),
        va="bottom",
        fontsize=LABEL_SIZE,
    )


def _draw_knee(upper: Axes, lower: Axes, knee: float, num_bytes: Floats) -> None:
    """Draw the size at which latency and bandwidth cost the same, where it is one of the sizes."""
    smallest = min(num_bytes)
    largest = max(num_bytes)
    if not smallest < knee < largest:
        return
    for ax in (upper, lower):
        ax.axvline(knee, color=MODEL_COLOR, linewidth=1, linestyle=":")
    # rates rise with the size, so the right lower corner is free
    in_right_half = knee**2 > smallest * largest
    lower.text(
        knee,
        0.04,
        f" α/β = {format_bytes(round(knee))} ",
        color=MODEL_COLOR,
        ha="right" if in_right_half else "left",
        transform=lower.get_xaxis_transform(),
        fontsize=LABEL_SIZE,
    )


def time_against_ranks(curves: MeasuredCurves, title: str, theory: Curves) -> Axes:
    """Draw times against the number of ranks, with a label at the end of each curve.

    Args:
        curves: by name, numbers of ranks and the median, low and high time of each.
        title: what was measured.
        theory: by name, numbers of ranks and times, drawn as a thin dashed line. One with the name
            of a curve has its colour, and may go on beyond it.
    """
    with new_axes(5.6, 4, title=title, ylabel="time of one call") as ax:
        ends = _draw_against_ranks(ax, curves, theory)
        even_ticks(ax.yaxis, "s")
        label_ends(ax, ends)
        parts = of_curves(curves, counted("ranks"), _seconds)
        parts += [f"dashed, {words}" for words in of_curves(theory, counted("ranks"), _seconds)]
        describe(ax, f"{title}, time of one call against the number of ranks", parts)
    return ax


def beside_the_model(panels: Mapping[str, tuple[MeasuredCurves, Curve]]) -> Figure:
    """Draw times against size and what a model predicts, in panels on the same scales.

    Args:
        panels: by title, the curves (by name, sizes in bytes and the middle, low and high time of
            each), and sizes and times of the model.
    """
    rows = len(panels)
    with new_panels(5.6, 3.4 * rows, rows, 1, sharex=True, sharey=True) as (figure, axes):
        ends = []
        for ax, (title, (curves, model)) in zip(axes, panels.items(), strict=True):
            ax.set(title=title, xlabel="tensor size", ylabel="time of one call")
            ax.set(xscale="log", yscale="log")
            ax.tick_params(labelbottom=True, labelsize=LABEL_SIZE)
            ends.append(draw_curves(ax, curves, {"the model": model}))
        # shared scales are known only when everything is drawn
        for ax, ends_here in zip(axes, ends, strict=True):
            log_ticks(ax.xaxis, "B")
            log_ticks(ax.yaxis, "s")
            label_ends(ax, ends_here)
        parts = []
        for title, (curves, model) in panels.items():
            for words in of_curves({**curves, "the model": model}, _size, _seconds):
                parts.append(f"{title}, {words}")
        describe(figure, "time of one call against tensor size, beside a model", parts)
    return figure


def speedup(curves: MeasuredCurves, title: str = "", cores: int | None = None) -> Axes:
    """Draw the speedup of several ranks over one rank, in samples a second, beside the ideal.

    The label of a curve ends with its efficiency at the most ranks: the speedup divided by the
    number of ranks.

    Args:
        curves: by name, numbers of ranks from 1 up and the median, low and high of the rate.
        title: what was measured.
        cores: of the machine; where there are more ranks than cores is shaded.
    """
    relative: dict[str, MeasuredCurve] = {}
    counts: set[float] = set()
    for name, curve in curves.items():
        ranks, medians, lows, highs = curve
        alone = medians[0]
        ups = [median / alone for median in medians]
        efficiency = ups[-1] / ranks[-1]
        relative[f"{name}, {100 * efficiency:.0f}%"] = (
            ranks,
            ups,
            [low / alone for low in lows],
            [high / alone for high in highs],
        )
        counts.update(ranks)
    ideal = sorted(counts)
    with new_axes(5.6, 4, title=title, ylabel="speedup") as ax:
        ends = _draw_against_ranks(ax, relative, {"ideal": (ideal, ideal)})
        if cores is not None and ideal[-1] > cores:
            _shade_beyond(ax, cores)
        label_ends(ax, ends)
        parts = of_curves(relative, counted("ranks"), number)
        describe(ax, f"{title or 'scaling'}, speed-up over one rank and efficiency", parts)
    return ax


def _shade_beyond(ax: Axes, cores: int) -> None:
    """Shade where there are more ranks than cores, and say so."""
    left, right = ax.get_xlim()
    begin = max(left, cores + 0.5)
    ax.axvspan(begin, right, color=INK, alpha=HAZE, zorder=0, linewidth=0)
    ax.text(
        0.98,
        0.97,
        f"more ranks than the {count(cores, 'core')}",
        transform=ax.transAxes,
        ha="right",
        va="top",
        color=INK,
        fontsize=LABEL_SIZE,
    )


def _draw_against_ranks(ax: Axes, curves: MeasuredCurves, theory: Curves) -> list[End]:
    """Draw curves and theory against the number of ranks, and return their ends.

    The axis of the values begins at 0 and leaves space at the top.
    """
    numbers: set[int] = set()
    highest = 0.0
    for ranks, *values in (*curves.values(), *theory.values()):
        numbers.update(map(int, ranks))
        highest = max(highest, *values[-1])
    ends = draw_curves(ax, curves, theory)
    ticks = sorted(numbers)
    fewest = ticks[0]
    most = ticks[-1]
    if most > MOST_EVEN * fewest:
        limits = (fewest / 1.1, most * 1.1)
        ax.set_xscale("log", base=2)
    else:
        limits = (fewest - 0.3, most + 0.3)
    if len(ticks) > MOST_TICKS or most > MOST_EVEN * fewest:
        ticks = [number for number in ticks if _is_power_of_two(number)]
    ax.set(xlabel="ranks", xlim=limits, ylim=(0, 1.2 * highest))
    ax.set(xticks=ticks, xticklabels=map(str, ticks))
    return ends


def _is_power_of_two(number: int) -> bool:
    """Whether a number of 1 or more is 1, 2, 4, 8 and so on."""
    return number & (number - 1) == 0
