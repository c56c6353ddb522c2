"""Differences between worlds, step by step, and how much of them rounding explains.

Called by `Comparison.plot`, on the notebook's kernel.
"""

from collections.abc import Mapping
from typing import cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation, LogLocator, MaxNLocator, NullLocator

from distlab.plotting.axes import End, label_ends, new_panels
from distlab.plotting.canvas import text_width
from distlab.plotting.drawing import Drawing
from distlab.plotting.palette import curve_colors
from distlab.plotting.style import FAINT, INK, TITLE_SIZE

Line = Mapping[int, float]
WIDTH = 6.4  # inches
BELOW = 1e-2  # of the band: what is smaller is drawn there, because 0 has no logarithm
MARGIN = 3  # times the largest and the smallest number


def differences_by_step(lines: Mapping[str, Line], band: Line, title: str = "") -> Figure:
    """Draw the difference of each world at each step, with what rounding explains as a band.

    A line within the band is the same as the reference.

    Runs on: the notebook's kernel.

    Args:
        lines: by name, the relative difference at each step.
        band: what rounding explains at each step.
        title: what was found; it is broken into lines.

    Returns:
        The figure; a notebook shows it if it is the last value of a cell.
    """
    heading = _broken(title, WIDTH - 0.4)
    rows = heading.count("\n")
    with new_panels(WIDTH, 3.6 + 0.2 * rows, 1, 1, heading) as (figure, axes):
        (ax,) = axes
        lowest = BELOW * min([size for size in band.values() if size > 0], default=1e-6)
        ends = [] if not band else [_draw_band(ax, band, lowest / MARGIN)]
        highest = max(band.values(), default=1e-6)
        colors = curve_colors(lines)
        for name, line in lines.items():
            steps = sorted(line)
            if not steps:
                continue
            sizes = [max(line[step], lowest) for step in steps]
            highest = max([highest, *sizes])
            color = colors[name]
            ax.plot(steps, sizes, "o-", color=color, linewidth=1.6, markersize=4)
            ends.append(End(steps[-1], sizes[-1], name, color))
        ax.set(xlabel="step", ylabel="relative difference", yscale="log")
        ax.set_ylim(lowest / MARGIN, highest * MARGIN)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
        ax.yaxis.set_major_locator(LogLocator(numticks=6))
        ax.yaxis.set_major_formatter(LogFormatterSciNotation())
        ax.yaxis.set_minor_locator(NullLocator())
        label_ends(ax, ends)
    drawn = cast(Drawing, figure)
    drawn.alt = _in_words(lines, band, title)
    return figure


def _draw_band(ax: Axes, band: Line, lowest: float) -> End:
    """Draw what rounding explains; a single step has a band around it."""
    steps: list[float] = sorted(band)
    edges = [band[step] for step in sorted(band)]
    if len(steps) == 1:
        steps = [steps[0] - 0.5, steps[0] + 0.5]
        edges = edges * 2
    floor = [lowest] * len(steps)
    ax.fill_between(steps, floor, edges, color=FAINT, alpha=0.45, linewidth=0)
    return End(steps[-1], edges[-1], "rounding", INK)


def _broken(title: str, width: float) -> str:
    """A title in lines that are no wider than so many inches."""
    lines = [""]
    for word in title.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(longer, TITLE_SIZE) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def _in_words(lines: Mapping[str, Line], band: Line, title: str) -> str:
    """Say what the figure shows: where each line leaves the band, if it does."""
    words = []
    for name, line in lines.items():
        where = "within what rounding explains in every step"
        outside = [step for step, size in sorted(line.items()) if not size <= band[step]]
        if not line:
            where = "nothing that could be compared"
        if outside:
            first = outside[0]
            where = (
                f"from step {first} on more than rounding explains, {line[first]:.1g} where that "
                f"is {band[first]:.1g}"
            )
        words.append(f"{name}: {where}")
    return f"{title} Relative difference by step. {'; '.join(words)}.".strip()
