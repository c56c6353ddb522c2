"""A map: cells over two arguments, darker where more is done a second.

Called by `Plan.plot`, on the notebook's kernel. Lengths are in inches; y points down.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from distlab.plotting.canvas import draw_text, new_canvas, text_width
from distlab.plotting.describing import describe
from distlab.plotting.style import (
    INK,
    NAME_SIZE,
    PAGE,
    SMALL_SIZE,
    TINY_SIZE,
    blend,
    rank_color,
    text_color,
)

WIDTH = 6.6  # of a map with its row names, at most
LEAST_CELL = 0.86
LARGEST_CELL = 1.6
LINE_HEIGHT = 0.19
CELL_PADDING = 0.2  # above and below the lines of a cell, together
CELL_GAP = 0.05
RING: dict[str, Any] = {"facecolor": "none", "edgecolor": rank_color(5), "linewidth": 2.4}
PALEST = 0.82  # share of white in the colour of a cell with half of the best rate, or less
HATCH = "////"
LEGEND_PATCH = 0.24
REFUSED = "–"  # what is written in a cell that was refused

State = Literal["fits", "too large", "left out", "refused"]


@dataclass(frozen=True)
class Cell:
    """The best that there is for a value of each argument.

    Attributes:
        state: whether it fits into memory; why it is not known, if it is not.
        rate: what is done a second; 0 where that is not known.
        words: below the rate, what else was chosen; a line is broken between them.
        is_best: whether it has the ring.
    """

    state: State
    rate: float = 0.0
    words: Sequence[str] = ()
    is_best: bool = False


@dataclass(frozen=True)
class Axis:
    """An argument, with its values in their order."""

    name: str
    values: Sequence[str]


class Entry(NamedTuple):
    """What a part of a map means.

    Attributes:
        words: in the legend.
        look: of its patch.
        sign: in its patch.
    """

    words: str
    look: dict[str, Any]
    sign: str = ""


class Box(NamedTuple):
    """Where a cell is."""

    left: float
    top: float
    width: float
    height: float


def cell_map(
    columns: Axis, rows: Axis, cells: Mapping[tuple[int, int], Cell], title: str, unit: str
) -> Figure:
    """Draw a cell for each pair of values, the faster the darker.

    Runs on: the notebook's kernel.

    Args:
        columns: the argument along x.
        rows: the argument along y; its name may be "" if there is only one row.
        cells: by the numbers of their column and row.
        title: what was predicted.
        unit: of the rates, such as "tokens/s of each rank".

    Returns:
        The figure; a notebook shows it if it is the last value of a cell.
    """
    left = max(text_width(name, NAME_SIZE) for name in [rows.name, *rows.values]) + 0.2
    width = _cell_width(columns, cells, left)
    lines = {place: _lines_of(cell, width - 0.16) for place, cell in cells.items()}
    cell_height = CELL_PADDING + LINE_HEIGHT * max(map(len, lines.values()))
    top = 0.56
    height = top + len(rows.values) * cell_height
    right = max(left + len(columns.values) * width, _legend_width(cells, unit))
    figure, ax = new_canvas(right, height + 0.4, title)
    middle = left + len(columns.values) * width / 2
    draw_text(ax, middle, 0.12, columns.name, fontsize=NAME_SIZE)
    draw_text(ax, left - 0.12, 0.38, rows.name, ha="right", fontsize=NAME_SIZE)
    for column, value in enumerate(columns.values):
        draw_text(ax, left + (column + 0.5) * width, 0.38, value, fontsize=NAME_SIZE)
    for row, value in enumerate(rows.values):
        y = top + (row + 0.5) * cell_height
        draw_text(ax, left - 0.12, y, value, ha="right", fontsize=NAME_SIZE)
    colors = _colors(cells)
    for (column, row), cell in cells.items():
        box = Box(left + column * width, top + row * cell_height, width, cell_height)
        _draw_cell(ax, box, cell, lines[column, row], colors[column, row])
    _draw_legend(ax, height + 0.22, cells, unit)
    describe(figure, f"{title}, {unit}", _in_words(columns, rows, cells))
    return figure


def _cell_width(columns: Axis, cells: Mapping[tuple[int, int], Cell], left: float) -> float:
    """As wide as half of the words need, if there is the room: they have two lines."""
    room = (WIDTH - left) / len(columns.values)
    wanted = max(text_width(", ".join(cell.words), TINY_SIZE) for cell in cells.values()) / 2
    return max(LEAST_CELL, min(wanted + 0.4, LARGEST_CELL, room))


def _lines_of(cell: Cell, width: float) -> list[str]:
    """What is written in a cell: the rate, and the words in lines of this width."""
    if not cell.rate:
        return [REFUSED if cell.state == "refused" else cell.state]
    lines = [f"{cell.rate:,.0f}" if cell.rate >= 10 else f"{cell.rate:.2g}"]
    for word in cell.words:
        longer = f"{lines[-1]}, {word}"
        if len(lines) > 1 and text_width(longer, TINY_SIZE) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _colors(cells: Mapping[tuple[int, int], Cell]) -> dict[tuple[int, int], str]:
    """The colour of each cell: of those that fit, by their rates."""
    highest = max((cell.rate for cell in cells.values() if cell.state == "fits"), default=0.0)
    colors = {}
    for place, cell in cells.items():
        colors[place] = PAGE
        if cell.state == "fits":
            behind = 1 - cell.rate / highest
            colors[place] = blend(rank_color(0), PAGE, min(PALEST, 1.6 * behind))
    return colors


def _draw_cell(ax: Axes, box: Box, cell: Cell, lines: Sequence[str], color: str) -> None:
    """Draw a cell with its lines."""
    look: dict[str, Any] = {"facecolor": color, "edgecolor": INK, "linewidth": 0.6}
    if cell.state == "too large":
        look["hatch"] = HATCH
    ax.add_artist(_rectangle(box, CELL_GAP, look))
    if cell.is_best:
        ax.add_artist(_rectangle(box, CELL_GAP / 2, RING))
    options: dict[str, Any] = {"color": INK if color == PAGE else text_color(color)}
    if cell.state == "too large":
        options["bbox"] = {"facecolor": PAGE, "edgecolor": "none", "pad": 1.0}
    middle = box.left + box.width / 2
    first = box.top + box.height / 2 - LINE_HEIGHT * (len(lines) - 1) / 2
    for number, line in enumerate(lines):
        size = TINY_SIZE if number or not cell.rate else SMALL_SIZE
        draw_text(ax, middle, first + number * LINE_HEIGHT, line, fontsize=size, **options)


def _rectangle(box: Box, gap: float, look: Mapping[str, Any]) -> Rectangle:
    """A rectangle inside a box, with a gap all around."""
    corner = (box.left + gap, box.top + gap)
    return Rectangle(corner, box.width - 2 * gap, box.height - 2 * gap, **look)


# --- the legend ---


def _entries(cells: Mapping[tuple[int, int], Cell], unit: str) -> list[Entry]:
    """What the legend explains."""
    states = {cell.state for cell in cells.values()}
    plain: dict[str, Any] = {"facecolor": PAGE, "edgecolor": INK, "linewidth": 0.6}
    darkest: dict[str, Any] = {"facecolor": rank_color(0), "edgecolor": "none"}
    entries = [Entry(f"{unit}, more is darker", darkest)]
    if "too large" in states:
        entries.append(Entry("does not fit", {**plain, "hatch": HATCH}))
    if "refused" in states:
        entries.append(Entry("refused", plain, REFUSED))
    if any(cell.is_best for cell in cells.values()):
        entries.append(Entry("best", RING))
    return entries


def _legend_width(cells: Mapping[tuple[int, int], Cell], unit: str) -> float:
    widths = [text_width(entry.words, NAME_SIZE) for entry in _entries(cells, unit)]
    return sum(widths) + len(widths) * (LEGEND_PATCH + 0.36)


def _draw_legend(ax: Axes, y: float, cells: Mapping[tuple[int, int], Cell], unit: str) -> None:
    x = 0.04
    for words, look, sign in _entries(cells, unit):
        ax.add_artist(Rectangle((x, y - 0.08), LEGEND_PATCH, 0.16, **look))
        if sign:
            draw_text(ax, x + LEGEND_PATCH / 2, y, sign, fontsize=TINY_SIZE)
        x += LEGEND_PATCH + 0.1
        draw_text(ax, x, y, words, ha="left", fontsize=NAME_SIZE)
        x += text_width(words, NAME_SIZE) + 0.26


def _in_words(columns: Axis, rows: Axis, cells: Mapping[tuple[int, int], Cell]) -> list[str]:
    """The cells in words, the best one first."""
    parts: list[str] = []
    for (column, row), cell in cells.items():
        where = f"{columns.name} {columns.values[column]}"
        if rows.name:
            where += f", {rows.name} {rows.values[row]}"
        said: str = cell.state
        if cell.rate:
            said = f"{cell.rate:,.3g}, {cell.state}"
        if cell.is_best:
            parts.insert(0, f"best is {where}: {said}")
        else:
            parts.append(f"{where}: {said}")
    return parts
