"""How processes meet: calls to a store, who refers to whom, machines, clocks, errors in time.

The notebooks call it through `distlab_course.figures`, in their kernel. Lengths are in inches,
times in seconds.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from distlab.plotting.axes import SMALL, even_ticks, new_axes, new_panels
from distlab.plotting.bars import LOOKS
from distlab.plotting.canvas import canvas, draw_box, draw_lane, draw_text, text_width
from distlab.plotting.style import HAZE, INK, line_color, rank_color, style
from distlab.tables import format_seconds

LABEL = 11  # font size of the names of lanes, in points
NAME = 10  # font size of the names of nodes and processes

Point = tuple[float, float]
Pairs = Sequence[tuple[str, str]]  # of names, from and to
Lines = Mapping[str, Pairs]
# "set", "get", "wait" or "add"; key; when it began and ended, in seconds
Call = tuple[str, str, float, float]


# --- the handshake in a store ---

STEP = 0.52  # width of a call
LANE = 0.42  # height of a rank's lane
GAP = 0.2  # between lanes
KEY = 0.3  # height of a key
FOOT = 0.5  # height of the times below
SIZE = 9  # font size


class Step(NamedTuple):
    """One arrow: a rank writes a key, or reads it and may have waited for it since `began`.

    `when` it took place is the end of a read, and the beginning of a write: another rank may read a
    key before the call that wrote it has returned.
    """

    when: float
    rank: int
    key: str
    writes: bool
    began: float


def handshake(calls: Sequence[Sequence[Call]], title: str = "") -> Figure:
    """Draw what each rank wrote into a store and read from it: one arrow a call, by time.

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
    names = ["store", *(f"rank {rank}" for rank in range(len(calls)))]
    left = 0.25 + max(text_width(name, LABEL) for name in names)
    key_ends = [
        left + (place + 0.5) * STEP + text_width(steps[place].key, SIZE) for place in writes
    ]
    width = max([left + len(steps) * STEP, *key_ends])
    store = 0.1 + KEY * len(writes)
    tops = [store + GAP + rank * (LANE + GAP) for rank in range(len(calls))]
    below = tops[-1] + LANE + 0.1
    first = min(step.began for step in steps)
    figure, ax = canvas(width, below + FOOT, title)
    with style():
        draw_lane(ax, 0, 0, width, store, INK, "store", LABEL)
        for rank, top in enumerate(tops):
            draw_lane(ax, 0, top, width, LANE, rank_color(rank), f"rank {rank}", LABEL)
        for place, step in enumerate(steps):
            x = left + place * STEP
            top = tops[step.rank]
            _draw_wait(ax, x, top, step.rank, columns_waited(steps, place))
            in_store = (x + STEP / 2, store - 0.04)
            at_rank = (x + STEP / 2, top + LANE / 2)
            color = line_color(writers[step.key]) if step.key in writers else INK
            if step.writes:
                _draw_arrow(ax, at_rank, in_store, color)
                y = 0.08 + writes.index(place) * KEY
                wide = text_width(step.key, SIZE) + 0.16
                draw_box(ax, x + 0.1, y, wide, KEY - 0.05, step.key, rank_color(step.rank), SIZE)
            else:
                _draw_arrow(ax, in_store, at_rank, color)
            when = format_seconds(step.when - first)
            draw_text(ax, x + STEP / 2, below, when, fontsize=SIZE - 1.5, rotation=45, va="top")
    return figure


def _draw_wait(ax: Axes, x: float, top: float, rank: int, columns: int) -> None:
    """Draw the hatched bar of a rank that waited for a key, on its lane; nothing for no columns."""
    if not columns:
        return
    bar = Rectangle(
        (x - columns * STEP, top + 0.08),
        (columns + 0.35) * STEP,
        LANE - 0.16,
        facecolor="none",
        edgecolor=line_color(rank),
        hatch="////",
        linewidth=0,
    )
    ax.add_patch(bar)


def _draw_arrow(ax: Axes, tail: Point, head: Point, color: str) -> None:
    """Draw the arrow of one call between a rank and the store."""
    ax.annotate("", head, tail, arrowprops={"arrowstyle": "-|>", "color": color, "lw": 1.8})


def steps_of(rank: int, calls: Sequence[Call]) -> list[Step]:
    """The calls of one rank as steps: a wait and what it waits for are one."""
    steps: list[Step] = []
    waits_since: dict[str, float] = {}
    for name, key, called, ended in calls:
        if name == "wait":
            waits_since.setdefault(key, called)
            continue
        began = waits_since.pop(key, called)
        writes = name in ("set", "add")
        when = began if writes else ended
        steps.append(Step(when, rank, key, writes, began))
    return steps


def columns_waited(steps: Sequence[Step], place: int) -> int:
    """The columns before a read in which its rank waited for the key.

    There are none where the key was there when the rank asked for it.
    """
    step = steps[place]
    if step.writes:
        return 0
    written = [other.when for other in steps if other.writes and other.key == step.key]
    if not written or min(written) <= step.began:
        return 0
    earlier = [other for other in steps if other.when <= step.began]
    return place - len(earlier)


# --- a graph on ranks ---

NODE = 0.3  # height of a node
ROW = 0.44  # height of its row
PAD = 0.1  # around a text
ARROW = 0.42  # between columns


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
    widths = {name: text_width(text, NAME) + 2 * PAD for name, text in texts.items()}
    lefts = _lefts_of_columns(columns, widths, start=_width_of_names(nodes.values()))
    rows = _rows_of(nodes, columns)
    lanes = _lanes_of(nodes, rows)
    width = lefts[-1] - ARROW + PAD
    figure, ax = canvas(width, max(top + height for top, height in lanes.values()), title)
    with style():
        for rank, (top, height) in lanes.items():
            draw_lane(ax, 0, top, width, height, rank_color(rank), f"rank {rank}", LABEL)
        corners = {}
        for name, rank in nodes.items():
            left = lefts[columns[name]]
            lane, _ = lanes[rank]
            top = lane + rows[name] * ROW + (ROW - NODE) / 2
            corners[name] = left, top
            fill = "none" if name in hollow else rank_color(rank)
            draw_box(ax, left, top, widths[name], NODE, texts[name], fill, NAME)
            if name in hollow:
                ax.patches[-1].set(edgecolor=line_color(rank), linestyle=(0, (3, 2)), linewidth=1.4)
        for start, end in edges:
            color = INK if nodes[start] == nodes[end] else line_color(nodes[start])
            arrow = {"arrowstyle": "-|>", "color": color, "lw": 1.8, "shrinkA": 1, "shrinkB": 1}
            left, top = corners[start]
            tail = left + widths[start], top + NODE / 2
            left, top = corners[end]
            ax.annotate("", (left, top + NODE / 2), tail, arrowprops=arrow)
    return figure


def columns_of(nodes: Collection[str], edges: Pairs) -> dict[str, int]:
    """The column of each node: one more than the last of those that lead to it."""
    columns = dict.fromkeys(nodes, 0)
    for _ in nodes:
        for start, end in edges:
            columns[end] = max(columns[end], columns[start] + 1)
    return columns


def _width_of_names(ranks: Iterable[int]) -> float:
    """The width that the lanes' names need."""
    return 0.45 + max(text_width(f"rank {rank}", LABEL) for rank in ranks)


def _lefts_of_columns(
    columns: Mapping[str, int], widths: Mapping[str, float], start: float
) -> list[float]:
    """Where each column begins, and where one more would begin."""
    lefts = [start]
    for column in range(max(columns.values()) + 1):
        widest = max(widths[name] for name in columns if columns[name] == column)
        lefts.append(lefts[-1] + widest + ARROW)
    return lefts


def _rows_of(nodes: Mapping[str, int], columns: Mapping[str, int]) -> dict[str, int]:
    """The row of each node in the lane of its rank: nodes in one column stand below each other."""
    taken: dict[tuple[int, int], int] = {}
    rows = {}
    for name, rank in nodes.items():
        place = rank, columns[name]
        rows[name] = taken.get(place, 0)
        taken[place] = rows[name] + 1
    return rows


def _lanes_of(nodes: Mapping[str, int], rows: Mapping[str, int]) -> dict[int, tuple[float, float]]:
    """Top and height of each rank's lane, which is as high as its rows need it."""
    lanes = {}
    top = 0.0
    for rank in sorted(set(nodes.values())):
        last = max(rows[name] for name in nodes if nodes[name] == rank)
        height = ROW * (1 + last)
        lanes[rank] = top, height
        top += height + 0.16
    return lanes


# --- machines and their processes ---

BOX = 0.34  # height of a process
LEVEL = 0.95  # from the upper row of processes to the lower
COLUMN = 1.25  # width of a process
BETWEEN = 0.4  # between two machines
AROUND = 0.25  # around processes
KIND = 0.26  # height of a line of the legend
# of the lines of each kind: dashes, width
Stroke = tuple[str | tuple[float, tuple[float, ...]], float]
STROKES: tuple[Stroke, ...] = (
    ("-", 1.2),
    ((0, (5, 2)), 1.6),
    ((0, (1, 1.6)), 1.6),
    ("-", 2.6),
)


class Machine(NamedTuple):
    """A machine of the lower row: its name, its processes and where it is drawn."""

    name: str
    others: list[str]
    ranks: list[str]
    left: float
    width: float


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
    (first, above), *rest = processes.items()
    below = list(_side_by_side(rest))
    total = below[-1].left + below[-1].width
    top = BOX + 3 * AROUND
    y_of_ranks = BOX + 4 * AROUND + LEVEL + 0.2
    bottom = y_of_ranks + 0.55
    if any(_is_rank(start) and _is_rank(end) for pairs in lines.values() for start, end in pairs):
        bottom += 0.13 * total  # for the arcs between ranks
    kinds = list(lines) if len(lines) > 1 else []
    width = max([total, *(text_width(kind, NAME) + 1 for kind in kinds)])
    figure, ax = canvas(width, bottom + 0.15 + KIND * len(kinds), title)
    places = _places_of(above, below, total, top + 0.45, y_of_ranks)
    with style():
        draw_lane(ax, 0, 0, total, BOX + AROUND + 0.25, INK)
        draw_text(ax, 0.1, 0.17, first, ha="left", fontsize=NAME)
        for machine in below:
            draw_lane(ax, machine.left, top + 0.15, machine.width, bottom - top - 0.15, INK)
            x = machine.left + 0.1
            draw_text(ax, x, bottom - 0.15, machine.name, ha="left", fontsize=NAME)
        boxes = {name: _draw_process(ax, name, place) for name, place in places.items()}
        for pairs, stroke in zip(lines.values(), STROKES, strict=False):
            for start, end in pairs:
                line = _line_between(places[start], places[end], y_of_ranks, stroke, arrows)
                line.set_patchA(boxes[start])
                line.set_patchB(boxes[end])
                ax.add_patch(line)
        for row, (kind, (dashes, thick)) in enumerate(zip(kinds, STROKES, strict=False)):
            y = bottom + 0.25 + KIND * row
            ax.plot((0.05, 0.65), (y, y), linestyle=dashes, linewidth=thick, color=INK)
            draw_text(ax, 0.8, y, kind, ha="left", fontsize=NAME)
    return figure


def _is_rank(name: str) -> bool:
    return name.startswith("rank ")


def _side_by_side(processes: Iterable[tuple[str, Sequence[str]]]) -> Iterator[Machine]:
    """Machines from left to right, each as wide as the longer of its two rows."""
    left = 0.0
    for name, names in processes:
        others = [process for process in names if not _is_rank(process)]
        ranks = [process for process in names if _is_rank(process)]
        width = COLUMN * max(len(others), len(ranks)) + AROUND
        yield Machine(name, others, ranks, left, width)
        left += width + BETWEEN


def _places_of(
    above: Sequence[str], below: Sequence[Machine], total: float, y: float, y_of_ranks: float
) -> dict[str, Point]:
    """The middle of each process: those of the upper machine, then by machine others and ranks."""
    places = {}
    for column, process in enumerate(above):
        places[process] = ((column + 1) * total / (len(above) + 1), 0.35 + BOX / 2)
    for machine in below:
        for column, process in enumerate(machine.others):
            places[process] = (machine.left + (column + 0.5) * COLUMN, y)
        for column, process in enumerate(machine.ranks):
            step = machine.width / len(machine.ranks)
            places[process] = (machine.left + (column + 0.5) * step, y_of_ranks)
    return places


def _draw_process(ax: Axes, name: str, place: Point) -> Patch:
    """Draw the box of a process above all lines, and return it."""
    x, y = place
    color = LOOKS["compute"].fill
    if _is_rank(name):
        color = rank_color(int(name.split()[1]))
    width = text_width(name, NAME) + 0.2
    draw_box(ax, x - width / 2, y - BOX / 2, width, BOX, name, color, NAME)
    box = ax.patches[-1]
    box.set_zorder(2)
    return box


def _line_between(
    start: Point, end: Point, y_of_ranks: float, stroke: Stroke, arrow: bool
) -> FancyArrowPatch:
    """A line between the middles of two processes; between two ranks it is an arc below them."""
    bow = 0.0
    if start[1] == end[1] == y_of_ranks:
        bow = math.copysign(0.35, end[0] - start[0])
    dashes, thick = stroke
    return FancyArrowPatch(
        start,
        end,
        arrowstyle="-|>" if arrow else "-",
        connectionstyle=f"arc3,rad={bow}",
        mutation_scale=14,
        linestyle=dashes,
        linewidth=thick,
        color=INK,
    )


# --- clocks and errors ---

Exchange = tuple[float, float, float]  # asked, seen, answered
ASKING = 0  # the rank that asks for the time
ASKED = 2  # the rank whose clock it asks for


def clocks(exchanges: Sequence[Exchange], truth: float) -> Figure:
    """Draw what exchanges of two messages say about another clock.

    At the left is the shortest exchange over time, at the right the bounds that each one gives.

    Args:
        exchanges: (asked, seen, answered): when rank 0 asked and had its answer, by its clock, and
            what the clock of rank 2 showed in between.
        truth: how much the latter is ahead.
    """
    shortest = min(exchanges, key=lambda exchange: exchange[2] - exchange[0])
    asked, seen, answered = shortest
    best = seen - (asked + answered) / 2
    with new_panels(8.6, 3.8, 1, 2, width_ratios=(1, 1.3)) as (figure, (left, right)):
        _draw_exchange(left, answered - asked)
        right.set(
            title="what each exchange allows", xlabel="exchange", ylabel="offset − best estimate"
        )
        for number, exchange in enumerate(exchanges):
            _draw_bounds(right, number, exchange, best, exchange == shortest)
        right.axhline(truth - best, linewidth=1.2, linestyle="--", color=INK)
        right.annotate(
            "the\ntruth",
            (1, truth - best),
            xycoords=("axes fraction", "data"),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=SMALL,
        )
        for axis in (left.xaxis, right.yaxis):
            even_ticks(axis, "s")
        left.locator_params("x", nbins=3)
        for ax in (left, right):
            ax.grid(visible=False)
    return figure


def _draw_exchange(ax: Axes, whole: float) -> None:
    """Draw a question and its answer, together `whole` seconds, as arrows between two ranks."""
    ax.set(
        title="the shortest exchange",
        xlabel=f"time by the clock of rank {ASKING}",
        ylim=(1.75, -0.55),
    )
    ax.set_xlim(-0.12 * whole, 1.12 * whole)
    ax.set(yticks=(0, 1), yticklabels=(f"rank {ASKING}", f"rank {ASKED}"))
    ax.barh(1, whole, height=0.34, facecolor=rank_color(ASKED), alpha=2 * HAZE)
    question = (0, 0), (whole / 2, 1), ASKING
    answer = (whole / 2, 1), (whole, 0), ASKED
    for tail, head, sender in (question, answer):
        arrow = FancyArrowPatch(
            tail,
            head,
            arrowstyle="-|>",
            mutation_scale=14,
            shrinkA=0,
            shrinkB=0,
            linewidth=1.8,
            color=line_color(sender),
        )
        ax.add_patch(arrow)
    words = "it looked at its clock\nsome time in here"
    ax.text(whole / 2, 1.25, words, ha="center", va="top", fontsize=SMALL, color=INK)
    ax.text(0, -0.12, "asked", ha="left", va="bottom", fontsize=SMALL, color=INK)
    ax.text(whole, -0.12, "answered", ha="right", va="bottom", fontsize=SMALL, color=INK)


def _draw_bounds(ax: Axes, number: int, exchange: Exchange, best: float, shortest: bool) -> None:
    """Draw between which offsets the other clock is, by one exchange, and their middle."""
    asked, seen, answered = exchange
    color = line_color(ASKED) if shortest else INK
    width = 4.0 if shortest else 1.8
    bounds = [seen - answered - best, seen - asked - best]
    ax.plot([number, number], bounds, color=color, linewidth=width)
    middle = seen - (asked + answered) / 2 - best
    ax.plot(number, middle, "o", markersize=5, color=color)


def first_errors(outcomes: Mapping[str, Sequence[tuple[float, str]]], timeout: float) -> Axes:
    """Draw when each rank reported its error, mistake by mistake from the top down.

    Args:
        outcomes: by mistake, for each rank the seconds until its error, and a few words of it.
        timeout: that all of them had.
    """
    height = 0.6 + 0.85 * len(outcomes)
    with new_axes(7.4, height, xlabel="time until the rank reports an error") as ax:
        latest = 0.0
        for place, ranks in enumerate(outcomes.values()):
            for rank, (seconds, words) in enumerate(ranks):
                y = place + 0.19 * (2 * rank - 1)
                ax.barh(y, seconds, height=0.34, color=rank_color(rank))
                ax.annotate(
                    f"rank {rank}: {words}",
                    (max(seconds, timeout), y),
                    color=INK,
                    xytext=(5, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=NAME,
                )
                latest = max(latest, seconds)
        ax.axvline(timeout, color=INK, linestyle="--", linewidth=1)
        ax.text(timeout, -0.52, " the timeout", va="bottom", fontsize=NAME, color=INK)
        ax.set(yticks=range(len(outcomes)), yticklabels=outcomes, ylim=(len(outcomes) - 0.5, -0.5))
        ax.set_xlim(0, 1.75 * latest)
        even_ticks(ax.xaxis, "s")
        ax.grid(visible=False, axis="y")
    return ax
