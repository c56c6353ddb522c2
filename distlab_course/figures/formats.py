"""Lab 55: how close the numbers of a format are.

The notebook calls it through `distlab_course.figures`, in its kernel.
"""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from distlab.plotting.axes import new_axes
from distlab.plotting.bars import legend_below
from distlab.plotting.describing import describe
from distlab.plotting.palette import curve_colors

SMALLEST, LARGEST = 1e-9, 1e6  # magnitudes that are drawn
Gaps = tuple[Sequence[float], Sequence[float]]  # magnitudes, and the gap above each


def spacing(formats: Mapping[str, Gaps], title: str = "") -> Axes:
    """Draw how far the next larger number is from a number, a line for each format.

    A dot is the smallest positive number of a format, and a bar at the right end of a line its
    largest number. An arrow instead says that the line goes on beyond the axes.

    Args:
        formats: by name, magnitudes in ascending order, and the gap above each.
        title: what is compared.
    """
    xlabel = "size of the number"
    ylabel = "gap to the next number"
    colors = curve_colors(formats)
    with new_axes(7.2, 4.4, title=title, xlabel=xlabel, ylabel=ylabel) as ax:
        ax.set(xscale="log", yscale="log", xlim=(SMALLEST, LARGEST))
        lines = []
        words = []
        for name, (magnitudes, gaps) in formats.items():
            lines.append(_draw_gaps(ax, name, (magnitudes, gaps), colors[name]))
            words.append(f"{name} from {magnitudes[0]:.2g} to {magnitudes[-1]:.2g}")
        legend_below(ax, [], lines, columns=5)
        describe(ax, title or ylabel, words)
    return ax


def _draw_gaps(ax: Axes, name: str, given: Gaps, color: str) -> Line2D:
    """Draw the part of a format's line that the axes show, and its ends; the line."""
    magnitudes = given[0]
    xs, ys = _within_axes(given)
    (line,) = ax.step(xs, ys, where="post", color=color, linewidth=1.6, label=name)
    if magnitudes[0] >= SMALLEST:
        ax.plot(xs[0], ys[0], "o", color=color, markersize=5)
    else:
        ax.plot(xs[0], ys[0], "<", color=color, markersize=7, clip_on=False)
    if magnitudes[-1] <= LARGEST:
        ax.plot(xs[-1], ys[-1], "|", color=color, markersize=14, markeredgewidth=2)
    else:
        ax.plot(xs[-1], ys[-1], ">", color=color, markersize=7, clip_on=False)
    return line


def _within_axes(given: Gaps) -> tuple[list[float], list[float]]:
    """The magnitudes and gaps that the axes show, up to their edges if a format goes on there."""
    xs: list[float] = []
    ys: list[float] = []
    for magnitude, gap in zip(*given, strict=True):
        if magnitude < SMALLEST:
            xs, ys = [SMALLEST], [gap]
        elif magnitude <= LARGEST:
            xs.append(magnitude)
            ys.append(gap)
    if given[0][-1] > LARGEST:
        xs.append(LARGEST)
        ys.append(ys[-1])
    return xs, ys
