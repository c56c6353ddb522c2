"""Lab 51: parts of a tensor on ranks, weights that are cut, a mesh.

The notebooks call it through `distlab_course.figures`, in their kernel, with values that they
pulled from ranks. Lengths are in inches.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle

from distlab.plotting.canvas import draw_text, new_canvas, text_width
from distlab.plotting.cells import Origin, Slot, draw_cell, format_value, origin_of
from distlab.plotting.style import FAINT, INK, LABEL_SIZE, SMALL_SIZE, rank_color, text_color

# font sizes in points: of a number, of a name
# of a cell, at least
WIDE = 0.27
HIGH = 0.25
HEAD = 0.4  # height of the ranks' names
GAP = 0.3  # between states
SIDE = 0.24  # between two ranks
WORDS = 0.3  # more between two states where an arrow has words
TALL = 1.2  # of the longest side of a weight

Layer = tuple[str, tuple[int, ...], int | None]  # name, shape, dimension
Matrix = Sequence[Sequence[float | None]]
Point = tuple[float, float]


def shards(
    states: Sequence[tuple[str, Sequence[Any]]], moves: Sequence[str | None] = (), title: str = ""
) -> Figure:
    """Draw which part of a tensor each rank holds, in one state below the other.

    A number has the colour of its rank, and below an arrow that of the one rank that held it in the
    state where the arrows begin. Light grey are numbers that several ranks hold alike, dark grey
    those that none held before (sums). A state without an arrow to it is another tensor.

    Args:
        states: a name, and what each rank holds: by rank a matrix as large as the whole tensor (a
            tensor, or nested lists), with NaN or None where the rank holds nothing.
        moves: what leads from a state to the next one, such as "all-gather"; None for nothing.
        title: what is shown.
    """
    matrices = [(name, [matrix_of(rank) for rank in by_rank]) for name, by_rank in states]
    # The first state has nothing before it; states beyond the moves have none that leads to them.
    into = [None, *moves, *[None] * len(matrices)][: len(matrices)]
    cell = _width_of_cells(state for _, state in matrices)
    names = max(text_width(name, LABEL_SIZE) for name, _ in matrices) + 0.24
    column = cell * max(len(state[0][0]) for _, state in matrices) + SIDE
    rows = sum(HIGH * len(state[0]) for _, state in matrices)
    gaps = sum(_gap_before(move) for move in into[1:])
    n = len(matrices[0][1])
    lefts = [names + rank * column for rank in range(n)]
    figure, ax = new_canvas(names + n * column - SIDE, HEAD + rows + gaps, title)
    for rank, left in enumerate(lefts):
        _draw_head(ax, left, column - SIDE, rank)

    top = HEAD
    start: list[list[float]] = []
    for place, ((name, state), move) in enumerate(zip(matrices, into, strict=True)):
        if place:
            gap = _gap_before(move)
            if move:
                _draw_move(ax, names + (n * column - SIDE) / 2, top, gap, move)
            top += gap
        if not move:
            start = [_values_in(matrix) for matrix in state]
        draw_text(ax, 0, top + HIGH * len(state[0]) / 2, name, ha="left", fontsize=LABEL_SIZE)
        alike = all(matrix == state[0] for matrix in state)
        for rank, matrix in enumerate(state):
            # Below an arrow a number has the colour of the rank that held it before.
            origin: Origin | None = None
            if not move:
                origin = "shared" if alike else rank
            _draw_matrix(ax, (lefts[rank], top), cell, matrix, origin, start)
        top += HIGH * len(state[0])
    return figure


def matrix_of(values: Any) -> Matrix:
    """Nested lists, with None where there is nothing; a vector is one row."""
    rows = values.tolist() if hasattr(values, "tolist") else values
    is_matrix = rows and isinstance(rows[0], (list, tuple))
    if not is_matrix:
        rows = [rows]
    return [[None if _is_nothing(value) else value for value in row] for row in rows]


def _is_nothing(value: float | None) -> bool:
    """Whether a value is None or NaN, which alone is not equal to itself."""
    return value is None or value != value


def _values_in(matrix: Matrix) -> list[float]:
    """The values of a matrix, without the places where there is nothing."""
    return [value for value in chain.from_iterable(matrix) if value is not None]


def _width_of_cells(states: Iterable[Sequence[Matrix]]) -> float:
    """The width that the longest number needs."""
    rows = chain.from_iterable(chain.from_iterable(states))
    texts = (format_value(value) for value in chain.from_iterable(rows))
    return max(WIDE, *(text_width(text, SMALL_SIZE) + 0.07 for text in texts))


def _gap_before(move: str | None) -> float:
    """The space above a state, with more of it where a move leads there."""
    return GAP + WORDS if move else GAP


def _arrow(start: Point, end: Point) -> FancyArrowPatch:
    return FancyArrowPatch(
        start,
        end,
        arrowstyle="-|>",
        mutation_scale=12,
        color=INK,
        linewidth=1.2,
        shrinkA=0,
        shrinkB=0,
    )


def _draw_head(ax: Axes, left: float, width: float, rank: int) -> None:
    """Draw a rank's name above its column, with a bar in its colour."""
    bar = Rectangle((left, 0.26), width, 0.05, facecolor=rank_color(rank), edgecolor="none")
    ax.add_patch(bar)
    draw_text(ax, left + width / 2, 0.1, f"rank {rank}", fontsize=LABEL_SIZE, color=INK)


def _draw_move(ax: Axes, x: float, top: float, length: float, move: str) -> None:
    """Draw the arrow from one state down to the next, with its words."""
    ax.add_patch(_arrow((x, top + 0.06), (x, top + length - 0.06)))
    y = top + length / 2
    draw_text(ax, x + 0.14, y, move, ha="left", va="center_baseline", fontsize=LABEL_SIZE)


def _draw_matrix(
    ax: Axes,
    corner: Point,
    width: float,
    matrix: Matrix,
    origin: Origin | None,
    start: list[list[float]],
) -> None:
    """Draw what one rank holds; a cell is an outline where the rank holds nothing.

    Args:
        corner: the upper left one.
        width: of a cell.
        origin: whose colour the values have; None for that of the rank that had a value at `start`.
        start: by rank, the values in the state where the arrows begin.
    """
    left, top = corner
    for row, values in enumerate(matrix):
        for column, value in enumerate(values):
            x = left + column * width
            y = top + row * HIGH
            if value is None:
                hole = Rectangle(
                    (x + 0.02, y + 0.02),
                    width - 0.04,
                    HIGH - 0.04,
                    facecolor="none",
                    edgecolor=INK,
                    linewidth=0.5,
                    alpha=0.6,
                )
                ax.add_patch(hole)
                continue
            slot = Slot(value, origin_of(value, start) if origin is None else origin)
            draw_cell(ax, x + 0.01, y + 0.01, width - 0.02, HIGH - 0.02, slot, SMALL_SIZE)


def cuts(layers: Sequence[Layer], n: int, marks: Mapping[str, str], title: str = "") -> Figure:
    """Draw how the weights of layers are cut: rectangles in the ranks' colours, outputs downwards.

    Args:
        layers: in the order in which they are called: a name, the shape of the weight, and the
            dimension along which it is cut, or None where every rank has all of it.
        n: the number of ranks.
        marks: by the name of a layer, what is called behind it, in one or more lines.
        title: what is shown.
    """
    scale = TALL / max(chain.from_iterable(shape for _, shape, _ in layers))
    sizes = {name: " x ".join(map(str, shape)) for name, shape, _ in layers}
    widths = {name: _width_of_weight(shape, scale) for name, shape, _ in layers}
    columns = {}
    gaps = {}
    for name in sizes:
        columns[name] = max(
            widths[name], text_width(sizes[name], SMALL_SIZE), text_width(name, LABEL_SIZE)
        )
        words = marks.get(name, "").splitlines()
        gaps[name] = 0.28 + max((text_width(line, SMALL_SIZE) for line in words), default=0)
    figure, ax = new_canvas(sum(columns.values()) + sum(gaps.values()), TALL + 1.0, title)
    left = 0.0
    middle = 0.26 + TALL / 2
    for name, shape, dim in layers:
        high = shape[0] * scale
        x = left + (columns[name] - widths[name]) / 2
        y = middle - high / 2
        draw_text(ax, left + columns[name] / 2, y - 0.16, name, fontsize=LABEL_SIZE)
        draw_text(ax, left + columns[name] / 2, y + high + 0.16, sizes[name], fontsize=SMALL_SIZE)
        _draw_weight(ax, (x, y), (widths[name], high), dim, n)
        start = left + columns[name]
        left += columns[name] + gaps[name]
        above = middle - 0.08
        draw_text(
            ax, (start + left) / 2, above, marks.get(name, ""), va="bottom", fontsize=SMALL_SIZE
        )
        ax.add_patch(_arrow((start + 0.05, middle), (left - 0.05, middle)))
    _draw_owners(ax, n)
    return figure


def _width_of_weight(shape: tuple[int, ...], scale: float) -> float:
    """The width of a weight of this shape; a vector is a narrow column."""
    return max(0.12, shape[1] * scale if len(shape) > 1 else 0)


def _draw_weight(
    ax: Axes, corner: Point, size: tuple[float, float], dim: int | None, n: int
) -> None:
    """Draw a weight in n parts along a dimension, or as one part that every rank has."""
    x, y = corner
    width, height = size
    if dim is None:
        _draw_part(ax, x, y, width, height, FAINT)
    elif dim == 0:
        for rank in range(n):
            _draw_part(ax, x, y + rank * (height / n), width, height / n, rank_color(rank))
    else:
        for rank in range(n):
            _draw_part(ax, x + rank * (width / n), y, width / n, height, rank_color(rank))


def _draw_part(ax: Axes, x: float, y: float, width: float, height: float, color: str) -> None:
    part = Rectangle((x, y), width, height, facecolor=color, edgecolor="#FFFFFF", linewidth=0.6)
    ax.add_patch(part)


def _draw_owners(ax: Axes, n: int) -> None:
    """Draw below the weights which colour is whose."""
    owners = {f"rank {rank}": rank_color(rank) for rank in range(n)}
    owners["every rank"] = FAINT
    x = 0.0
    for name, color in owners.items():
        ax.add_patch(Rectangle((x, TALL + 0.8), 0.14, 0.14, facecolor=color, edgecolor="none"))
        y = TALL + 0.87
        draw_text(ax, x + 0.2, y, name, ha="left", va="center_baseline", fontsize=SMALL_SIZE)
        x += text_width(name, SMALL_SIZE) + 0.5


def mesh(
    shape: tuple[int, int], groups: Sequence[tuple[Sequence[int], str]], title: str = ""
) -> Figure:
    """Draw the ranks of a mesh of two dimensions, and who talks to whom about what.

    Args:
        shape: rows and columns; the ranks are numbered along the rows.
        groups: the ranks of a group, of one row or one column, and what they call, in one or more
            lines.
        title: what is shown.
    """
    lines = [words.splitlines() for _, words in groups]
    widest = max(text_width(line, SMALL_SIZE) for line in chain.from_iterable(lines))
    across = widest + 0.9
    deep = 0.2 * max(map(len, lines)) + 0.9
    rows, columns = shape
    figure, ax = new_canvas(across * columns, deep * (rows - 1) + 0.9, title)
    places = []
    for rank in range(rows * columns):
        row, column = divmod(rank, columns)
        places.append((0.4 + across * column, 0.5 + deep * row))
    for ranks, words in groups:
        x, y = places[ranks[0]]
        right, low = places[ranks[-1]]
        in_row = y == low
        dashes: Any = "-" if in_row else (0, (4, 2))
        ax.plot([x, right], [y, low], color=INK, linewidth=2, zorder=0, linestyle=dashes)
        if in_row:
            draw_text(ax, (x + right) / 2, y - 0.07, words, va="bottom", fontsize=SMALL_SIZE)
        else:
            draw_text(ax, x + 0.1, (y + low) / 2, words, ha="left", fontsize=SMALL_SIZE)
    for rank, (x, y) in enumerate(places):
        color = rank_color(rank)
        ax.add_patch(Circle((x, y), 0.25, facecolor=color, edgecolor="none"))
        draw_text(ax, x, y, str(rank), color=text_color(color), va="center_baseline")
    return figure
