"""Axes with measured curves: medians with their spread, ticks with units, labels beside the ends of the curves.

Called by every figure of measurements. Runs in the notebook's process.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator

from distlab.errors import refuse
from distlab.plotting.style import HAZE, INK, curve_color, new_figure, style
from distlab.plotting.units import count, format_bytes

Curve = tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[float]]  # x, medians, lows, highs
End = tuple[float, float, str, str]  # of a curve: x, y, its label, its colour
SMALL = 11  # font size of labels in the axes, in points


def new_axes(width: float, height: float, ax: Axes | None = None, **labels: Any) -> Axes:
    """Axes with a title and labels: those given, or those of a figure of their own, in inches.

    A notebook shows a figure that is made here when its cell ends.
    """
    if ax is None:
        figure = new_figure(width, height, layout="constrained", shown=True)
        with style():
            ax = figure.add_subplot()
    with style():
        ax.set(**labels)
    return ax


def badge(ax: Axes, text: str) -> None:
    """Write between the title and the axes what times are virtual; nothing for ""."""
    if text:
        lines = textwrap.wrap(text, 64)
        ax.set_title(ax.get_title("left"), loc="left", pad=6 + 13 * len(lines))
        look = {"ha": "left", "va": "bottom", "fontsize": SMALL - 1, "style": "italic", "gid": "badge"}
        ax.text(0, 1.02, "\n".join(lines), transform=ax.transAxes, **look)


def check_curves(
    curves: Mapping[str, Curve], example: str = 'Give {"gloo": (x, medians, lows, highs)}.', from_one: bool = False
) -> None:
    """Raise if there is no curve, or the lists of one are of different lengths, empty or not positive.

    Args:
        example: a call that works. from_one: whether each curve must begin with 1 rank.
    """
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


# --- curves ---


def draw_curves(ax: Axes, curves: Mapping[str, Curve], fitted: Collection[str] = ()) -> list[End]:
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


def draw_against_ranks(
    ax: Axes, curves: Mapping[str, Curve], cores: int | None, ideal: Callable[[int], float] | None = None
) -> list[End]:
    """Draw curves against the number of ranks, from 0 up, with room at the top; returns their ends.

    Args:
        cores: of the machine; where there are more ranks than cores is shaded. ideal: of a number of ranks, a line.
    """
    ranks = sorted({n for curve in curves.values() for n in curve[0]})
    ends = draw_curves(ax, curves)
    highest = max(max(curve[3]) for curve in curves.values())
    if ideal is not None:
        draw_theory(ax, ranks, [ideal(n) for n in ranks])
        ends.append((ranks[-1], ideal(ranks[-1]), "ideal", INK))
        highest = max(highest, ideal(ranks[-1]))
    left, right = ranks[0] - 0.3, ranks[-1] + 0.3
    ax.set(xlabel="ranks", xlim=(left, right), ylim=(0, 1.2 * highest), xticks=ranks, xticklabels=map(str, ranks))
    if cores is not None and ranks[-1] > cores:
        ax.axvspan(max(left, cores + 0.5), right, color=INK, alpha=HAZE, zorder=0, linewidth=0)
        note = f"more ranks than the {count(cores, 'core')}"
        ax.text(0.98, 0.97, note, transform=ax.transAxes, ha="right", va="top", color=INK, fontsize=SMALL)
    return ends


# --- ticks ---


def short(value: float, unit: str) -> str:
    """A number of at most three digits with the prefix of its unit that fits: "38 µs", "2.31 GB/s"."""
    return EngFormatter(unit)(float(f"{value:.3g}"))


def log_ticks(axis: Axis, unit: str) -> None:
    """Ticks of a logarithmic axis, at least two and at most six of them, with units; those of "B" at powers of two."""
    low, high = axis.get_view_interval()
    if high < 5 * low:  # two of the steps 1, 2, 3, 5 lie in it then; with fewer, matplotlib takes steps of its own
        middle = (low * high) ** 0.5
        axis.axes.set(**{f"{axis.axis_name}lim": (middle / 5**0.5, middle * 5**0.5)})  # of all that share it
    ratio = high / low
    if unit == "B":
        axis.set_major_locator(LogLocator(base=4 if ratio > 64 else 2, numticks=4))
        axis.set_major_formatter(lambda value, _: format_bytes(round(value)))
    else:
        steps = (1,) if ratio > 300 else (1, 3) if ratio > 16 else (1, 2, 3, 5)
        axis.set_major_locator(LogLocator(subs=steps, numticks=5))
        axis.set_major_formatter(lambda value, _: short(value, unit))
    axis.set_minor_locator(NullLocator())


def even_ticks(axis: Axis, unit: str) -> None:
    """Ticks of a linear axis, at most six of them at round numbers, with units: "s", or "%" of numbers up to 100."""
    axis.set_major_locator(MaxNLocator(5, steps=(1, 2, 5, 10)))
    axis.set_major_formatter("{x:.0f}%" if unit == "%" else lambda value, _: short(value, unit))


# --- labels ---


def label_ends(ax: Axes, ends: Sequence[End], in_layout: bool = True) -> None:
    """Write labels to the right of the axes beside the ends of curves, pushed apart.

    Args:
        in_layout: whether the axes make room for them.
    """
    figure = ax.figure
    figure.draw_without_rendering()  # the layout, and so the height of the axes, is known from here on
    points = 72 / figure.dpi
    ends = sorted(ends, key=lambda end: end[1])
    heights = [ax.transData.transform(end[:2])[1] * points for end in ends]
    for (_, y, text, color), at, height in zip(ends, spread(heights, SMALL * 1.35), heights, strict=True):
        place = {"xytext": (9, at - height), "textcoords": "offset points", "xycoords": ax.get_yaxis_transform()}
        place["annotation_clip"] = False
        ax.annotate(text, (1, y), color=color, fontsize=SMALL, va="center", in_layout=in_layout, **place)


def spread(heights: Sequence[float], distance: float) -> list[float]:
    """Ascending heights moved as little as needed to be `distance` apart: each crowd stays centred on its mean."""
    crowds: list[list[float]] = []  # of labels that touch: the height at which each of them wants the lowest label
    for i, height in enumerate(heights):
        crowds.append([height - i * distance])
        while len(crowds) > 1 and mean(crowds[-1]) < mean(crowds[-2]):
            crowds[-2:] = [crowds[-2] + crowds[-1]]
    lowest = [mean(crowd) for crowd in crowds for _ in crowd]
    return [height + i * distance for i, height in enumerate(lowest)]
