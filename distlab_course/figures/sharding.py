"""Lab 51: which part of a tensor each rank holds.

The notebooks call it through `distlab_course.figures`, in their kernel, with values that they
pulled from ranks. Lengths are in inches.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from distlab.plotting.canvas import draw_arrow, draw_text, new_canvas, text_width
from distlab.plotting.cells import Origin, Slot, draw_cell, format_value, origin_of
from distlab.plotting.describing import describe
from distlab.plotting.style import INK, LABEL_SIZE, SMALL_SIZE, filled, rank_color

# of a cell that holds a number, at least
CELL_WIDTH = 0.27
CELL_HEIGHT = 0.25
RANK_HEAD = 0.4  # height of the ranks' names
RANK_GAP = 0.24
STATE_GAP = 0.3
MOVE_LENGTH = 0.3  # by which an arrow with words makes a gap larger

Matrix = Sequence[Sequence[float | None]]
Point = tuple[float, float]


class State(NamedTuple):
    """What the ranks hold of a tensor at one time.

    Attributes:
        name: of the state.
        by_rank: the matrix of each rank, as large as the whole tensor.
        move: what leads here from the state above; None if this is another tensor.
    """

    name: str
    by_rank: list[Matrix]
    move: str | None

    @property
    def height(self) -> float:
        """The height of its matrices."""
        return CELL_HEIGHT * len(self.by_rank[0])

    @property
    def columns(self) -> int:
        """The number of columns of its matrices."""
        return len(self.by_rank[0][0])

    @property
    def is_alike(self) -> bool:
        """Whether all ranks hold the same."""
        first = self.by_rank[0]
        return all(matrix == first for matrix in self.by_rank)

    @property
    def gap(self) -> float:
        """The space above it, with more of it where a move leads there."""
        return STATE_GAP + MOVE_LENGTH if self.move else STATE_GAP


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
    shown = _with_moves(states, moves)
    n = len(shown[0].by_rank)
    cell_width = _width_of_cells(shown)
    names_width = max(text_width(state.name, LABEL_SIZE) for state in shown) + 0.24
    column = cell_width * max(state.columns for state in shown) + RANK_GAP
    lefts = [names_width + rank * column for rank in range(n)]
    rows = sum(state.height for state in shown)
    gaps = sum(state.gap for state in shown[1:])
    width = names_width + n * column - RANK_GAP
    figure, ax = new_canvas(width, RANK_HEAD + rows + gaps, title)
    for rank, left in enumerate(lefts):
        _draw_head(ax, left, column - RANK_GAP, rank)
    top = RANK_HEAD
    start: list[list[float]] = []  # by rank, what it held where the arrows begin
    for place, state in enumerate(shown):
        if place > 0:
            if state.move:
                middle = names_width + (n * column - RANK_GAP) / 2
                _draw_move(ax, middle, top, state.gap, state.move)
            top += state.gap
        if not state.move:
            start = [_values_in(matrix) for matrix in state.by_rank]
        draw_text(ax, 0, top + state.height / 2, state.name, ha="left", fontsize=LABEL_SIZE)
        for rank in range(len(state.by_rank)):
            corner = (lefts[rank], top)
            _draw_matrix(ax, corner, cell_width, _slots_of(state, rank, start))
        top += state.height
    describe(figure, title or "which part of a tensor each rank holds", _in_words(shown))
    return figure


def _in_words(shown: Sequence[State]) -> list[str]:
    """The states in words: what leads there, and the numbers that each rank holds."""
    parts = []
    for state in shown:
        held = []
        for rank, matrix in enumerate(state.by_rank):
            values = [value for value in chain.from_iterable(matrix) if value is not None]
            numbers = " ".join(format_value(value) for value in values)
            held.append(f"rank {rank} has {numbers or 'nothing'}")
        if state.is_alike:
            held = [held[0].replace("rank 0 has", "every rank has")]
        before = f"after {state.move}, " if state.move else ""
        parts.append(f"{before}{state.name}: {', '.join(held)}")
    return parts


def _with_moves(
    states: Sequence[tuple[str, Sequence[Any]]], moves: Sequence[str | None]
) -> list[State]:
    """The states, each with the move that leads to it from the state before it.

    Nothing leads to the first state, nor to states beyond the moves.
    """
    shown = []
    into = chain([None], moves, repeat(None))
    for (name, by_rank), move in zip(states, into, strict=False):
        shown.append(State(name, [matrix_of(values) for values in by_rank], move))
    return shown


def _slots_of(state: State, rank: int, start: Sequence[Sequence[float]]) -> list[list[Slot]]:
    """What a rank holds in a state, row by row, and where each value came from.

    Args:
        state: what all ranks hold.
        rank: the rank that is meant.
        start: by rank, the values in the state where the arrows begin.
    """
    is_alike = state.is_alike
    rows = []
    for values in state.by_rank[rank]:
        row = []
        for value in values:
            origin: Origin = rank
            if value is None:
                origin = "empty"
            elif state.move:
                origin = origin_of(value, start)
            elif is_alike:
                origin = "shared"
            row.append(Slot(value, origin))
        rows.append(row)
    return rows


def matrix_of(values: Any) -> Matrix:
    """Nested lists, with None where there is nothing; a vector is one row."""
    rows = values.tolist() if hasattr(values, "tolist") else values
    is_matrix = rows and isinstance(rows[0], (list, tuple))
    if not is_matrix:
        rows = [rows]
    matrix = []
    for row in rows:
        matrix.append([None if _is_nothing(value) else value for value in row])
    return matrix


def _is_nothing(value: float | None) -> bool:
    """Whether a value is None or NaN, which alone is not equal to itself."""
    return value is None or value != value


def _values_in(matrix: Matrix) -> list[float]:
    """The values of a matrix, without the places where there is nothing."""
    return [value for value in chain.from_iterable(matrix) if value is not None]


def _width_of_cells(states: Iterable[State]) -> float:
    """The width that the longest number needs."""
    width = CELL_WIDTH
    for state in states:
        for row in chain.from_iterable(state.by_rank):
            for value in row:
                width = max(width, text_width(format_value(value), SMALL_SIZE) + 0.07)
    return width


def _draw_head(ax: Axes, left: float, width: float, rank: int) -> None:
    """Draw a rank's name above its column, with a bar in its colour."""
    bar = Rectangle((left, 0.26), width, 0.05, **filled(rank_color(rank)))
    ax.add_patch(bar)
    draw_text(ax, left + width / 2, 0.1, f"rank {rank}", fontsize=LABEL_SIZE, color=INK)


def _draw_move(ax: Axes, x: float, top: float, length: float, move: str) -> None:
    """Draw the arrow from one state down to the next, with its words."""
    start = (x, top + 0.06)
    end = (x, top + length - 0.06)
    draw_arrow(ax, start, end)
    y = top + length / 2
    draw_text(ax, x + 0.14, y, move, ha="left", va="center_baseline", fontsize=LABEL_SIZE)


def _draw_matrix(ax: Axes, corner: Point, width: float, rows: Sequence[Sequence[Slot]]) -> None:
    """Draw what one rank holds; a cell is an outline where the rank holds nothing.

    Args:
        ax: axes of a canvas.
        corner: the upper left one.
        width: of a cell.
        rows: the slots of the rank.
    """
    left, top = corner
    for row, slots in enumerate(rows):
        y = top + row * CELL_HEIGHT
        for column, slot in enumerate(slots):
            x = left + column * width
            if slot.value is None:
                _draw_hole(ax, x, y, width)
            else:
                inner_width = width - 0.02
                inner_height = CELL_HEIGHT - 0.02
                draw_cell(ax, x + 0.01, y + 0.01, inner_width, inner_height, slot, SMALL_SIZE)


def _draw_hole(ax: Axes, x: float, y: float, width: float) -> None:
    """Draw the outline of a cell in which a rank holds nothing."""
    hole = Rectangle(
        (x + 0.02, y + 0.02),
        width - 0.04,
        CELL_HEIGHT - 0.04,
        facecolor="none",
        edgecolor=INK,
        linewidth=0.5,
        alpha=0.6,
    )
    ax.add_patch(hole)
