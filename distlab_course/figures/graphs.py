"""Labs 40 and 42: who refers to whom, as a graph whose nodes stand on the lanes of ranks.

The notebooks call it through `distlab_course.figures`, in their kernel. Lengths are in inches.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from matplotlib.figure import Figure

from distlab.plotting.canvas import draw_box, draw_lane, new_canvas, text_width
from distlab.plotting.style import INK, LABEL_SIZE, NAME_SIZE, line_color, rank_color, style

Pairs = Sequence[tuple[str, str]]  # of names, from and to

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
    widths = {name: text_width(text, NAME_SIZE) + 2 * PAD for name, text in texts.items()}
    lefts = _lefts_of_columns(columns, widths, start=_width_of_names(nodes.values()))
    rows = _rows_of(nodes, columns)
    lanes = _lanes_of(nodes, rows)
    width = lefts[-1] - ARROW + PAD
    figure, ax = new_canvas(width, max(top + height for top, height in lanes.values()), title)
    with style():
        for rank, (top, height) in lanes.items():
            draw_lane(ax, 0, top, width, height, rank_color(rank), f"rank {rank}", LABEL_SIZE)
        corners = {}
        for name, rank in nodes.items():
            left = lefts[columns[name]]
            lane, _ = lanes[rank]
            top = lane + rows[name] * ROW + (ROW - NODE) / 2
            corners[name] = left, top
            fill = "none" if name in hollow else rank_color(rank)
            draw_box(ax, left, top, widths[name], NODE, texts[name], fill, NAME_SIZE)
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
    return 0.45 + max(text_width(f"rank {rank}", LABEL_SIZE) for rank in ranks)


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
