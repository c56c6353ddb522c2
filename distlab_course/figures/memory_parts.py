"""Notebook 09: what lies in the memory of each rank, in parts, with bytes that ranks counted or a formula gave.

Runs in the notebook's kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from distlab.plotting.axes import SMALL, new_axes
from distlab.plotting.lanes import LOOKS, Look, draw_lanes, height_of, legend_below, outline, stacked
from distlab.plotting.style import INK, MIXED

UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "GB": 1e9}
# greys from light to dark, and sand, so that no part looks like a rank
PARTS = {
    "parameters": LOOKS["compute"],
    "gathered parameters": LOOKS["wait"],
    "gradients": LOOKS["forward"],
    "optimizer states": LOOKS["optimizer"],
    "activations": LOOKS["move"],
}
Parts = Mapping[str, float]  # bytes by name of a part


def memory(bars: Mapping[str, Parts], title: str = "", unit: str = "MiB", limit: float | None = None) -> Axes:
    """Draw what lies in memory, a bar for each name from the top down; its parts add up to its length.

    Args:
        bars: by name, for example "rank 0", bytes in parts: {"parameters": 8 * 2**20, "gradients": 8 * 2**20}.
        title: whose memory.
        unit: "KiB", "MiB", "GiB" or "GB".
        limit: the bytes that a device has, drawn as a line.
    """
    lanes, sums = {}, {name: sum(parts.values()) / UNITS[unit] for name, parts in bars.items()}
    for name, parts in bars.items():
        sizes = [size / UNITS[unit] for size in parts.values()]
        # where there is one part only, the sum beside the bar says the same
        texts = [f"{size:.3g}" if len(sizes) > 1 else "" for size in sizes]
        lanes[name] = stacked(zip(map(look_of, parts), sizes, strict=True), texts)
    end = max(1.13 * max(sums.values()), 1.1 * (limit or 0) / UNITS[unit])
    with new_axes(6.8, height_of(lanes) + 1.4, title=title, xlabel=f"memory, {unit}") as ax:
        line = {"color": INK, "linestyle": "--", "label": f"device: {(limit or 0) / UNITS[unit]:g} {unit}"}
        lines = [] if limit is None else [ax.axvline(limit / UNITS[unit], **line)]
        legend_below(ax, looks_in(bars), lines, columns=4)
        tops = draw_lanes(ax, lanes, end, "")
        for name, total in sums.items():
            beside = {"xytext": (6, 0), "textcoords": "offset points", "va": "center_baseline", "fontsize": SMALL}
            ax.annotate(f"{total:.3g}", (total, tops[name] + 0.5), **beside)
    return ax


def memory_at(moments: Mapping[str, Parts], title: str = "") -> Axes:
    """Draw what lies in the memory of one rank at one moment after the other, as columns from left to right.

    Args:
        moments: by name, the bytes in parts. Moments that follow each other and whose names differ in the last word
            only, "forward 0", "forward 1", share one label.
        title: whose memory.
    """
    top = max(sum(parts.values()) for parts in moments.values()) / UNITS["MiB"]
    with new_axes(7.5, 3.9, title=title, ylabel="memory, MiB") as ax:
        ax.set(xlim=(-0.6, len(moments) - 0.4), ylim=(0, 1.06 * top))
        ax.grid(visible=False, axis="x")
        ax.yaxis.set_major_locator(MaxNLocator(6, steps=(1, 2, 4, 5, 10)))
        for place, parts in enumerate(moments.values()):
            bottom = 0.0
            for part, size in parts.items():
                look = look_of(part)
                ax.bar(place, size / UNITS["MiB"], 0.8, bottom, facecolor=look.fill, **outline(look))
                bottom += size / UNITS["MiB"]
        words = [(place, *name.rpartition(" ")[::2]) for place, name in enumerate(moments)]
        groups = [list(group) for _, group in groupby(words, key=lambda word: word[1] or word[2])]
        ticks = [last if len(group) > 1 else "" for group in groups for _, _, last in group]
        ax.set_xticks(range(len(moments)), ticks)
        ax.tick_params(axis="x", length=0)
        below = ax.secondary_xaxis(-0.07)
        names = [group[0][1] if len(group) > 1 else "\n".join(group[0][1:]).strip() for group in groups]
        below.set_xticks([(group[0][0] + group[-1][0]) / 2 for group in groups], names)
        below.tick_params(length=0)
        below.spines["bottom"].set_visible(False)
        legend_below(ax, looks_in(moments), columns=4)
    return ax


def look_of(part: str) -> Look:
    """How a part of the memory is drawn; what was gathered for a while is hatched."""
    return PARTS.get(part, Look(MIXED))._replace(words=part)


def looks_in(bars: Mapping[str, Parts]) -> list[Look]:
    """The looks of all parts that are not empty."""
    return [look_of(part) for part in dict.fromkeys(p for bar in bars.values() for p, size in bar.items() if size)]
