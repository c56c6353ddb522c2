"""Axes of what was measured: ticks with units, labels beside the ends of curves.

Called by every figure of measurements, in the notebook's kernel.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator

from distlab.plotting.style import new_figure, style
from distlab.tables import format_bytes

Line = tuple[Sequence[float], Sequence[float]]  # x, y
End = tuple[float, float, str, str]  # of a curve: x, y, its label, its colour
SMALL = 11  # font size of labels in the axes, in points


@contextmanager
def new_axes(width: float, height: float, **labels: Any) -> Iterator[Axes]:
    """Axes with a title and labels, to draw on in the project's style: `with new_axes(5, 4) as ax:
    ...`.

    They are those of a new figure, sized in inches, which a notebook shows when its cell ends.
    """
    figure = new_figure(width, height, layout="constrained", shown=True)
    with style():
        yield figure.add_subplot(**labels)


@contextmanager
def new_panels(
    width: float, height: float, rows: int, columns: int, title: str = "", **options: Any
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure and its axes, row by row, to draw on in the project's style: `with new_panels(7, 4,
    1, 2) as ...`.

    A notebook shows it if it is the last value of a cell. `options` are those of matplotlib's
    `subplots`.
    """
    figure = new_figure(width, height, layout="constrained")
    with style():
        figure.suptitle(title, x=0.02, ha="left", fontsize=13)
        yield figure, [*figure.subplots(rows, columns, squeeze=False, **options).flat]


# --- ticks ---


def short(value: float, unit: str) -> str:
    """A number of at most three digits with the prefix of its unit that fits: "38 µs", "2.31
    GB/s".
    """
    return EngFormatter(unit)(float(f"{value:.3g}"))


def log_ticks(axis: Axis, unit: str) -> None:
    """Put two to six ticks on a logarithmic axis, with units; those of "B" at powers of two."""
    low, high = axis.get_view_interval()
    # so that two of the steps 1, 2, 3, 5 lie in it; with fewer, matplotlib takes steps of its own
    if high < 5 * low:
        middle = (low * high) ** 0.5
        # of all that share it
        axis.axes.set(**{f"{axis.axis_name}lim": (middle / 5**0.5, middle * 5**0.5)})
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
    """Put at most six ticks on a linear axis, at round numbers, with units: "s", "%" of numbers up
    to 100, or none.
    """
    axis.set_major_locator(MaxNLocator(5, steps=(1, 2, 5, 10)))
    axis.set_major_formatter({"%": "{x:.0f}%", "": "{x:g}"}.get(unit) or EngFormatter(unit))


# --- labels ---


def label_ends(ax: Axes, ends: Sequence[End]) -> None:
    """Write labels to the right of the axes, beside the ends of curves and pushed apart."""
    figure = ax.figure
    # the layout, and so the height of the axes, is known from here on
    figure.draw_without_rendering()
    points = 72 / figure.dpi
    ends = sorted(ends, key=lambda end: end[1])
    heights = [ax.transData.transform(end[:2])[1] * points for end in ends]
    for (_, y, text, color), at, height in zip(
        ends, spread(heights, SMALL * 1.35), heights, strict=True
    ):
        place = {
            "xytext": (9, at - height),
            "textcoords": "offset points",
            "xycoords": ax.get_yaxis_transform(),
        }
        ax.annotate(
            text, (1, y), color=color, fontsize=SMALL, va="center", annotation_clip=False, **place
        )


def spread(heights: Sequence[float], distance: float) -> list[float]:
    """Ascending heights moved as little as needed to be `distance` apart: each crowd stays centred
    on its mean.
    """
    # of labels that touch: where each of them wants the lowest label to be
    crowds: list[list[float]] = []
    for i, height in enumerate(heights):
        crowds.append([height - i * distance])
        while len(crowds) > 1 and mean(crowds[-1]) < mean(crowds[-2]):
            crowds[-2:] = [crowds[-2] + crowds[-1]]
    lowest = [mean(crowd) for crowd in crowds for _ in crowd]
    return [height + i * distance for i, height in enumerate(lowest)]
