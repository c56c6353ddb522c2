"""Labs 40 and 42: who refers to whom, as a graph whose nodes stand on the lanes of ranks.

The notebooks call it through `distlab_course.figures`, in their kernel. Lengths are in inches.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distlab.plotting.canvas import draw_box, draw_lane, draw_outline, new_canvas, text_width
from distlab.plotting.describing import describe
from distlab.plotting.style import INK, LABEL_SIZE, NAME_SIZE, line_color, rank_color, style

Edges = Sequence[tuple[str, str]]  # names of nodes, from and to

NODE_HEIGHT = 0.3
ROW_HEIGHT = 0.44
LANE_GAP = 0.16
TEXT_PAD = 0.1  # beside the text of a node
ARROW_LENGTH = 0.42  # between columns


class Lane(NamedTuple):
    """Where the lane of a rank is drawn."""

    top: float
    height: float


class Box(NamedTuple):
    """Where a node is drawn: the upper left corner of its box, and the box's width."""

    left: float
    top: float
    width: float


def graph(
    nodes: Mapping[str, int], edges: Edges, title: str = "", hollow: Collection[str] = ()
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
    rows = _rows_of(nodes, columns)
    lanes = _lanes_of(nodes, rows)
    widths = {name: text_width(_text_of(name), NAME_SIZE) + 2 * TEXT_PAD for name in nodes}
    lefts = _lefts_of_columns(columns, widths, start=_width_of_names(nodes.values()))
    boxes = {}
    for name, rank in nodes.items():
        row_top = lanes[rank].top + rows[name] * ROW_HEIGHT
        top = row_top + (ROW_HEIGHT - NODE_HEIGHT) / 2
        boxes[name] = Box(lefts[columns[name]], top, widths[name])
    width = lefts[-1] - ARROW_LENGTH + TEXT_PAD
    height = max(lane.top + lane.height for lane in lanes.values())
    figure, ax = new_canvas(width, height, title)
    with style():
        for rank, lane in lanes.items():
            color = rank_color(rank)
            draw_lane(ax, 0, lane.top, width, lane.height, color, f"rank {rank}", LABEL_SIZE)
        for name, rank in nodes.items():
            _draw_node(ax, boxes[name], _text_of(name), rank, is_hollow=name in hollow)
        for start, end in edges:
            is_local = nodes[start] == nodes[end]
            color = INK if is_local else line_color(nodes[start])
            _draw_edge(ax, boxes[start], boxes[end], color)
    parts = [f"{_text_of(name)} on rank {rank}" for name, rank in nodes.items()]
    parts += [f"from {_text_of(start)} to {_text_of(end)}" for start, end in edges]
    describe(figure, title or "who refers to whom", parts)
    return figure


def _text_of(name: str) -> str:
    """What is written in the box of a node: its name up to the first line break."""
    first, _, _ = name.partition("\n")
    return first


def _draw_node(ax: Axes, box: Box, text: str, rank: int, is_hollow: bool) -> None:
    """Draw the box of a node in the colour of its rank."""
    place = (box.left, box.top, box.width, NODE_HEIGHT)
    if is_hollow:
        draw_outline(ax, *place, text, line_color(rank), NAME_SIZE)
    else:
        draw_box(ax, *place, text, rank_color(rank), NAME_SIZE)


def _draw_edge(ax: Axes, start: Box, end: Box, color: str) -> None:
    """Draw an arrow from the right side of one box to the left side of another."""
    tail = (start.left + start.width, start.top + NODE_HEIGHT / 2)
    head = (end.left, end.top + NODE_HEIGHT / 2)
    look = {"arrowstyle": "-|>", "color": color, "lw": 1.8, "shrinkA": 1, "shrinkB": 1}
    ax.annotate("", head, tail, arrowprops=look)


def columns_of(nodes: Collection[str], edges: Edges) -> dict[str, int]:
    """The column of each node: one more than the last of those that lead to it."""
    columns = dict.fromkeys(nodes, 0)
    # the longest way leads through all nodes, and each round takes it a step further
    for _ in nodes:
        for start, end in edges:
            columns[end] = max(columns[end], columns[start] + 1)
    return columns


def _width_of_names(ranks: Iterable[int]) -> float:
    """The width that the lanes' names need."""
    return 0.45 + max(text_width(f"rank {rank}", LABEL_SIZE) for rank in ranks)


def _lefts_of_columns(
    columns: Mapping[str, int], widths: Mapping[str, float], start: float
) -> list[float]:
    """Where each column begins, and where one more would begin."""
    widest: dict[int, float] = {}
    for name, column in columns.items():
        widest[column] = max(widths[name], widest.get(column, 0.0))
    lefts = [start]
    for column in sorted(widest):
        lefts.append(lefts[-1] + widest[column] + ARROW_LENGTH)
    return lefts


def _rows_of(nodes: Mapping[str, int], columns: Mapping[str, int]) -> dict[str, int]:
    """The row of each node in the lane of its rank: nodes in one column stand below each other."""
    taken: dict[tuple[int, int], int] = {}
    rows = {}
    for name, rank in nodes.items():
        place = (rank, columns[name])
        rows[name] = taken.get(place, 0)
        taken[place] = rows[name] + 1
    return rows


def _lanes_of(nodes: Mapping[str, int], rows: Mapping[str, int]) -> dict[int, Lane]:
    """By rank, its lane, which is as high as its rows need it."""
    lanes = {}
    top = 0.0
    for rank in sorted(set(nodes.values())):
        last_row = max(rows[name] for name, owner in nodes.items() if owner == rank)
        height = ROW_HEIGHT * (1 + last_row)
        lanes[rank] = Lane(top, height)
        top += height + LANE_GAP
    return lanes
