"""Measured curves on axes: medians with their spread, and labels beside the ends of the curves.

Called by `timings` and `bars`. Runs in the notebook's process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import log10

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from distlab.errors import ArgumentError
from distlab.plotting.style import curve_color, new_figure, style

Curve = tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[float]]  # x, medians, lows, highs
SMALL = 11  # font size of labels in the axes, in points


def own_axes(width: float, height: float) -> Axes:
    """Axes on a figure of their own, in inches, that a notebook shows when its cell ends."""
    figure = new_figure(width, height, layout="constrained", shown=True)
    with style():
        return figure.add_subplot()


def check_curve(name: str, curve: Curve) -> None:
    """Raise if the lists of a curve are of different lengths, empty or not positive."""
    lengths = [len(part) for part in curve]
    if len(curve) != 4 or len(set(lengths)) != 1 or not lengths[0]:
        raise ArgumentError(
            f"curves[{name!r}] must be four lists of one length, 1 or more, got the lengths {lengths!r}. "
            "Give (x, medians, lows, highs)."
        )
    smallest = min(min(part) for part in curve)
    if smallest <= 0:
        raise ArgumentError(
            f"curves[{name!r}] must be positive numbers, got {smallest!r}. "
            "Measure a longer time, or leave this point out."
        )


def start_curves(curves: Mapping[str, Curve], ax: Axes | None, title: str, ylabel: str) -> Axes:
    """Check the curves, and give axes to draw them on."""
    if not curves:
        raise ArgumentError('curves must be at least one curve, got {}. Give {"gloo": (x, medians, lows, highs)}.')
    for name, curve in curves.items():
        check_curve(name, curve)
    ax = own_axes(5.6, 4) if ax is None else ax
    with style():
        ax.set(title=title, ylabel=ylabel)
    return ax


def draw_curve(ax: Axes, curve: Curve, color: str, line: bool = True) -> None:
    """Draw medians as points, on a line or without one, and the spread from low to high as bars."""
    x, medians, lows, highs = curve
    below = [max(0.0, m - low) for m, low in zip(medians, lows, strict=True)]
    above = [max(0.0, high - m) for m, high in zip(medians, highs, strict=True)]
    look = {"color": color, "fmt": "o-" if line else "o", "markersize": 5, "elinewidth": 1.4, "capsize": 3}
    ax.errorbar(x, medians, yerr=(below, above), **look)


def draw_curves(
    ax: Axes, curves: Mapping[str, Curve], fitted: Collection[str] = ()
) -> list[tuple[float, float, str, str]]:
    """Draw each curve in its colour, the fitted ones without a line; returns their ends, names and colours."""
    ends = []
    for place, (name, curve) in enumerate(curves.items()):
        draw_curve(ax, curve, curve_color(place), line=name not in fitted)
        last = max(range(len(curve[0])), key=curve[0].__getitem__)
        ends.append((curve[0][last], curve[1][last], name, curve_color(place)))
    return ends


def log_ticks(axis: Axis, form: Callable[[float], str]) -> None:
    """Ticks of a logarithmic axis, at least two and at most six of them, with units."""
    low, high = axis.get_view_interval()
    if high < 5 * low:  # two of the steps 1, 2, 3, 5 lie in it then; with fewer, matplotlib takes steps of its own
        middle = (low * high) ** 0.5
        axis.set_view_interval(middle / 5**0.5, middle * 5**0.5, ignore=True)
    decades = log10(high / low)
    steps = (1,) if decades > 2.5 else (1, 3) if decades > 1.2 else (1, 2, 3, 5)
    axis.set_major_locator(LogLocator(subs=steps, numticks=5))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: form(value)))


def even_ticks(axis: Axis, form: Callable[[float], str]) -> None:
    """Ticks of a linear axis, at most six of them at round numbers, with units."""
    axis.set_major_locator(MaxNLocator(5, steps=(1, 2, 5, 10)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: form(value)))


def label_ends(ax: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write labels to the right of the axes beside the ends (x, y, text, colour) of curves, pushed apart."""
    figure = ax.figure
    figure.draw_without_rendering()  # the layout, and so the height of the axes, is known from here on
    points = 72 / figure.dpi
    ends = sorted(ends, key=lambda end: end[1])
    heights = [ax.transData.transform(end[:2])[1] * points for end in ends]
    for (_, y, text, color), at, height in zip(ends, spread(heights, SMALL * 1.35), heights, strict=True):
        ax.annotate(
            text,
            (1, y),
            xytext=(9, at - height),
            xycoords=ax.get_yaxis_transform(),
            textcoords="offset points",
            color=color,
            fontsize=SMALL,
            va="center",
            annotation_clip=False,
        )


def spread(heights: Sequence[float], distance: float) -> list[float]:
    """Ascending heights moved as little as needed to be `distance` apart: each crowd stays centred on its mean."""
    crowds: list[list[float]] = []  # the heights of the labels that touch
    for height in heights:
        crowds.append([height])
        while len(crowds) > 1 and bottom(crowds[-1], distance) - top(crowds[-2], distance) < distance:
            crowds[-2:] = [crowds[-2] + crowds[-1]]
    return [bottom(crowd, distance) + i * distance for crowd in crowds for i in range(len(crowd))]


def bottom(crowd: Sequence[float], distance: float) -> float:
    """Height of the lowest label of a crowd."""
    return sum(crowd) / len(crowd) - (len(crowd) - 1) * distance / 2


def top(crowd: Sequence[float], distance: float) -> float:
    """Height of the highest label of a crowd."""
    return bottom(crowd, distance) + (len(crowd) - 1) * distance
