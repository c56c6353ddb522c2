"""Notebook 10: several machines with their processes and who talks to whom, and what is known of another one's clock.

Runs in the notebook's kernel. Lengths are in inches, times in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from distlab.plotting.axes import SMALL, even_ticks, new_panels
from distlab.plotting.cells import canvas, draw_box, draw_lane, draw_text, text_width
from distlab.plotting.lanes import LOOKS
from distlab.plotting.style import HAZE, INK, curve_color, rank_color, style

SIZE, NODE, ROW, COLUMN, GAP, PAD = 10, 0.34, 0.95, 1.25, 0.4, 0.25
STROKES = (("-", 1.2), ((0, (5, 2)), 1.6), ((0, (1, 1.6)), 1.6), ("-", 2.6))  # of the lines of each kind
Lines = Mapping[str, Sequence[tuple[str, str]]]


def machines(processes: Mapping[str, Sequence[str]], lines: Lines, title: str = "", arrows: bool = False) -> Figure:
    """Draw the first machine above, the others side by side below it, and in each its processes.

    Args:
        processes: names of processes by machine; "rank 2" has its rank's colour, and stands in the lower row.
        lines: pairs of names of processes, by what goes over the line.
        title: of the figure.
        arrows: whether a line leads from its first process to its second.
    """

    def is_rank(name: str) -> bool:
        return name.startswith("rank ")

    (first, above), *below = processes.items()
    rows = [([n for n in names if not is_rank(n)], [n for n in names if is_rank(n)]) for _, names in below]
    widths = [COLUMN * max(map(len, both)) + PAD for both in rows]
    lefts = [sum(widths[:i]) + i * GAP for i in range(len(widths))]
    total, top, ranks = lefts[-1] + widths[-1], NODE + 3 * PAD, NODE + 4 * PAD + ROW + 0.2
    arcs = any(is_rank(a) and is_rank(b) for pairs in lines.values() for a, b in pairs)
    bottom = ranks + 0.55 + 0.13 * total * arcs
    kinds = list(lines) if len(lines) > 1 else []
    wide = max([total, *(text_width(kind, SIZE) + 1 for kind in kinds)])
    figure, ax = canvas(wide, bottom + 0.15 + 0.26 * len(kinds), title)
    places = {name: ((i + 1) * total / (len(above) + 1), 0.35 + NODE / 2) for i, name in enumerate(above)}
    with style():
        draw_lane(ax, 0, 0, total, NODE + PAD + 0.25, INK)
        draw_text(ax, 0.1, 0.17, first, ha="left", fontsize=SIZE)
        for (name, _), (others, own), left, width in zip(below, rows, lefts, widths, strict=True):
            draw_lane(ax, left, top + 0.15, width, bottom - top - 0.15, INK)
            draw_text(ax, left + 0.1, bottom - 0.15, name, ha="left", fontsize=SIZE)
            for row, y, step in ((others, top + 0.45, COLUMN), (own, ranks, width / max(1, len(own)))):
                places |= {one: (left + (i + 0.5) * step, y) for i, one in enumerate(row)}
        boxes = {}
        for name, (x, y) in places.items():
            color = rank_color(int(name.split()[1])) if is_rank(name) else LOOKS["compute"].fill
            width = text_width(name, SIZE) + 0.2
            draw_box(ax, x - width / 2, y - NODE / 2, width, NODE, name, color, SIZE)
            boxes[name] = ax.patches[-1]
            boxes[name].set_zorder(2)  # above the lines
        for pairs, (dashes, thick) in zip(lines.values(), STROKES, strict=False):
            for a, b in pairs:
                arc = places[a][1] == places[b][1] == ranks
                bow = f"arc3,rad={math.copysign(0.35, places[b][0] - places[a][0]) if arc else 0}"
                ends = {"posA": places[a], "posB": places[b], "patchA": boxes[a], "patchB": boxes[b]}
                look = {"arrowstyle": "-|>" if arrows else "-", "connectionstyle": bow, "mutation_scale": 14}
                ax.add_patch(FancyArrowPatch(**ends, **look, linestyle=dashes, linewidth=thick, color=INK))
        for i, (kind, (dashes, thick)) in enumerate(zip(kinds, STROKES, strict=False)):
            y = bottom + 0.25 + 0.26 * i
            ax.plot((0.05, 0.65), (y, y), linestyle=dashes, linewidth=thick, color=INK)
            draw_text(ax, 0.8, y, kind, ha="left", fontsize=SIZE)
    return figure


def clocks(exchanges: Sequence[tuple[float, float, float]], truth: float) -> Figure:
    """Draw what exchanges of two messages say of another clock: the shortest one over time, and the bounds of each.

    Args:
        exchanges: (asked, seen, answered): when rank 0 asked and had its answer, by its clock, and what the clock of
            rank 2 showed in between.
        truth: how much the latter is ahead.
    """
    asks, looks = 0, 2
    asked, seen, answered = min(exchanges, key=lambda one: one[2] - one[0])
    whole, best = answered - asked, seen - (asked + answered) / 2
    with new_panels(8.6, 3.8, 1, 2, width_ratios=(1, 1.3)) as (figure, (left, right)):
        left.set(title="the shortest exchange", xlabel=f"time by the clock of rank {asks}", ylim=(1.75, -0.55))
        left.set(xlim=(-0.12 * whole, 1.12 * whole), yticks=(0, 1), yticklabels=(f"rank {asks}", f"rank {looks}"))
        left.barh(1, whole, height=0.34, facecolor=rank_color(looks), alpha=2 * HAZE)
        for start, end, color in ((0, 0.5, asks), (0.5, 1, looks)):
            ends = {"posA": (start * whole, 2 * start), "posB": (end * whole, 2 * (1 - end))}
            look = {"arrowstyle": "-|>", "mutation_scale": 14, "shrinkA": 0, "shrinkB": 0, "linewidth": 1.8}
            left.add_patch(FancyArrowPatch(**ends, **look, color=curve_color(color)))
        words = {"fontsize": SMALL, "color": INK}
        left.text(whole / 2, 1.25, "it looked at its clock\nsome time in here", ha="center", va="top", **words)
        for x, word, side in ((0, "asked", "left"), (whole, "answered", "right")):
            left.text(x, -0.12, word, ha=side, va="bottom", **words)
        right.set(title="what each exchange allows", xlabel="exchange", ylabel="offset − best estimate")
        for number, (before, there, after) in enumerate(exchanges):
            shortest = (before, there, after) == (asked, seen, answered)
            color, width = (curve_color(looks), 4) if shortest else (INK, 1.8)
            right.plot([number, number], [there - after - best, there - before - best], color=color, linewidth=width)
            right.plot(number, there - (before + after) / 2 - best, "o", markersize=5, color=color)
        right.axhline(truth - best, linewidth=1.2, linestyle="--", color=INK)
        beside = {"xycoords": ("axes fraction", "data"), "xytext": (5, 0), "textcoords": "offset points"}
        right.annotate("the\ntruth", (1, truth - best), **beside, va="center", fontsize=SMALL)
        for axis in (left.xaxis, right.yaxis):
            even_ticks(axis, "s")
        left.locator_params("x", nbins=3)
        for ax in (left, right):
            ax.grid(visible=False)
    return figure
