"""Lab 60: machines, the processes on them, and what goes between the processes.

The notebooks call it through `distlab_course.figures`, in their kernel. Lengths are in inches.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch

from distlab.plotting.bars import ACTIVITY_LOOKS
from distlab.plotting.canvas import draw_box, draw_lane, draw_text, new_canvas, text_width
from distlab.plotting.style import INK, NAME_SIZE, rank_color, style

Point = tuple[float, float]
Pairs = Sequence[tuple[str, str]]  # of names, from and to
Lines = Mapping[str, Pairs]
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
    width = max([total, *(text_width(kind, NAME_SIZE) + 1 for kind in kinds)])
    figure, ax = new_canvas(width, bottom + 0.15 + KIND * len(kinds), title)
    places = _places_of(above, below, total, top + 0.45, y_of_ranks)
    with style():
        draw_lane(ax, 0, 0, total, BOX + AROUND + 0.25, INK)
        draw_text(ax, 0.1, 0.17, first, ha="left", fontsize=NAME_SIZE)
        for machine in below:
            draw_lane(ax, machine.left, top + 0.15, machine.width, bottom - top - 0.15, INK)
            x = machine.left + 0.1
            draw_text(ax, x, bottom - 0.15, machine.name, ha="left", fontsize=NAME_SIZE)
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
            draw_text(ax, 0.8, y, kind, ha="left", fontsize=NAME_SIZE)
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
    color = ACTIVITY_LOOKS["compute"].fill
    if _is_rank(name):
        color = rank_color(int(name.split()[1]))
    width = text_width(name, NAME_SIZE) + 0.2
    draw_box(ax, x - width / 2, y - BOX / 2, width, BOX, name, color, NAME_SIZE)
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
