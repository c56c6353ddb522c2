"""What more ranks bring: throughput, speed-up and efficiency.

Called by the notebooks. Runs in the notebook's process.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from distlab.plotting.curves import SMALL, Curve, draw_curve, label_ends
from distlab.plotting.style import HAZE, INK, curve_color, new_figure, style
from distlab.plotting.training import check_rates, relative


def scaling(curves: Mapping[str, Curve], title: str = "", cores: int | None = None, unit: str = "samples/s") -> Figure:
    """Draw throughput, speed-up and efficiency against the number of ranks, a panel for each, with the ideal.

    Speed-up is the rate as a multiple of one rank's, efficiency the speed-up divided by the number of ranks. The cores
    of the machine are a line, and where there are more ranks than cores is shaded.

    Runs on: client.

    Args:
        curves: by name, numbers of ranks from 1 up and the median, low and high of the rate.
        title: what was measured.
        cores: cores of the machine.
        unit: of the rate.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell.

    Raises:
        ArgumentError: if there is no curve, one does not begin with 1 rank, or one is empty, of lists of different
            lengths or not positive.
    """
    check_rates(curves)
    ranks = sorted({n for curve in curves.values() for n in curve[0]})
    figure = new_figure(7.5, 6.4, layout="constrained")
    with style():
        figure.suptitle(title, x=0.02, ha="left", fontsize=13)
        rates, ups, shares = (figure.add_subplot(2, 2, place) for place in (1, 2, 3))
        draw_panel(rates, curves, ranks, f"throughput, {unit}")
        draw_panel(ups, {name: relative(curve) for name, curve in curves.items()}, ranks, "speed-up")
        draw_panel(shares, {name: efficiency(curve) for name, curve in curves.items()}, ranks, "efficiency, %")
        ideals = {ups: ranks, shares: [100] * len(ranks)}
        for ax, ideal in ideals.items():
            ax.plot(ranks, ideal, color=INK, linewidth=1.2, linestyle="--")
            ax.set_ylim(0, max(ax.get_ylim()[1], ideal[-1] * 1.15))
        for ax in (rates, ups, shares):
            if cores is not None:
                mark_cores(ax, cores, ranks)
        ends = [(*end_of(efficiency(curve)), name, curve_color(i)) for i, (name, curve) in enumerate(curves.items())]
        label_ends(shares, [*ends, (ranks[-1], 100, "ideal", INK)])
        for text in shares.texts:  # beside it, where there is no fourth panel
            text.set_in_layout(False)
    return figure


def draw_panel(ax: Axes, curves: Mapping[str, Curve], ranks: list[int], ylabel: str) -> None:
    """Draw the curves of one panel, from 0 up."""
    ax.set(xlabel="ranks", ylabel=ylabel, xlim=(ranks[0] - 0.3, ranks[-1] + 0.3))
    for place, curve in enumerate(curves.values()):
        draw_curve(ax, curve, curve_color(place))
    ax.set_ylim(0, 1.15 * max(max(curve[3]) for curve in curves.values()))
    ax.xaxis.set_major_locator(FixedLocator(ranks))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))


def mark_cores(ax: Axes, cores: int, ranks: list[int]) -> None:
    """Draw the number of cores on the axis of ranks, and shade where there are more ranks."""
    if not ranks[0] <= cores <= ranks[-1]:
        return
    ax.axvline(cores, color=INK, linewidth=1.2, linestyle=":")
    if ranks[-1] > cores:
        ax.axvspan(cores, ax.get_xlim()[1], color=INK, alpha=HAZE, zorder=0, linewidth=0)
    text = "1 core" if cores == 1 else f"{cores} cores"
    at = {"xytext": (0, 3), "textcoords": "offset points", "xycoords": ax.get_xaxis_transform(), "ha": "center"}
    ax.annotate(text, (cores, 1), color=INK, fontsize=SMALL, **at)


def efficiency(curve: Curve) -> Curve:
    """A curve of rates as percentages of what as many times one rank's would be."""
    ranks, *rates = relative(curve)
    return (ranks, *([100 * rate / n for n, rate in zip(ranks, part, strict=True)] for part in rates))


def end_of(curve: Curve) -> tuple[float, float]:
    """The last point of a curve."""
    return curve[0][-1], curve[1][-1]
