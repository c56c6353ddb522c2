"""Labs 50, 51 and 53: the memory of each rank, the part of a tensor that it holds, how weights are
cut, and a mesh.

Runs in the notebook's kernel, on values that were pulled from the ranks. Lengths are in inches.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle
from matplotlib.ticker import MaxNLocator

from distlab.plotting import cells
from distlab.plotting.axes import SMALL, new_axes
from distlab.plotting.cells import draw_text, text_width
from distlab.plotting.lanes import (
    LOOKS,
    Look,
    draw_lanes,
    height_of,
    legend_below,
    outline,
    stacked,
)
from distlab.plotting.style import FAINT, INK, MIXED, rank_color, text_color

UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "GB": 1e9}
# by part, what it looks like: greys from light to dark, and sand, so that no part looks like a rank
PARTS = {"parameters": "compute", "gathered parameters": "wait", "gradients": "forward"}
PARTS |= {"optimizer states": "optimizer", "activations": "move"}
Parts = Mapping[str, float]  # bytes by name of a part


def memory(
    bars: Mapping[str, Parts], title: str = "", unit: str = "MiB", limit: float | None = None
) -> Axes:
    """Draw what lies in memory, a bar for each name from the top down; its parts add up to its
    length.

    Args:
        bars: by name, for example "rank 0", bytes in parts: {"parameters": 8 * 2**20, "gradients":
            8 * 2**20}.
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
        line = {
            "color": INK,
            "linestyle": "--",
            "label": f"device: {(limit or 0) / UNITS[unit]:g} {unit}",
        }
        lines = [] if limit is None else [ax.axvline(limit / UNITS[unit], **line)]
        if len(looks := looks_in(bars)) > 1 or lines:
            legend_below(ax, looks, lines, columns=4)
        tops = draw_lanes(ax, lanes, end, "")
        for name, total in sums.items():
            beside = {
                "xytext": (6, 0),
                "textcoords": "offset points",
                "va": "center_baseline",
                "fontsize": SMALL,
            }
            ax.annotate(f"{total:.3g}", (total, tops[name] + 0.5), **beside)
    return ax


def memory_at(moments: Mapping[str, Parts], title: str = "") -> Axes:
    """Draw what lies in the memory of one rank at one moment after the other, as columns from left
    to right.

    Args:
        moments: by name, the bytes in parts.
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
                ax.bar(
                    place, size / UNITS["MiB"], 0.8, bottom, facecolor=look.fill, **outline(look)
                )
                bottom += size / UNITS["MiB"]
        ax.set_xticks(range(len(moments)), moments, rotation=45, ha="right", rotation_mode="anchor")
        ax.tick_params(axis="x", length=0)
        legend_below(ax, looks_in(moments), columns=4)
    return ax


def look_of(part: str) -> Look:
    """How a part of the memory is drawn; what was gathered for a while is hatched."""
    return LOOKS.get(PARTS.get(part), Look(MIXED))._replace(words=part)


def looks_in(bars: Mapping[str, Parts]) -> list[Look]:
    """The looks of all parts that are not empty."""
    return [
        look_of(part)
        for part in dict.fromkeys(p for bar in bars.values() for p, size in bar.items() if size)
    ]


SIZE, NAME = 9.5, 11  # font sizes in points: of a number, of a name
WIDE, HIGH = 0.27, 0.25  # of a cell, at least
# heights of the ranks' names and between states; between two ranks
HEAD, GAP, SIDE = 0.4, 0.3, 0.24
WORDS = 0.3  # more between two states where an arrow has words
TALL = 1.2  # of the longest side of a weight
ARROW = {
    "arrowstyle": "-|>",
    "mutation_scale": 12,
    "color": INK,
    "linewidth": 1.2,
    "shrinkA": 0,
    "shrinkB": 0,
}

Layer = tuple[str, tuple[int, ...], int | None]  # name, shape, dimension
Matrix = Sequence[Sequence[float | None]]


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
    states = [(name, [matrix_of(rank) for rank in by_rank]) for name, by_rank in states]
    texts = [
        cells.format_value(v)
        for _, state in states
        for matrix in state
        for row in matrix
        for v in row
    ]
    cell = max(WIDE, *(text_width(text, SIZE) + 0.07 for text in texts))
    names = max(text_width(name, NAME) for name, _ in states) + 0.24
    column = cell * max(len(state[0][0]) for _, state in states) + SIDE
    moves = [*moves, *[None] * len(states)][: len(states) - 1]
    height = (
        HEAD
        + sum(HIGH * len(state[0]) for _, state in states)
        + sum(GAP + WORDS * bool(move) for move in moves)
    )
    n = len(states[0][1])
    figure, ax = cells.canvas(names + n * column - SIDE, height, title)
    for rank in range(n):
        left = names + rank * column
        ax.add_patch(
            Rectangle(
                (left, 0.26), column - SIDE, 0.05, facecolor=rank_color(rank), edgecolor="none"
            )
        )
        draw_text(ax, left + (column - SIDE) / 2, 0.1, f"rank {rank}", fontsize=NAME, color=INK)
    top, start = HEAD, None
    for (name, state), move in zip(states, [None, *moves], strict=True):
        if start is not None:
            x, length = names + (n * column - SIDE) / 2, GAP + WORDS * bool(move)
            if move:
                ax.add_patch(FancyArrowPatch((x, top + 0.06), (x, top + length - 0.06), **ARROW))
                draw_text(
                    ax,
                    x + 0.14,
                    top + length / 2,
                    move,
                    ha="left",
                    va="center_baseline",
                    fontsize=NAME,
                )
            top += length
        start = (
            start
            if move
            else [[v for row in matrix for v in row if v is not None] for matrix in state]
        )
        alike = all(matrix == state[0] for matrix in state)
        draw_text(ax, 0, top + HIGH * len(state[0]) / 2, name, ha="left", fontsize=NAME)
        for rank, matrix in enumerate(state):
            origin = None if move else "shared" if alike else rank
            draw_matrix(ax, names + rank * column, top, cell, matrix, origin, start)
        top += HIGH * len(state[0])
    return figure


def matrix_of(values: Any) -> Matrix:
    """Nested lists, with None where there is nothing; a row of its own for a vector."""
    rows = values.tolist() if hasattr(values, "tolist") else values
    rows = rows if rows and isinstance(rows[0], (list, tuple)) else [rows]
    return [[None if value is None or value != value else value for value in row] for row in rows]


def draw_matrix(
    ax: Axes,
    left: float,
    top: float,
    cell: float,
    matrix: Matrix,
    origin: int | str | None,
    start: list[list[float]],
) -> None:
    """Draw what one rank holds, outlines where that is nothing; without an origin, a value has that
    which it had.
    """
    for line, row in enumerate(matrix):
        for place, value in enumerate(row):
            x, y = left + place * cell, top + line * HIGH
            if value is None:
                look = {"facecolor": "none", "edgecolor": INK, "linewidth": 0.5, "alpha": 0.6}
                ax.add_patch(Rectangle((x + 0.02, y + 0.02), cell - 0.04, HIGH - 0.04, **look))
            else:
                kind = cells.trace(value, start) if origin is None else cells.Cell(value, origin)
                cells.draw_cell(ax, x + 0.01, y + 0.01, cell - 0.02, HIGH - 0.02, kind, SIZE)


def cuts(layers: Sequence[Layer], n: int, marks: Mapping[str, str], title: str = "") -> Figure:
    """Draw how the weights of layers are cut: each as its rectangle, outputs downwards, in the
    colours of the ranks.

    Args:
        layers: in the order in which they are called: a name, the shape of the weight, and the
            dimension along which it is cut, or None where every rank has all of it.
        n: the number of ranks.
        marks: by the name of a layer, what is called behind it, in one or more lines.
        title: what is shown.
    """
    scale = TALL / max(side for _, shape, _ in layers for side in shape)
    sizes = {name: " x ".join(map(str, shape)) for name, shape, _ in layers}
    wide = {name: max(0.12, shape[1] * scale if len(shape) > 1 else 0) for name, shape, _ in layers}
    columns = {
        name: max(wide[name], text_width(sizes[name], SIZE), text_width(name, NAME))
        for name in sizes
    }
    words = {name: marks.get(name, "").splitlines() for name in sizes}
    gaps = {
        name: 0.28 + max((text_width(line, SIZE) for line in words[name]), default=0)
        for name in sizes
    }
    figure, ax = cells.canvas(sum(columns.values()) + sum(gaps.values()), TALL + 1.0, title)
    left, middle = 0.0, 0.26 + TALL / 2
    for name, shape, dim in layers:
        high = shape[0] * scale
        x, y = left + (columns[name] - wide[name]) / 2, middle - high / 2
        draw_text(ax, left + columns[name] / 2, y - 0.16, name, fontsize=NAME)
        draw_text(ax, left + columns[name] / 2, y + high + 0.16, sizes[name], fontsize=SIZE)
        across, down = (
            (wide[name] / n if dim == 1 else wide[name]),
            (high / n if dim == 0 else high),
        )
        for rank in range(1 if dim is None else n):
            look = {
                "facecolor": FAINT if dim is None else rank_color(rank),
                "edgecolor": "#FFFFFF",
                "linewidth": 0.6,
            }
            corner = x + rank * across * (dim == 1), y + rank * down * (dim == 0)
            ax.add_patch(Rectangle(corner, across, down, **look))
        start, left = left + columns[name], left + columns[name] + gaps[name]
        draw_text(
            ax, (start + left) / 2, middle - 0.08, marks.get(name, ""), va="bottom", fontsize=SIZE
        )
        ax.add_patch(FancyArrowPatch((start + 0.05, middle), (left - 0.05, middle), **ARROW))
    place = 0.0
    for name, color in [
        *((f"rank {rank}", rank_color(rank)) for rank in range(n)),
        ("every rank", FAINT),
    ]:
        ax.add_patch(Rectangle((place, TALL + 0.8), 0.14, 0.14, facecolor=color, edgecolor="none"))
        draw_text(
            ax, place + 0.2, TALL + 0.87, name, ha="left", va="center_baseline", fontsize=SIZE
        )
        place += text_width(name, SIZE) + 0.5
    return figure


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
    across = max(text_width(line, SIZE) for own in lines for line in own) + 0.9
    deep = 0.2 * max(map(len, lines)) + 0.9
    figure, ax = cells.canvas(across * shape[1], deep * (shape[0] - 1) + 0.9, title)
    grid = [divmod(rank, shape[1]) for rank in range(shape[0] * shape[1])]
    places = [(0.4 + across * column, 0.5 + deep * row) for row, column in grid]
    for ranks, words in groups:
        (x, y), (right, low) = places[ranks[0]], places[ranks[-1]]
        ax.plot(
            [x, right],
            [y, low],
            color=INK,
            linewidth=2,
            zorder=0,
            linestyle="-" if y == low else (0, (4, 2)),
        )
        if y == low:
            draw_text(ax, (x + right) / 2, y - 0.07, words, va="bottom", fontsize=SIZE)
        else:
            draw_text(ax, x + 0.1, (y + low) / 2, words, ha="left", fontsize=SIZE)
    for rank, (x, y) in enumerate(places):
        ax.add_patch(Circle((x, y), 0.25, facecolor=rank_color(rank), edgecolor="none"))
        draw_text(ax, x, y, str(rank), color=text_color(rank_color(rank)), va="center_baseline")
    return figure
