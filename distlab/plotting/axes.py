"""Axes of what was measured: ticks with units, and labels beside the ends of curves.

Called by every figure of measurements, on the notebook's kernel.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import mean
from typing import Any, NamedTuple, cast

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator

from distlab.plotting.style import LABEL_SIZE, TITLE_SIZE, new_figure, style
from distlab.tables import format_bytes

Curve = tuple[Sequence[float], Sequence[float]]  # x, y


class End(NamedTuple):
    """The end of a curve, at which its label stands."""

    x: float
    y: float
    label: str
    color: str


@contextmanager
def new_axes(
    width: float, height: float, *, title: str = "", xlabel: str = "", ylabel: str = ""
) -> Iterator[Axes]:
    """Axes to draw on in the project's style: `with new_axes(5, 4, title="...") as ax: ...`.

    They are those of a new figure, sized in inches, which a notebook shows when its cell ends.
    """
    figure = new_figure(width, height, layout="constrained", shown=True)
    with style():
        yield figure.add_subplot(title=title, xlabel=xlabel, ylabel=ylabel)


@contextmanager
def new_panels(
    width: float, height: float, rows: int, columns: int, title: str = "", **options: Any
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure and its axes to draw on: `with new_panels(7, 4, 1, 2) as (figure, axes): ...`.

    The axes are given row by row, and the block has the project's style. A notebook shows the
    figure if it is the last value of a cell. `options` are those of matplotlib's `subplots`.
    """
    figure = new_figure(width, height, layout="constrained")
    with style():
        figure.suptitle(title, x=0.02, ha="left", fontsize=TITLE_SIZE)
        axes = figure.subplots(rows, columns, squeeze=False, **options)
        yield figure, list(axes.flat)


def figure_of(ax: Axes) -> Figure:
    """The figure that the axes are in."""
    return cast(Figure, ax.figure)  # never a SubFigure: no figure of this project has one


# --- ticks ---


def short(value: float, unit: str) -> str:
    """A number of at most three digits with a prefix for its unit: "38 µs", "2.31 GB/s"."""
    return EngFormatter(unit)(float(f"{value:.3g}"))


def log_ticks(axis: Axis, unit: str) -> None:
    """Put two to six ticks on a logarithmic axis, with units; those of "B" at powers of two."""
    low, high = axis.get_view_interval()
    ratio = high / low
    if ratio < 5:
        _widen(axis, low, high)
    if unit == "B":
        base = 4 if ratio > 64 else 2
        axis.set_major_locator(LogLocator(base=base, numticks=4))
        axis.set_major_formatter(lambda value, _: format_bytes(round(value)))
    else:
        axis.set_major_locator(LogLocator(subs=_log_steps(ratio), numticks=5))
        axis.set_major_formatter(lambda value, _: short(value, unit))
    axis.set_minor_locator(NullLocator())


def _widen(axis: Axis, low: float, high: float) -> None:
    """Make an axis reach over a factor of 5, and with it all axes that share its scale.

    Then two of the steps 1, 2, 3 and 5 lie in it. With fewer, matplotlib takes steps of its own.
    """
    middle = (low * high) ** 0.5
    limits = (middle / 5**0.5, middle * 5**0.5)
    if axis is axis.axes.xaxis:
        axis.axes.set_xlim(limits)
    else:
        axis.axes.set_ylim(limits)


def _log_steps(ratio: float) -> tuple[int, ...]:
    """Where ticks are in each power of ten, on an axis whose ends have this ratio."""
    if ratio > 300:
        return (1,)
    if ratio > 16:
        return (1, 3)
    return (1, 2, 3, 5)


def even_ticks(axis: Axis, unit: str) -> None:
    """Put at most six ticks on a linear axis, at round numbers, with units.

    Args:
        axis: of which axes.
        unit: for example "s"; "%" for numbers up to 100; "" for none.
    """
    axis.set_major_locator(MaxNLocator(5, steps=(1, 2, 5, 10)))
    if unit == "%":
        axis.set_major_formatter("{x:.0f}%")
    elif unit == "":
        axis.set_major_formatter("{x:g}")
    else:
        axis.set_major_formatter(EngFormatter(unit))


# --- labels ---


def label_ends(ax: Axes, ends: Sequence[End]) -> None:
    """Write labels to the right of the axes, beside the ends of curves and pushed apart."""
    figure = figure_of(ax)
    # The layout is known from here on, and with it the height of the axes.
    figure.draw_without_rendering()
    points_per_pixel = 72 / figure.dpi
    ends = sorted(ends, key=lambda end: end.y)
    heights = []
    for end in ends:
        _, pixels = ax.transData.transform((end.x, end.y))
        heights.append(pixels * points_per_pixel)
    places = spread(heights, LABEL_SIZE * 1.35)
    for end, height, place in zip(ends, heights, places, strict=True):
        ax.annotate(
            end.label,
            (1, end.y),
            xycoords=ax.get_yaxis_transform(),
            xytext=(9, place - height),
            textcoords="offset points",
            color=end.color,
            fontsize=LABEL_SIZE,
            va="center",
            annotation_clip=False,
        )


def spread(heights: Sequence[float], distance: float) -> list[float]:
    """Move ascending heights as little as needed, until neighbours are `distance` apart.

    Heights that were too close form a crowd, which stays centred on its mean.
    """
    # Each height has an opinion on where the first of all must be for it to stay where it is; a
    # crowd agrees on the mean.
    crowds: list[list[float]] = []
    for place, height in enumerate(heights):
        crowds.append([height - place * distance])
        while len(crowds) > 1 and mean(crowds[-1]) < mean(crowds[-2]):
            last = crowds.pop()
            crowds[-1].extend(last)
    moved: list[float] = []
    for crowd in crowds:
        lowest = mean(crowd)
        for _ in crowd:
            moved.append(lowest + len(moved) * distance)
    return moved
