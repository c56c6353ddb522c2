"""Lab 51: how the weights of layers are cut into parts for ranks.

The notebooks call it through `distlab_course.figures`, in their kernel. Lengths are in inches.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from distlab.plotting.bars import Look, outline
from distlab.plotting.canvas import draw_arrow, draw_text, new_canvas, text_width
from distlab.plotting.describing import describe
from distlab.plotting.style import FAINT, LABEL_SIZE, SMALL_SIZE, filled, rank_color

LONGEST_SIDE = 1.2  # of all weights that are cut

Layer = tuple[str, tuple[int, ...], int | None]  # name, shape, dimension
Point = tuple[float, float]


class Weight(NamedTuple):
    """A layer's weight and what stands beside it.

    Attributes:
        name: of the layer.
        size: its shape as text.
        dim: the dimension along which it is cut, or None.
        width: of the weight.
        height: of the weight.
        column: the width that its name and its size need, too.
        words: what is called behind it.
        gap: the space for these words.
    """

    name: str
    size: str
    dim: int | None
    width: float
    height: float
    column: float
    words: str
    gap: float


def cuts(layers: Sequence[Layer], n: int, marks: Mapping[str, str], title: str = "") -> Figure:
    """Draw how the weights of layers are cut: rectangles in the ranks' colours, outputs downwards.

    Args:
        layers: in the order in which they are called: a name, the shape of the weight, and the
            dimension along which it is cut, or None where every rank has all of it.
        n: the number of ranks.
        marks: by the name of a layer, what is called behind it, in one or more lines.
        title: what is shown.
    """
    weights = _weights_of(layers, marks)
    columns = sum(weight.column for weight in weights)
    gaps = sum(weight.gap for weight in weights)
    figure, ax = new_canvas(columns + gaps, LONGEST_SIDE + 1.0, title)
    middle = 0.26 + LONGEST_SIDE / 2
    left = 0.0
    for weight in weights:
        x = left + weight.column / 2
        y = middle - weight.height / 2
        draw_text(ax, x, y - 0.16, weight.name, fontsize=LABEL_SIZE)
        draw_text(ax, x, y + weight.height + 0.16, weight.size, fontsize=SMALL_SIZE)
        _draw_weight(ax, (left + (weight.column - weight.width) / 2, y), weight, n)
        start = left + weight.column
        left += weight.column + weight.gap
        x = (start + left) / 2
        draw_text(ax, x, middle - 0.08, weight.words, va="bottom", fontsize=SMALL_SIZE)
        draw_arrow(ax, (start + 0.05, middle), (left - 0.05, middle))
    _draw_owners(ax, n)
    parts = []
    for weight in weights:
        cut = "whole on every rank" if weight.dim is None else f"cut along dimension {weight.dim}"
        after = f", then {weight.words}" if weight.words else ""
        parts.append(f"{weight.name}, {weight.size}, {cut}{after}")
    describe(figure, f"{title or 'weights'}, cut for {n} ranks", parts)
    return figure


def _weights_of(layers: Sequence[Layer], marks: Mapping[str, str]) -> list[Weight]:
    """The weights of layers, all at one scale: the longest side of all has its length."""
    longest = max(chain.from_iterable(shape for _, shape, _ in layers))
    scale = LONGEST_SIDE / longest
    weights = []
    for name, shape, dim in layers:
        size = " x ".join(map(str, shape))
        width = 0.12  # of a vector, which is a narrow column
        if len(shape) > 1:
            width = max(width, shape[1] * scale)
        column = max(width, text_width(size, SMALL_SIZE), text_width(name, LABEL_SIZE))
        words = marks.get(name, "")
        words_width = 0.0
        for line in words.splitlines():
            words_width = max(words_width, text_width(line, SMALL_SIZE))
        weight = Weight(
            name=name,
            size=size,
            dim=dim,
            width=width,
            height=shape[0] * scale,
            column=column,
            words=words,
            gap=0.28 + words_width,
        )
        weights.append(weight)
    return weights


def _draw_weight(ax: Axes, corner: Point, weight: Weight, n: int) -> None:
    """Draw a weight in n parts along its dimension, or as one part that every rank has."""
    x, y = corner
    width = weight.width
    height = weight.height
    if weight.dim is None:
        _draw_part(ax, x, y, width, height, FAINT)
    elif weight.dim == 0:
        part_height = height / n
        for rank in range(n):
            _draw_part(ax, x, y + rank * part_height, width, part_height, rank_color(rank))
    else:
        part_width = width / n
        for rank in range(n):
            _draw_part(ax, x + rank * part_width, y, part_width, height, rank_color(rank))


def _draw_part(ax: Axes, x: float, y: float, width: float, height: float, color: str) -> None:
    """Draw one part of a weight."""
    part = Rectangle((x, y), width, height, **outline(Look(color)))
    ax.add_patch(part)


def _draw_owners(ax: Axes, n: int) -> None:
    """Draw below the weights which colour is whose."""
    owners = {f"rank {rank}": rank_color(rank) for rank in range(n)}
    owners["every rank"] = FAINT
    top = LONGEST_SIDE + 0.8
    x = 0.0
    for name, color in owners.items():
        sample = Rectangle((x, top), 0.14, 0.14, **filled(color))
        ax.add_patch(sample)
        look = {"ha": "left", "va": "center_baseline", "fontsize": SMALL_SIZE}
        draw_text(ax, x + 0.2, top + 0.07, name, **look)
        x += text_width(name, SMALL_SIZE) + 0.5
