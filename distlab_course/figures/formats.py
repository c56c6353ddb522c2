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
    largest number, if the axes reach that far.

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
    shown = [point for point in zip(*given, strict=True) if SMALLEST <= point[0] <= LARGEST]
    xs = [x for x, _ in shown]
    ys = [y for _, y in shown]
    (line,) = ax.step(xs, ys, where="post", color=color, linewidth=1.6, label=name)
    smallest, largest = given[0][0], given[0][-1]
    if smallest >= SMALLEST:
        ax.plot(smallest, ys[0], "o", color=color, markersize=5)
    if largest <= LARGEST:
        ax.plot(largest, ys[-1], "|", color=color, markersize=14, markeredgewidth=2)
    return line
