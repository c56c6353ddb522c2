"""Lab 54: which rank holds which part of a whole model, and a step by the dimensions of the mesh.

The notebooks call it through `distlab_course.figures`, in their kernel. Lengths are in inches, and
times in seconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distlab.plotting.axes import new_axes
from distlab.plotting.bars import (
    ACTIVITY_LOOKS,
    Bar,
    Look,
    draw_lanes,
    height_of,
    legend_below,
)
from distlab.plotting.canvas import draw_box, draw_text, new_canvas, text_width
from distlab.plotting.curves import badge
from distlab.plotting.describing import describe
from distlab.plotting.style import CURVE_COLORS, LABEL_SIZE, NAME_SIZE, SMALL_SIZE, rank_color

NUMBERS_AN_INCH = 48  # of a matrix, along its height and its width
LINE = 0.012  # between two parts
LEAST_HEIGHT = 0.14  # of a part with a number in it
NAME_HEIGHT = 0.22
GAP = 0.08
COLUMN_GAP = 0.3
HEAD = 0.34  # height of the columns' names
# colours of dimensions that are far from those of computing
DIMENSION_COLORS = (CURVE_COLORS[6], CURVE_COLORS[4], CURVE_COLORS[2], CURVE_COLORS[3])

Ranks = Sequence[Sequence[int]]  # a matrix with the rank that holds each number
Tile = tuple[int, int, int, int, int]  # first row, end, first column, end, and the rank
Piece = tuple[int, float, float, str]  # rank, start, end, and "computing" or a dimension


def owners(columns: Mapping[str, Mapping[str, Ranks]], title: str = "") -> Figure:
    """Draw the matrices of a model as large as they are, each cut into the parts of the ranks.

    Args:
        columns: by name, for example "block 0", matrices by name; each has, for each of its
            numbers, the rank that holds it.
        title: what is shown.
    """
    widths = {name: _width(name, matrices) for name, matrices in columns.items()}
    height = HEAD + max(_height(matrices) for matrices in columns.values())
    width = sum(widths.values()) + COLUMN_GAP * (len(widths) - 1)
    figure, ax = new_canvas(width, height, title)
    left = 0.0
    words = []
    for name, matrices in columns.items():
        draw_text(ax, left, 0.1, name, ha="left", fontsize=LABEL_SIZE)
        top = HEAD
        held = set()
        for matrix_name, ranks in matrices.items():
            draw_text(ax, left, top + 0.1, matrix_name, ha="left", fontsize=SMALL_SIZE)
            for tile in _tiles(ranks):
                _draw_tile(ax, left, top + NAME_HEIGHT, tile)
                held.add(tile[-1])
            top += NAME_HEIGHT + len(ranks) / NUMBERS_AN_INCH + GAP
        left += widths[name] + COLUMN_GAP
        words.append(f"{name} is on ranks {', '.join(map(str, sorted(held)))}")
    describe(figure, title or "which rank holds which part", words)
    return figure


def _width(name: str, matrices: Mapping[str, Ranks]) -> float:
    """The width of a column: that of its widest matrix, or of its name."""
    widest = max(len(ranks[0]) for ranks in matrices.values()) / NUMBERS_AN_INCH
    return max(widest, text_width(name, LABEL_SIZE))


def _height(matrices: Mapping[str, Ranks]) -> float:
    """The height of a column below its name."""
    rows = sum(len(ranks) for ranks in matrices.values())
    return rows / NUMBERS_AN_INCH + len(matrices) * (NAME_HEIGHT + GAP)


def _tiles(ranks: Ranks) -> list[Tile]:
    """The rectangles of a matrix that one rank holds; cuts go through the whole matrix."""
    rows = _cuts(ranks)
    columns = _cuts(list(zip(*ranks, strict=True)))
    tiles = []
    for top, bottom in pairwise(rows):
        for left, right in pairwise(columns):
            tiles.append((top, bottom, left, right, int(ranks[top][left])))
    return tiles


def _cuts(lines: Sequence[Sequence[int]]) -> list[int]:
    """Where a line differs from the one before, with both ends."""
    found = [0]
    for place in range(1, len(lines)):
        if list(lines[place]) != list(lines[place - 1]):
            found.append(place)
    return [*found, len(lines)]


def _draw_tile(ax: Axes, x: float, y: float, tile: Tile) -> None:
    """Draw a part of a matrix whose corner is at (x, y), with the number of its rank."""
    top, bottom, left, right, rank = tile
    width = (right - left) / NUMBERS_AN_INCH
    height = (bottom - top) / NUMBERS_AN_INCH
    corner = (x + left / NUMBERS_AN_INCH, y + top / NUMBERS_AN_INCH)
    text = str(rank) if height > LEAST_HEIGHT else ""
    size = SMALL_SIZE - 1
    draw_box(ax, *corner, width - LINE, height - LINE, text, rank_color(rank), size)


def dimensions(pieces: Iterable[Piece], title: str = "", simulated: str = "") -> Axes:
    """Draw when each rank computes, and when it communicates in which dimension of a mesh.

    Args:
        pieces: the rank, start and end in seconds, and "computing" or the name of a dimension.
        title: what is shown.
        simulated: on which machines, as `cluster.simulated` says it; "" for measured times.
    """
    listed = sorted(pieces, key=lambda piece: piece[:2])
    zero = min(start for _, start, _, _ in listed)
    end = max(end for _, _, end, _ in listed) - zero
    looks = _looks(what for _, _, _, what in listed)
    lanes: dict[str, list[Bar]] = {}
    seconds: dict[str, float] = {}
    for rank, start, stop, what in listed:
        bar = Bar(start - zero, stop - zero, looks[what])
        lanes.setdefault(f"rank {rank}", []).append(bar)
        seconds[what] = seconds.get(what, 0.0) + stop - start
    height = height_of(lanes) + 1.5
    with new_axes(7.4, height, title=title, xlabel="time") as ax:
        legend_below(ax, list(looks.values()), columns=4)
        draw_lanes(ax, lanes, 1.01 * end, size=NAME_SIZE)
        ranks = len(lanes)
        words = [
            f"{what}: {total / ranks / end:.0%} of a rank's time" for what, total in seconds.items()
        ]
        describe(ax, title or "a step", words)
        badge(ax, simulated)
    return ax


def _looks(names: Iterable[str]) -> dict[str, Look]:
    """How computing and each dimension are drawn."""
    looks = {"computing": ACTIVITY_LOOKS["forward"]._replace(words="computing")}
    for name in dict.fromkeys(sorted(names)):
        if name not in looks:
            color = DIMENSION_COLORS[(len(looks) - 1) % len(DIMENSION_COLORS)]
            looks[name] = Look(color, name)
    return looks
