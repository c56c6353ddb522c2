"""Figures of a server and its clients: what each rank did when, and how old was what the clients had.

Called by the notebooks. Runs in the notebook's process. Times in s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from distlab.plotting.axes import SMALL, new_axes
from distlab.plotting.bars import set_lanes, write_in
from distlab.plotting.style import INK, new_figure, rank_color, style
from distlab.text import refuse

Bar = tuple[float, float, str]  # start, end, text; times in seconds
ROW = 0.3  # height of a bar, in inches


def served(lanes: Mapping[str, Sequence[Bar]], title: str = "") -> Axes:
    """Draw what was done when, a lane for each name from the top down, the n-th in the colour of rank n.

    Bars of a lane that overlap are drawn one below the other. The time is counted from the first start.

    Runs on: client.

    Args:
        lanes: by name, bars: (start, end, text), times in seconds; a text is left out where its bar is too narrow.
        title: what was measured.

    Returns:
        The axes of a new figure, which a notebook shows when its cell ends.

    Raises:
        ArgumentError: if there is no bar, or one ends before it starts.
    """
    bars = [bar for lane in lanes.values() for bar in lane]
    if not bars or any(end < start for start, end, _ in bars):
        refuse("lanes", "at least one bar, none that ends before it starts", lanes, 'Give {"rank 0": [(0, 1, "2")]}.')
    zero, rows = min(bar[0] for bar in bars), {name: _in_rows(lane) for name, lane in lanes.items()}
    most = {name: 1 + max((row for row, _ in lane), default=0) for name, lane in rows.items()}
    with new_axes(7.2, 0.9 + sum(0.12 + ROW * count for count in most.values()), title=title, xlabel="time") as ax:
        set_lanes(ax, lanes, 1.01 * (max(bar[1] for bar in bars) - zero))
        top, middles, drawn = 0.0, [], []
        for place, (name, lane) in enumerate(rows.items()):
            for row, (start, end, text) in lane:
                look = {"color": rank_color(place), "edgecolor": INK, "linewidth": 0.6}
                bar = ax.barh(top + row + 0.5, end - start, left=start - zero, height=0.9, **look)
                drawn.append((bar, text))
            middles.append(top + most[name] / 2)
            top += most[name] + 0.4
        ax.set(ylim=(top - 0.3, -0.1), yticks=middles, yticklabels=lanes)
        write_in(ax, drawn)
    return ax


def _in_rows(lane: Sequence[Bar]) -> list[tuple[int, Bar]]:
    """Bars with the row of each, so that none overlaps another one of its row."""
    ends: list[float] = []
    placed = []
    for bar in sorted(lane):
        row = next((row for row, end in enumerate(ends) if end <= bar[0]), len(ends))
        ends[row : row + 1] = [bar[1]]
        placed.append((row, bar))
    return placed


def staleness(panels: Mapping[str, Mapping[int, Sequence[int]]], title: str = "") -> Figure:
    """Draw how many gradients had which staleness, in a panel for each run, the trainers' bars one on top of the other.

    Runs on: client.

    Args:
        panels: by name of the run, for each trainer's rank the staleness of its gradients.
        title: what was measured.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell.

    Raises:
        ArgumentError: if there is no panel.
    """
    if not panels:
        refuse("panels", "at least one run", panels, 'Give {"equal trainers": {1: [0, 2, 1]}}.')
    figure = new_figure(3.75 * len(panels), 3.2, layout="constrained")
    with style():
        figure.suptitle(title, x=0.02, ha="left", fontsize=13)
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for ax, (name, trainers) in zip(axes, panels.items(), strict=True):
            ax.set_title(name, fontsize=SMALL)
            ax.set(xlabel="staleness")
            below: Counter[int] = Counter()
            for rank, ages in trainers.items():
                counts = Counter(ages)
                bottom = [below[age] for age in counts]
                ax.bar([*counts], [*counts.values()], bottom=bottom, color=rank_color(rank), label=f"rank {rank}")
                below += counts
            ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
            ax.grid(visible=False, axis="x")
        axes[0].set_ylabel("gradients")
        axes[-1].legend(frameon=False, fontsize=SMALL)
    return figure
