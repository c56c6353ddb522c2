"""Differences between worlds, step by step, and how much of them rounding explains.

Called by `Comparison.plot`, on the notebook's kernel.
"""

import textwrap
from collections.abc import Mapping
from typing import cast

from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation, LogLocator, MaxNLocator, NullLocator

from distlab.plotting.axes import End, label_ends, new_panels
from distlab.plotting.drawing import Drawing
from distlab.plotting.style import FAINT, INK, curve_color

FLOOR = 1e-2  # of the band: what is smaller is drawn there, because 0 has no logarithm
TITLE_COLUMNS = 66


def differences_by_step(
    lines: Mapping[str, Mapping[int, float]], band: Mapping[int, float], title: str = ""
) -> Figure:
    """Draw the difference of each world at each step, with what rounding explains as a band.

    A line within the band is the same as the reference.

    Runs on: the notebook's kernel.

    Args:
        lines: by name, the relative difference at each step.
        band: what rounding explains at each step.
        title: what was found.

    Returns:
        The figure; a notebook shows it if it is the last value of a cell.
    """
    heading = "\n".join(textwrap.wrap(title, TITLE_COLUMNS))
    steps: list[float] = sorted(band)
    lowest = min(band.values(), default=1e-7) * FLOOR
    with new_panels(6.4, 3.8, 1, 1, heading) as (drawn, (ax,)):
        ax.set(xlabel="step", ylabel="relative difference")
        edges = [band[step] for step in sorted(band)]
        ends = []
        if len(steps) == 1:  # a band has a width
            steps = [steps[0] - 0.5, steps[0] + 0.5]
            edges = edges * 2
        if steps:
            ax.fill_between(steps, [lowest] * len(steps), edges, color=FAINT, alpha=0.45, lw=0)
            ends.append(End(steps[-1], edges[-1], "rounding", INK))
        for place, (name, line) in enumerate(lines.items()):
            points = sorted(line.items())
            if not points:
                continue
            xs = [step for step, _ in points]
            ys = [max(size, lowest) for _, size in points]
            color = curve_color(place, name)
            ax.plot(xs, ys, "o-", color=color, linewidth=1.6, markersize=4)
            ends.append(End(xs[-1], ys[-1], name, color))
        ax.set(yscale="log", ylim=(lowest, None))
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.yaxis.set_major_locator(LogLocator(numticks=6))
        ax.yaxis.set_major_formatter(LogFormatterSciNotation())
        ax.yaxis.set_minor_locator(NullLocator())
        label_ends(ax, ends)
    figure = cast(Drawing, drawn)
    figure.alt = _in_words(lines, band, title)
    return figure


def _in_words(
    lines: Mapping[str, Mapping[int, float]], band: Mapping[int, float], title: str
) -> str:
    """Say what the figure shows: where each line leaves the band, if it does."""
    words = []
    for name, line in lines.items():
        outside = [step for step, size in sorted(line.items()) if not size <= band[step]]
        where = "within what rounding explains in every step"
        if outside:
            first = outside[0]
            where = (
                f"from step {first} on more than rounding explains, {line[first]:.1g} where that "
                f"is {band[first]:.1g}"
            )
        words.append(f"{name}: {where}")
    return f"{title} Relative difference by step. {'; '.join(words)}.".strip()
