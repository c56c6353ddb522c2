"""A graph over ranks: nodes on the lanes of the ranks that hold them, and arrows between them.

Called by the notebooks. Runs in the notebook's process, on what the ranks have told. Lengths in inches.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from distlab.plotting.cells import canvas, draw_box, draw_lane, draw_text, text_width
from distlab.plotting.style import INK, curve_color, rank_color, style
from distlab.text import refuse

LABEL, SIZE = 11, 10  # of the fonts, in points
NODE, ROW, GAP, PAD = 0.3, 0.44, 0.16, 0.1  # heights of a node, of a row in a lane; between lanes; around a text
ARROW = 0.42  # width of the room for arrows between columns


def graph(
    nodes: Mapping[str, int],
    edges: Sequence[tuple[str, str]],
    title: str = "",
    hollow: Collection[str] = (),
) -> Figure:
    """Draw nodes on the lanes of their ranks, each to the right of all nodes that lead to it.

    An arrow from one rank to another has the colour of the rank that it leaves.

    Runs on: client.

    Args:
        nodes: the rank that holds it, by the name of a node, which is written in its box up to the first line break.
        edges: names of two nodes, from and to. title: what the graph is.
        hollow: names of nodes that are drawn as an outline.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell.

    Raises:
        ArgumentError: no nodes; an edge of a node that is not there; edges in a circle.
    """
    if not nodes:
        refuse("nodes", "a rank for each name, with one name or more", nodes, 'Write for example {"x": 0}.')
    if unknown := [name for edge in edges for name in edge if name not in nodes]:
        refuse("edges", "pairs of names of nodes", unknown[0], f"The nodes are {', '.join(map(repr, nodes))}.")
    columns = _columns(nodes, edges)
    rows: dict[str, int] = {}
    for name, rank in nodes.items():
        rows[name] = sum(nodes[other] == rank and columns[other] == columns[name] for other in rows)
    wide = [max((_width(n) for n in nodes if columns[n] == c), default=0) for c in range(max(columns.values()) + 1)]
    first = 0.3 + max(text_width(f"rank {rank}", LABEL) for rank in nodes.values()) + 0.15
    lefts = [first + sum(wide[:c]) + c * ARROW for c in range(len(wide))]
    tops, y = {}, 0.0
    for rank in sorted({*nodes.values()}):
        tops[rank] = y
        y += ROW * (1 + max(rows[name] for name in nodes if nodes[name] == rank)) + GAP
    width, middle = lefts[-1] + wide[-1] + 0.1, {}
    figure, ax = canvas(width, y - GAP, title)
    with style():
        for rank, top in tops.items():
            height = ROW * (1 + max(rows[name] for name in nodes if nodes[name] == rank))
            draw_lane(ax, 0, top, width, height, rank_color(rank), f"rank {rank}", LABEL)
        for name, rank in nodes.items():
            left, top = lefts[columns[name]], tops[rank] + rows[name] * ROW + (ROW - NODE) / 2
            own, text = _width(name), name.partition("\n")[0]
            middle[name] = (left, left + own, top + NODE / 2)
            if name in hollow:
                look = {"facecolor": "none", "edgecolor": curve_color(rank), "linestyle": (0, (3, 2)), "linewidth": 1.4}
                ax.add_patch(Rectangle((left, top), own, NODE, **look))
                draw_text(ax, left + own / 2, top + NODE / 2, text, va="center_baseline", fontsize=SIZE)
            else:
                draw_box(ax, left, top, own, NODE, text, rank_color(rank), SIZE)
        for start, end in edges:
            color = INK if nodes[start] == nodes[end] else curve_color(nodes[start])
            arrow = {"arrowstyle": "-|>", "color": color, "lw": 1.8, "shrinkA": 1, "shrinkB": 1}
            ax.annotate("", (middle[end][0], middle[end][2]), (middle[start][1], middle[start][2]), arrowprops=arrow)
    return figure


def _width(name: str) -> float:
    """The width of a node's box."""
    return text_width(name.partition("\n")[0], SIZE) + 2 * PAD


def _columns(nodes: Collection[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """The column of each node: one more than the last of those that lead to it."""
    columns = dict.fromkeys(nodes, 0)
    for _ in range(len(nodes) + 1):
        behind = [(start, end) for start, end in edges if columns[end] <= columns[start]]
        if not behind:
            return columns
        for start, end in behind:
            columns[end] = max(columns[end], columns[start] + 1)
    return refuse("edges", "without a circle", behind[0], "Leave one of them out.")
