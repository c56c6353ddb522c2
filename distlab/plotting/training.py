"""Figures of training: what a loss and an accuracy did, what more ranks brought, and how long a step took.

Called by the notebooks. Runs in the notebook's process. Times in s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from distlab.errors import ArgumentError
from distlab.plotting.curves import Curve, check_curve, draw_curve, even_ticks, label_ends, own_axes
from distlab.plotting.style import INK, curve_color, new_figure, style
from distlab.plotting.timings import shade_beyond
from distlab.plotting.units import format_seconds

Line = tuple[Sequence[float], Sequence[float]]  # x, y
MOST_MARKERS = 40  # with more points a line has none


def training_curves(panels: Mapping[str, Mapping[str, Line]], title: str = "", xlabel: str = "epoch") -> Figure:
    """Draw what changed during training, a panel for each quantity, with a label at the end of each line.

    The n-th line of a panel has the colour of rank n.

    Runs on: client.

    Args:
        panels: by quantity, for example "loss", by name of the line, its x and y. A quantity whose name ends in "%" is
            drawn from at most 0 to at least 100, another one from at most 0.
        title: what was trained.
        xlabel: what x counts.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell. `plotting.LivePlot` shows it as it grows.

    Raises:
        ArgumentError: if there is no panel, or x and y of a line differ in length.
    """
    check_panels(panels)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(4.8 if columns == 1 else 7.5, 3.4 * rows, layout="constrained")
    with style():
        figure.suptitle(title, x=0.02, ha="left", fontsize=13)
        axes = [figure.add_subplot(rows, columns, place + 1) for place in range(len(panels))]
        for ax, (quantity, lines) in zip(axes, panels.items(), strict=True):
            ax.set(xlabel=xlabel, ylabel=quantity)
            ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            draw_lines(ax, lines, percent=quantity.endswith("%"))
        for ax, lines in zip(axes, panels.values(), strict=True):
            label_ends(ax, [(*points[-1], name, color) for name, points, color in drawn(lines)])
    return figure


def check_panels(panels: Mapping[str, Mapping[str, Line]]) -> None:
    """Raise if there is no panel, or x and y of a line differ in length."""
    example = 'Give {"loss": {"rank 0": ([1, 2], [2.3, 1.9])}}.'
    if not panels:
        raise ArgumentError(f"panels must be at least one panel, got {panels!r}. {example}")
    for quantity, lines in panels.items():
        for name, (x, y) in lines.items():
            if len(x) != len(y):
                rule = f"panels[{quantity!r}][{name!r}] must be as many x as y"
                raise ArgumentError(f"{rule}, got {len(x)} and {len(y)}. {example}")


def drawn(lines: Mapping[str, Line]) -> list[tuple[str, list[tuple[float, float]], str]]:
    """The lines that have points: name, points, colour."""
    colors = {name: curve_color(place) for place, name in enumerate(lines)}
    return [(name, list(zip(x, y, strict=True)), colors[name]) for name, (x, y) in lines.items() if len(x)]


def draw_lines(ax: Axes, lines: Mapping[str, Line], percent: bool) -> None:
    """Draw the lines of a panel, and choose where its y axis begins and ends."""
    for _, points, color in drawn(lines):
        look = {"marker": "o", "markersize": 4} if len(points) <= MOST_MARKERS else {}
        ax.plot(*zip(*points, strict=True), color=color, linewidth=1.6, **look)
    low, high = ax.get_ylim() if ax.lines else (0, 1)
    ax.set_ylim(min(0, low), max(105, high) if percent else high)
    xs = [x for _, points, _ in drawn(lines) for x, _ in points]
    if xs and max(xs) - min(xs) < 1:  # the first picture of one that grows
        ax.set_xlim(min(xs) - 0.5, max(xs) + 0.5)


def speedup(curves: Mapping[str, Curve], title: str = "", cores: int | None = None, ax: Axes | None = None) -> Axes:
    """Draw how many times the samples of one rank several ranks take in a second, beside the ideal.

    The label of a curve ends with its efficiency at the most ranks: the speed-up divided by the number of ranks.

    Runs on: client.

    Args:
        curves: by name, numbers of ranks from 1 up and the median, low and high of the samples a second.
        title: what was measured.
        cores: cores of the machine; where there are more ranks than cores is shaded.
        ax: axes to draw on; without it, those of a new figure, which a notebook shows when its cell ends.

    Returns:
        The axes.

    Raises:
        ArgumentError: if there is no curve, one does not begin with 1 rank, or one is empty, of lists of different
            lengths or not positive.
    """
    check_rates(curves)
    ax = own_axes(5.6, 4) if ax is None else ax
    ranks = sorted({n for curve in curves.values() for n in curve[0]})
    scaled = {name: relative(curve) for name, curve in curves.items()}
    highest = max(max(curve[3]) for curve in scaled.values())
    with style():
        ax.set(title=title, xlabel="ranks", ylabel="speed-up")
        ax.set(xlim=(ranks[0] - 0.3, ranks[-1] + 0.3), ylim=(0, max(ranks[-1], highest) * 1.2))
        ax.plot([1, ranks[-1]], [1, ranks[-1]], color=INK, linewidth=1.2, linestyle="--")
        ends = [(ranks[-1], ranks[-1], "ideal", INK)]
        for place, (name, curve) in enumerate(scaled.items()):
            draw_curve(ax, curve, curve_color(place))
            most, times = curve[0][-1], curve[1][-1]
            ends.append((most, times, f"{name}, {times / most:.0%}", curve_color(place)))
        ax.xaxis.set_major_locator(FixedLocator(ranks))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        if cores is not None and ranks[-1] > cores:
            shade_beyond(ax, cores)
        label_ends(ax, ends)
    return ax


def check_rates(curves: Mapping[str, Curve]) -> None:
    """Raise if there is no curve, or one cannot be compared with one rank."""
    example = 'Give {"digits": ([1, 2], medians, lows, highs)}.'
    if not curves:
        raise ArgumentError(f"curves must be at least one curve, got {curves!r}. {example}")
    for name, curve in curves.items():
        check_curve(name, curve)
        if curve[0][0] != 1:
            raise ArgumentError(f"curves[{name!r}] must begin with 1 rank, got {curve[0][0]!r}. {example}")


def relative(curve: Curve) -> Curve:
    """A curve of rates as multiples of its first median."""
    ranks, *rates = curve
    return (ranks, *([rate / curve[1][0] for rate in part] for part in rates))


def step_times(steps: Mapping[str, tuple[float, float, float]], title: str = "", ax: Axes | None = None) -> Axes:
    """Draw how long a step takes, done in several ways, as bars from the top down.

    Runs on: client.

    Args:
        steps: by name of the way, the median time of a step, and a low and a high one, in seconds.
        title: what was measured.
        ax: axes to draw on; without it, those of a new figure, which a notebook shows when its cell ends.

    Returns:
        The axes.

    Raises:
        ArgumentError: if there is no way, or a time is not positive.
    """
    example = 'Give {"buckets": (median, low, high)}, in seconds.'
    if not steps or min(min(times) for times in steps.values()) <= 0:
        raise ArgumentError(f"steps must be at least one way, with times above 0, got {steps!r}. {example}")
    ax = own_axes(5.6, 0.9 + 0.5 * len(steps)) if ax is None else ax
    with style():
        ax.set(title=title, yticks=range(len(steps)), yticklabels=steps, ylim=(len(steps) - 0.4, -0.6))
        for place, (median, low, high) in enumerate(steps.values()):
            ax.barh(place, median, height=0.62, color=curve_color(place), alpha=0.5)
            ax.plot([low, high], [place, place], color=curve_color(place), linewidth=1.5)
            beside = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
            ax.annotate(format_seconds(median), (max(high, median), place), **beside)
        ax.set(xlabel="time of one step", xlim=(0, 1.18 * max(max(times) for times in steps.values())))
        even_ticks(ax.xaxis, format_seconds)
        ax.grid(visible=False, axis="y")
        ax.tick_params(axis="y", length=0)
    return ax
