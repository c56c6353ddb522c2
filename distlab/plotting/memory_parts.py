"""What lies in the memory of each rank, in parts: parameters, gradients, optimizer states, activations.

Called by notebook 09, with bytes that the ranks counted or a formula gave. Runs in the notebook's process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from distlab.plotting.axes import SMALL, new_axes
from distlab.plotting.bars import write_in
from distlab.plotting.style import COMPUTING, FAINT, FORWARD, INK, MIXED, OPTIMIZER, TRAVELLING
from distlab.text import refuse

UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "GB": 1e9}
# the fills of parts: greys from light to dark, and sand, so that no part looks like a rank
FILLS = {
    "parameters": COMPUTING,
    "gathered parameters": FAINT,
    "gradients": FORWARD,
    "optimizer states": OPTIMIZER,
    "activations": TRAVELLING,
}
Parts = Mapping[str, float]  # bytes by name of a part


def memory(bars: Mapping[str, Parts], title: str = "", unit: str = "MiB", limit: float | None = None) -> Axes:
    """Draw what lies in memory, a bar for each name from the top down; its parts add up to its length.

    Runs on: client.

    Args:
        bars: by name, for example "rank 0", bytes in parts: {"parameters": 8 * 2**20, "gradients": 8 * 2**20}.
        title: whose memory.
        unit: "KiB", "MiB", "GiB" or "GB".
        limit: the bytes that a device has, drawn as a line.

    Returns:
        The axes of a new figure, which a notebook shows when its cell ends.

    Raises:
        ArgumentError: there is no bar, a part is below 0, or the unit is another one.
    """
    end = _most(bars, unit) * 1.13
    drawn = []
    with new_axes(6.8, 1.7 + 0.44 * len(bars), title=title, xlabel=f"memory, {unit}") as ax:
        ax.set(xlim=(0, max(end, 1.1 * (limit or 0) / UNITS[unit])), ylim=(len(bars) - 0.4, -0.6))
        ax.set(yticks=range(len(bars)), yticklabels=bars)
        ax.grid(visible=False, axis="y")
        ax.tick_params(axis="y", length=0)
        for place, parts in enumerate(bars.values()):
            left = 0.0
            for part, size in parts.items():
                width = size / UNITS[unit]
                bar = ax.barh(place, width, left=left, height=0.68, **_look(part))
                drawn += [(bar, f"{width:.3g}")] if len(parts) > 1 else []  # the sum beside the bar says the same
                left += width
            beside = {"xytext": (6, 0), "textcoords": "offset points", "va": "center_baseline", "fontsize": SMALL}
            ax.annotate(f"{left:.3g}", (left, place), **beside)
        write_in(ax, drawn)
        look = {"color": INK, "linestyle": "--", "label": f"device: {(limit or 0) / UNITS[unit]:g} {unit}"}
        _legend(ax, bars, [] if limit is None else [ax.axvline(limit / UNITS[unit], **look)])
    return ax


def memory_at(moments: Mapping[str, Parts], title: str = "", unit: str = "MiB") -> Axes:
    """Draw what lies in the memory of one rank at one moment after the other, as columns from left to right.

    Runs on: client.

    Args:
        moments: by name, the bytes in parts. Moments that follow each other and whose names differ in the last word
            only, "forward 0", "forward 1", share one label.
        title, unit: as of `memory`.

    Returns:
        The axes, as of `memory`.

    Raises:
        ArgumentError: as `memory`.
    """
    top = _most(moments, unit)
    with new_axes(7.5, 3.9, title=title, ylabel=f"memory, {unit}") as ax:
        ax.set(xlim=(-0.6, len(moments) - 0.4), ylim=(0, 1.06 * top))
        ax.grid(visible=False, axis="x")
        ax.yaxis.set_major_locator(MaxNLocator(6, steps=(1, 2, 4, 5, 10)))
        for place, parts in enumerate(moments.values()):
            bottom = 0.0
            for part, size in parts.items():
                ax.bar(place, size / UNITS[unit], bottom=bottom, width=0.8, **_look(part))
                bottom += size / UNITS[unit]
        words = [(place, *name.rpartition(" ")[::2]) for place, name in enumerate(moments)]
        groups = [list(group) for _, group in groupby(words, key=lambda word: word[1] or word[2])]
        ticks = [last if len(group) > 1 else "" for group in groups for _, _, last in group]
        ax.set_xticks(range(len(moments)), ticks)
        ax.tick_params(axis="x", length=0)
        middles = [(group[0][0] + group[-1][0]) / 2 for group in groups]
        below = ax.secondary_xaxis(-0.07)
        names = [group[0][1] if len(group) > 1 else "\n".join(group[0][1:]).strip() for group in groups]
        below.set_xticks(middles, names)
        below.tick_params(length=0)
        below.spines["bottom"].set_visible(False)
        _legend(ax, moments)
    return ax


def _most(bars: Mapping[str, Parts], unit: str) -> float:
    """The length of the longest bar, in a unit."""
    if unit not in UNITS:
        refuse("unit", f"one of {', '.join(UNITS)}", unit, 'Give unit="MiB".')
    sizes = [size for parts in bars.values() for size in parts.values()]
    if not sizes or min(sizes) < 0:
        refuse("bars", "at least one bar, with no part below 0", bars, 'Give {"rank 0": {"parameters": 2**20}}.')
    return (max(sum(parts.values()) for parts in bars.values()) or 1) / UNITS[unit]


def _look(part: str) -> dict[str, object]:
    gathered = part.startswith("gathered")
    fill = {"facecolor": FILLS.get(part, MIXED), "hatch": "///" if gathered else None}
    return {**fill, "edgecolor": INK if gathered else "#FFFFFF", "linewidth": 0.8}


def _legend(ax: Axes, bars: Mapping[str, Parts], lines: Sequence[Line2D] = ()) -> None:
    """Say below the axes which fill is which part, and what a line is."""
    parts = list(dict.fromkeys(part for bar in bars.values() for part, size in bar.items() if size))
    handles = [*(Patch(**_look(part), label=part) for part in parts), *lines]
    ax.figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=SMALL)
