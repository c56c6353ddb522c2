"""Lab 60: machines, the processes on them, and what goes between the processes.

The notebooks call it through `distlab_course.figures`, in their kernel. Lengths are in inches.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from distlab.plotting.bars import ACTIVITY_LOOKS
from distlab.plotting.canvas import draw_box, draw_lane, draw_text, new_canvas, text_width
from distlab.plotting.describing import describe
from distlab.plotting.style import INK, NAME_SIZE, rank_color, style

Point = tuple[float, float]
# by what goes over the lines: the names of two processes for each
Lines = Mapping[str, Sequence[tuple[str, str]]]

PROCESS_HEIGHT = 0.34
PROCESS_WIDTH = 1.25  # with the space beside it
MACHINE_GAP = 0.4  # between two machines side by side
AROUND = 0.25  # around processes
UPPER_HEIGHT = PROCESS_HEIGHT + AROUND + 0.25  # of the first machine
LOWER_TOP = PROCESS_HEIGHT + 3 * AROUND + 0.15  # of the other machines
OTHERS_Y = LOWER_TOP + 0.3  # middle of the processes there that are no ranks
RANKS_Y = PROCESS_HEIGHT + 4 * AROUND + 1.15  # middle of the ranks below them
LEGEND_ROW = 0.26


class Stroke(NamedTuple):
    """How the lines of one kind are drawn."""

    dashes: str | tuple[float, tuple[float, ...]]
    width: float


STROKES = (
    Stroke("-", 1.2),
    Stroke((0, (5, 2)), 1.6),
    Stroke((0, (1, 1.6)), 1.6),
    Stroke("-", 2.6),
)


class Machine(NamedTuple):
    """A machine of the lower row, with its processes and the place where it is drawn."""

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
    below = _side_by_side(rest)
    total = below[-1].left + below[-1].width
    bottom = RANKS_Y + 0.55
    if _has_arcs(lines):
        bottom += 0.13 * total
    legend = list(lines)
    if len(legend) == 1:  # there is nothing to tell apart
        legend = []
    width = total
    for words in legend:
        width = max(width, text_width(words, NAME_SIZE) + 1)
    height = bottom + 0.15 + LEGEND_ROW * len(legend)
    figure, ax = new_canvas(width, height, title)
    places = _places_of(above, below, total)
    with style():
        draw_lane(ax, 0, 0, total, UPPER_HEIGHT, INK)
        draw_text(ax, 0.1, 0.17, first, ha="left", fontsize=NAME_SIZE)
        for machine in below:
            draw_lane(ax, machine.left, LOWER_TOP, machine.width, bottom - LOWER_TOP, INK)
            x = machine.left + 0.1
            draw_text(ax, x, bottom - 0.15, machine.name, ha="left", fontsize=NAME_SIZE)
        boxes = {name: _draw_process(ax, name, place) for name, place in places.items()}
        for pairs, stroke in zip(lines.values(), STROKES, strict=False):
            for start, end in pairs:
                line = _line_between(places[start], places[end], stroke, arrows)
                line.set_patchA(boxes[start])
                line.set_patchB(boxes[end])
                ax.add_patch(line)
        _draw_legend(ax, legend, bottom + 0.25)
    parts = [f"{machine}: {', '.join(names)}" for machine, names in processes.items()]
    for words, pairs in lines.items():
        between = ", ".join(f"{start} and {end}" for start, end in pairs)
        parts.append(f"{words} between {between}")
    describe(figure, title or "processes on their machines", parts)
    return figure


def _has_arcs(lines: Lines) -> bool:
    """Whether a line is between two ranks; it is then an arc below them."""
    pairs = chain.from_iterable(lines.values())
    return any(_is_rank(start) and _is_rank(end) for start, end in pairs)


def _is_rank(name: str) -> bool:
    """Whether a process is a rank."""
    return name.startswith("rank ")


def _side_by_side(processes: Iterable[tuple[str, Sequence[str]]]) -> list[Machine]:
    """Machines from left to right, each as wide as the longer of its two rows."""
    placed = []
    left = 0.0
    for name, names in processes:
        others = [process for process in names if not _is_rank(process)]
        ranks = [process for process in names if _is_rank(process)]
        width = PROCESS_WIDTH * max(len(others), len(ranks)) + AROUND
        placed.append(Machine(name, others, ranks, left, width))
        left += width + MACHINE_GAP
    return placed


def _places_of(above: Sequence[str], below: Sequence[Machine], total: float) -> dict[str, Point]:
    """The middle of each process: those of the upper machine, then by machine others and ranks."""
    places = {}
    for column, process in enumerate(above, 1):
        x = column * total / (len(above) + 1)
        places[process] = (x, 0.35 + PROCESS_HEIGHT / 2)
    for machine in below:
        for column, process in enumerate(machine.others):
            x = machine.left + (column + 0.5) * PROCESS_WIDTH
            places[process] = (x, OTHERS_Y)
        for column, process in enumerate(machine.ranks):
            own_width = machine.width / len(machine.ranks)
            x = machine.left + (column + 0.5) * own_width
            places[process] = (x, RANKS_Y)
    return places


def _draw_process(ax: Axes, name: str, place: Point) -> Rectangle:
    """Draw the box of a process above all lines, and return it."""
    x, y = place
    color = ACTIVITY_LOOKS["compute"].fill
    if _is_rank(name):
        number = name.split()[1]  # what follows may say its number on the host
        color = rank_color(int(number))
    width = text_width(name, NAME_SIZE) + 0.2
    left = x - width / 2
    top = y - PROCESS_HEIGHT / 2
    box = draw_box(ax, left, top, width, PROCESS_HEIGHT, name, color, NAME_SIZE)
    box.set_zorder(2)
    return box


def _line_between(start: Point, end: Point, stroke: Stroke, arrow: bool) -> FancyArrowPatch:
    """A line between the middles of two processes; between two ranks it is an arc below them."""
    start_x, start_y = start
    end_x, end_y = end
    bow = 0.0
    if start_y == end_y == RANKS_Y:
        bow = math.copysign(0.35, end_x - start_x)
    return FancyArrowPatch(
        start,
        end,
        arrowstyle="-|>" if arrow else "-",
        connectionstyle=f"arc3,rad={bow}",
        mutation_scale=14,
        linestyle=stroke.dashes,
        linewidth=stroke.width,
        color=INK,
    )


def _draw_legend(ax: Axes, entries: Sequence[str], top: float) -> None:
    """Draw a line of each kind, and beside it what goes over it."""
    for row, (words, stroke) in enumerate(zip(entries, STROKES, strict=False)):
        y = top + LEGEND_ROW * row
        xs = (0.05, 0.65)
        ax.plot(xs, (y, y), linestyle=stroke.dashes, linewidth=stroke.width, color=INK)
        draw_text(ax, 0.8, y, words, ha="left", fontsize=NAME_SIZE)
