"""How ranks meet in a store, who refers to whom, machines with their processes, clocks, and who
reports an error when.

Runs in the notebook's kernel. Lengths are in inches, times in seconds.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from distlab.plotting.axes import SMALL, even_ticks, new_axes, new_panels
from distlab.plotting.cells import canvas, draw_box, draw_lane, draw_text, text_width
from distlab.plotting.lanes import LOOKS
from distlab.plotting.style import HAZE, INK, line_color, rank_color, style
from distlab.tables import format_seconds

LABEL = 11  # font size of the names of lanes, in points
# of the handshake: width of a call; heights of a rank's lane, between lanes, of a key, of the times
# below; font size
STEP, LANE, GAP, KEY, FOOT, SIZE = 0.52, 0.42, 0.2, 0.3, 0.5, 9
# of the graph: heights of a node, of its row; around a text; between columns, for arrows; font size
NODE, ROW, PAD, ARROW, NAME = 0.3, 0.44, 0.1, 0.42, 10

Pairs = Sequence[tuple[str, str]]  # of names, from and to
Lines = Mapping[str, Pairs]
# "set", "get", "wait" or "add"; key; when it began and ended, in seconds
Call = tuple[str, str, float, float]


class Step(NamedTuple):
    """One arrow: a rank writes a key, or reads it after it may have waited for it since `began`.

    `when` it took place is the end of a read, and the beginning of a write: another rank may read a
    key before the call that wrote it has returned.
    """

    when: float
    rank: int
    key: str
    writes: bool
    began: float


def handshake(calls: Sequence[Sequence[Call]], title: str = "") -> Figure:
    """Draw what each rank wrote into a store and read from it, one arrow a call, in the order of
    their times.

    An arrow up writes a key, an arrow down reads one, in the colour of the rank that wrote it. A
    hatched bar is a rank that waits for a key that is not written yet. The times below are since
    the first call; steps of time are not drawn to scale.

    Args:
        calls: by rank, each call as (name, key, began, ended), times in seconds on one clock. A
            "wait" and the "get" of the same key after it are one arrow.
        title: what was recorded.
    """
    steps = sorted(step for rank, own in enumerate(calls) for step in steps_of(rank, own))
    writers = {step.key: step.rank for step in steps if step.writes}
    writes = [place for place, step in enumerate(steps) if step.writes]
    left = 0.25 + max(
        text_width(name, LABEL) for name in ["store", *(f"rank {n}" for n in range(len(calls)))]
    )
    ends = [left + (place + 0.5) * STEP + text_width(steps[place].key, SIZE) for place in writes]
    width, store = max([left + len(steps) * STEP, *ends]), 0.1 + KEY * len(writes)
    tops = [store + GAP + rank * (LANE + GAP) for rank in range(len(calls))]
    below, first = tops[-1] + LANE + 0.1, min(step.began for step in steps)
    figure, ax = canvas(width, below + FOOT, title)
    with style():
        draw_lane(ax, 0, 0, width, store, INK, "store", LABEL)
        for rank, top in enumerate(tops):
            draw_lane(ax, 0, top, width, LANE, rank_color(rank), f"rank {rank}", LABEL)
        for place, step in enumerate(steps):
            x, top = left + place * STEP, tops[step.rank]
            if waited := columns_waited(steps, place):
                look = {
                    "facecolor": "none",
                    "edgecolor": line_color(step.rank),
                    "hatch": "////",
                    "linewidth": 0,
                }
                ax.add_patch(
                    Rectangle(
                        (x - waited * STEP, top + 0.08), (waited + 0.35) * STEP, LANE - 0.16, **look
                    )
                )
            head, tail = (
                (store - 0.04, top + LANE / 2) if step.writes else (top + LANE / 2, store - 0.04)
            )
            color = line_color(writers[step.key]) if step.key in writers else INK
            arrow = {"arrowstyle": "-|>", "color": color, "lw": 1.8}
            ax.annotate("", (x + STEP / 2, head), (x + STEP / 2, tail), arrowprops=arrow)
            if step.writes:
                y, wide = 0.08 + writes.index(place) * KEY, text_width(step.key, SIZE) + 0.16
                draw_box(ax, x + 0.1, y, wide, KEY - 0.05, step.key, rank_color(step.rank), SIZE)
            when = format_seconds(step.when - first)
            draw_text(ax, x + STEP / 2, below, when, fontsize=SIZE - 1.5, rotation=45, va="top")
    return figure


def steps_of(rank: int, calls: Sequence[Call]) -> list[Step]:
    """The calls of one rank as steps: a wait and what it waits for are one."""
    steps: list[Step] = []
    waiting: dict[str, float] = {}
    for name, key, began, ended in calls:
        if name == "wait":
            waiting.setdefault(key, began)
        else:
            writes, began = name in ("set", "add"), waiting.pop(key, began)
            steps.append(Step(began if writes else ended, rank, key, writes, began))
    return steps


def columns_waited(steps: Sequence[Step], place: int) -> int:
    """The columns before a read in which its rank waited for the key: none where that was there
    when it asked.
    """
    step = steps[place]
    written = [other.when for other in steps if other.writes and other.key == step.key]
    waits = not step.writes and written and min(written) > step.began
    return place - sum(other.when <= step.began for other in steps) if waits else 0


def graph(
    nodes: Mapping[str, int], edges: Pairs, title: str = "", hollow: Collection[str] = ()
) -> Figure:
    """Draw nodes on the lanes of their ranks, each to the right of all nodes that lead to it.

    An arrow from one rank to another has the colour of the rank that it leaves.

    Args:
        nodes: the rank that holds it, by the name of a node, which is written in its box up to the
            first line break.
        edges: names of two nodes, from and to; without a circle.
        title: what the graph is.
        hollow: names of nodes that are drawn as an outline.
    """
    columns = columns_of(nodes, edges)
    texts = {name: name.partition("\n")[0] for name in nodes}
    wide = {name: text_width(text, NAME) + 2 * PAD for name, text in texts.items()}
    lefts = [0.45 + max(text_width(f"rank {rank}", LABEL) for rank in nodes.values())]
    for column in range(max(columns.values()) + 1):
        lefts.append(
            lefts[-1] + max(wide[name] for name in nodes if columns[name] == column) + ARROW
        )
    rows: dict[str, int] = {}
    for name, rank in nodes.items():
        rows[name] = sum(nodes[other] == rank and columns[other] == columns[name] for other in rows)
    tops, heights, bottom = {}, {}, 0.0
    for rank in sorted({*nodes.values()}):
        tops[rank], heights[rank] = (
            bottom,
            ROW * (1 + max(rows[name] for name in nodes if nodes[name] == rank)),
        )
        bottom += heights[rank] + 0.16
    width = lefts[-1] - ARROW + PAD
    figure, ax = canvas(width, bottom - 0.16, title)
    with style():
        for rank, top in tops.items():
            draw_lane(ax, 0, top, width, heights[rank], rank_color(rank), f"rank {rank}", LABEL)
        corners = {}
        for name, rank in nodes.items():
            corners[name] = left, top = (
                lefts[columns[name]],
                tops[rank] + rows[name] * ROW + (ROW - NODE) / 2,
            )
            fill = "none" if name in hollow else rank_color(rank)
            draw_box(ax, left, top, wide[name], NODE, texts[name], fill, NAME)
            if name in hollow:
                ax.patches[-1].set(edgecolor=line_color(rank), linestyle=(0, (3, 2)), linewidth=1.4)
        for start, end in edges:
            color = INK if nodes[start] == nodes[end] else line_color(nodes[start])
            arrow = {"arrowstyle": "-|>", "color": color, "lw": 1.8, "shrinkA": 1, "shrinkB": 1}
            (x, y), (left, top) = corners[end], corners[start]
            ax.annotate(
                "", (x, y + NODE / 2), (left + wide[start], top + NODE / 2), arrowprops=arrow
            )
    return figure


def columns_of(nodes: Collection[str], edges: Pairs) -> dict[str, int]:
    """The column of each node: one more than the last of those that lead to it."""
    columns = dict.fromkeys(nodes, 0)
    for _ in nodes:
        for start, end in edges:
            columns[end] = max(columns[end], columns[start] + 1)
    return columns


# of the machines: height of a process, from the upper row to the lower, width of a process; between
# two, around them
BOX, LEVEL, COLUMN, BETWEEN, AROUND = 0.34, 0.95, 1.25, 0.4, 0.25
# of the lines of each kind
STROKES = (("-", 1.2), ((0, (5, 2)), 1.6), ((0, (1, 1.6)), 1.6), ("-", 2.6))


def machines(
    processes: Mapping[str, Sequence[str]], lines: Lines, title: str = "", arrows: bool = False
) -> Figure:
    """Draw the first machine above, the others side by side below it, and in each its processes.

    Args:
        processes: names of processes by machine; "rank 2" has its rank's colour, and stands in the
            lower row.
        lines: pairs of names of processes, by what goes over the line.
        title: of the figure.
        arrows: whether a line leads from its first process to its second.
    """

    def is_rank(name: str) -> bool:
        return name.startswith("rank ")

    (first, above), *below = processes.items()
    rows = [
        ([n for n in names if not is_rank(n)], [n for n in names if is_rank(n)])
        for _, names in below
    ]
    widths = [COLUMN * max(map(len, both)) + AROUND for both in rows]
    lefts = [sum(widths[:i]) + i * BETWEEN for i in range(len(widths))]
    total, top, ranks = lefts[-1] + widths[-1], BOX + 3 * AROUND, BOX + 4 * AROUND + LEVEL + 0.2
    arcs = any(is_rank(a) and is_rank(b) for pairs in lines.values() for a, b in pairs)
    bottom = ranks + 0.55 + 0.13 * total * arcs
    kinds = list(lines) if len(lines) > 1 else []
    wide = max([total, *(text_width(kind, NAME) + 1 for kind in kinds)])
    figure, ax = canvas(wide, bottom + 0.15 + 0.26 * len(kinds), title)
    places = {
        name: ((i + 1) * total / (len(above) + 1), 0.35 + BOX / 2) for i, name in enumerate(above)
    }
    with style():
        draw_lane(ax, 0, 0, total, BOX + AROUND + 0.25, INK)
        draw_text(ax, 0.1, 0.17, first, ha="left", fontsize=NAME)
        for (name, _), (others, own), left, width in zip(below, rows, lefts, widths, strict=True):
            draw_lane(ax, left, top + 0.15, width, bottom - top - 0.15, INK)
            draw_text(ax, left + 0.1, bottom - 0.15, name, ha="left", fontsize=NAME)
            for row, y, step in (
                (others, top + 0.45, COLUMN),
                (own, ranks, width / max(1, len(own))),
            ):
                places |= {one: (left + (i + 0.5) * step, y) for i, one in enumerate(row)}
        boxes = {}
        for name, (x, y) in places.items():
            color = rank_color(int(name.split()[1])) if is_rank(name) else LOOKS["compute"].fill
            width = text_width(name, NAME) + 0.2
            draw_box(ax, x - width / 2, y - BOX / 2, width, BOX, name, color, NAME)
            boxes[name] = ax.patches[-1]
            boxes[name].set_zorder(2)  # above the lines
        for pairs, (dashes, thick) in zip(lines.values(), STROKES, strict=False):
            for a, b in pairs:
                arc = places[a][1] == places[b][1] == ranks
                bow = f"arc3,rad={math.copysign(0.35, places[b][0] - places[a][0]) if arc else 0}"
                ends = {
                    "posA": places[a],
                    "posB": places[b],
                    "patchA": boxes[a],
                    "patchB": boxes[b],
                }
                look = {
                    "arrowstyle": "-|>" if arrows else "-",
                    "connectionstyle": bow,
                    "mutation_scale": 14,
                }
                ax.add_patch(
                    FancyArrowPatch(**ends, **look, linestyle=dashes, linewidth=thick, color=INK)
                )
        for i, (kind, (dashes, thick)) in enumerate(zip(kinds, STROKES, strict=False)):
            y = bottom + 0.25 + 0.26 * i
            ax.plot((0.05, 0.65), (y, y), linestyle=dashes, linewidth=thick, color=INK)
            draw_text(ax, 0.8, y, kind, ha="left", fontsize=NAME)
    return figure


def clocks(exchanges: Sequence[tuple[float, float, float]], truth: float) -> Figure:
    """Draw what exchanges of two messages say of another clock: the shortest one over time, and the
    bounds of each.

    Args:
        exchanges: (asked, seen, answered): when rank 0 asked and had its answer, by its clock, and
            what the clock of rank 2 showed in between.
        truth: how much the latter is ahead.
    """
    asks, looks = 0, 2
    asked, seen, answered = min(exchanges, key=lambda one: one[2] - one[0])
    whole, best = answered - asked, seen - (asked + answered) / 2
    with new_panels(8.6, 3.8, 1, 2, width_ratios=(1, 1.3)) as (figure, (left, right)):
        left.set(
            title="the shortest exchange",
            xlabel=f"time by the clock of rank {asks}",
            ylim=(1.75, -0.55),
        )
        left.set(
            xlim=(-0.12 * whole, 1.12 * whole),
            yticks=(0, 1),
            yticklabels=(f"rank {asks}", f"rank {looks}"),
        )
        left.barh(1, whole, height=0.34, facecolor=rank_color(looks), alpha=2 * HAZE)
        for start, end, color in ((0, 0.5, asks), (0.5, 1, looks)):
            ends = {"posA": (start * whole, 2 * start), "posB": (end * whole, 2 * (1 - end))}
            look = {
                "arrowstyle": "-|>",
                "mutation_scale": 14,
                "shrinkA": 0,
                "shrinkB": 0,
                "linewidth": 1.8,
            }
            left.add_patch(FancyArrowPatch(**ends, **look, color=line_color(color)))
        words = {"fontsize": SMALL, "color": INK}
        left.text(
            whole / 2,
            1.25,
            "it looked at its clock\nsome time in here",
            ha="center",
            va="top",
            **words,
        )
        for x, word, side in ((0, "asked", "left"), (whole, "answered", "right")):
            left.text(x, -0.12, word, ha=side, va="bottom", **words)
        right.set(
            title="what each exchange allows", xlabel="exchange", ylabel="offset − best estimate"
        )
        for number, (before, there, after) in enumerate(exchanges):
            shortest = (before, there, after) == (asked, seen, answered)
            color, width = (line_color(looks), 4) if shortest else (INK, 1.8)
            right.plot(
                [number, number],
                [there - after - best, there - before - best],
                color=color,
                linewidth=width,
            )
            right.plot(number, there - (before + after) / 2 - best, "o", markersize=5, color=color)
        right.axhline(truth - best, linewidth=1.2, linestyle="--", color=INK)
        beside = {
            "xycoords": ("axes fraction", "data"),
            "xytext": (5, 0),
            "textcoords": "offset points",
        }
        right.annotate("the\ntruth", (1, truth - best), **beside, va="center", fontsize=SMALL)
        for axis in (left.xaxis, right.yaxis):
            even_ticks(axis, "s")
        left.locator_params("x", nbins=3)
        for ax in (left, right):
            ax.grid(visible=False)
    return figure


def first_errors(outcomes: Mapping[str, Sequence[tuple[float, str]]], timeout: float) -> Axes:
    """Draw when each rank reported its error, mistake by mistake from the top down.

    Args:
        outcomes: by mistake, for each rank the seconds until its error, and a few words of it.
        timeout: that all of them had.
    """
    with new_axes(
        7.4, 0.6 + 0.85 * len(outcomes), xlabel="time until the rank reports an error"
    ) as ax:
        for place, ranks in enumerate(outcomes.values()):
            for rank, (seconds, words) in enumerate(ranks):
                y = place + 0.19 * (2 * rank - 1)
                ax.barh(y, seconds, height=0.34, color=rank_color(rank))
                beside = {
                    "xytext": (5, 0),
                    "textcoords": "offset points",
                    "va": "center",
                    "fontsize": NAME,
                }
                ax.annotate(
                    f"rank {rank}: {words}", (max(seconds, timeout), y), color=INK, **beside
                )
        ax.axvline(timeout, color=INK, linestyle="--", linewidth=1)
        ax.text(timeout, -0.52, " the timeout", va="bottom", fontsize=NAME, color=INK)
        ax.set(yticks=range(len(outcomes)), yticklabels=outcomes, ylim=(len(outcomes) - 0.5, -0.5))
        ax.set_xlim(0, 1.75 * max(seconds for ranks in outcomes.values() for seconds, _ in ranks))
        even_ticks(ax.xaxis, "s")
        ax.grid(visible=False, axis="y")
    return ax
