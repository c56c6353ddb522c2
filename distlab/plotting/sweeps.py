"""Figure of a sweep: time against size, a panel for each number of ranks.

Called by `measured.Sweep.plot`. Runs in the notebook's process. Sizes in bytes, times in s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distlab.plotting.curves import SMALL, Curve
from distlab.plotting.style import curve_color, new_figure, style
from distlab.plotting.timings import Fit, log_steps, time_against_size
from distlab.plotting.units import format_bandwidth, format_seconds

HEIGHT = 3.4  # of a panel, in inches
MOST_FITS = 4
ROW = SMALL * 1.4  # from one line of text to the next, in points
Line = tuple[Sequence[float], Sequence[float]]  # sizes, times


@dataclass(frozen=True)
class Panel:
    """What was measured on one number of ranks: curves, and the fitted lines of some of them, by name."""

    ranks: int
    cores: int
    curves: Mapping[str, Curve]
    fits: Mapping[str, Fit]


def sweep_panels(panels: Sequence[Panel], title: str = "", theory: Mapping[str, Line] | None = None) -> Figure:
    """Draw a panel for each number of ranks, one below the other on the same scales.

    Runs on: client.

    Args:
        panels: one or more.
        title: what was measured.
        theory: by name, sizes in bytes and times in seconds, drawn as thin dashed lines in every panel.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell.
    """
    figure = new_figure(5.6, HEIGHT * len(panels), layout="constrained")
    with style():
        axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False).flat
    for ax, panel in zip(axes, panels, strict=True):
        lines = {name: _line(panel.curves[name], fit) for name, fit in panel.fits.items()}
        _make_room(ax, panel)
        time_against_size(panel.curves, _head(panel, title), theory={**lines, **(theory or {})}, ax=ax)
        _write_fits(ax, panel)
    for ax in figure.axes:
        ax.tick_params(labelbottom=True, labelsize=SMALL)
    return figure


def _head(panel: Panel, title: str) -> str:
    ranks = "1 rank" if panel.ranks == 1 else f"{panel.ranks} ranks"
    crowded = f" on {panel.cores} core{'s' if panel.cores > 1 else ''}" if panel.ranks > panel.cores else ""
    return f"{title}, {ranks}{crowded}" if title else f"{ranks}{crowded}"


def _line(curve: Curve, fit: Fit) -> Line:
    sizes = log_steps(min(curve[0]), max(curve[0]))
    return sizes, [fit.seconds(size) for size in sizes]


def _make_room(ax: Axes, panel: Panel) -> None:
    """Have the logarithmic y axis go so far up that the fits' texts stand above what will be drawn."""
    share = len(_written(panel)) * ROW / (HEIGHT * 72 * 0.65)  # of the axes' height
    low = min(min(curve[2]) for curve in panel.curves.values())
    high = max(max(curve[3]) for curve in panel.curves.values())
    ax.update_datalim([(next(iter(panel.curves.values()))[0][0], low * (high / low) ** (1 / (1 - share)))])


def _write_fits(ax: Axes, panel: Panel) -> None:
    """Write alpha and 1/beta of each fitted line, in its colour."""
    for row, (name, fit) in enumerate(_written(panel).items()):
        largest = max(panel.curves[name][0])
        # where the whole message costs next to nothing beside the latency, its bandwidth was not measured
        slope = f", 1/β {format_bandwidth(1 / fit.beta)}" if fit.beta * largest > 0.01 * fit.alpha else ""
        place = {"xytext": (6, -4 - row * ROW), "textcoords": "offset points", "xycoords": "axes fraction"}
        color = curve_color(list(panel.curves).index(name))
        text = f"{name}: α {format_seconds(fit.alpha)}{slope}"
        ax.annotate(text, (0, 1), color=color, va="top", fontsize=SMALL - 1, **place)


def _written(panel: Panel) -> Mapping[str, Fit]:
    """The fits whose numbers are written: none where there are so many that they would fill the figure."""
    return panel.fits if len(panel.fits) <= MOST_FITS else {}
