"""Heat maps of what works where: a cell for each row and column, with a colour and a word.

Called by `Probe.plot`. Runs in the notebook's process. Lengths in inches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from distlab.errors import ArgumentError
from distlab.plotting.cells import UNIT, draw_text, text_width
from distlab.plotting.style import INK, blend, new_figure, style, text_color
from distlab.probing.names import KINDS

WIDTH, HEIGHT, SIDE = 0.42, 0.235, 0.12  # of a cell; between panels
TITLE, HEAD, FOOT, WIDEST = 0.34, 0.46, 0.36, 7.5
SIZE = 9  # of the font, in points
COLORS = {
    "works": blend("#009E73", "#FFFFFF", 0.3),
    "refused": "#E69F00",
    "depends": "#56B4E9",
}
BAD = "#D55E00"  # a wrong result, a hang, an end
MEANINGS = {"not built": "not built, or no such device", "no device": "", "depends": "depends on how it was built"}

Panel = tuple[str, Mapping[str, Mapping[str, str]]]  # title; by column, by row: the kind


def heat_maps(panels: Sequence[Panel]) -> Figure:
    """Draw tables of what works where, side by side as far as they fit.

    Runs on: client.

    Args:
        panels: each a title and, by column, by row, a kind of `probing.names.KINDS`. The columns of a panel have the
            same rows.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell.

    Raises:
        ArgumentError: if there is no panel, a panel is empty, or a kind is not known.
    """
    check_panels(panels)
    lines: list[list[Panel]] = [[]]
    for panel in panels:
        if lines[-1] and sum(map(panel_width, [*lines[-1], panel])) > WIDEST:
            lines.append([])
        lines[-1].append(panel)
    width = max(0.2 + sum(map(panel_width, line)) for line in lines)
    kinds = {kind for _, columns in panels for cells in columns.values() for kind in cells.values()}
    entries = legend(kinds, max(width, WIDEST))
    width = max([width, *(x + 0.68 + inches(text) for _, text, x, _ in entries)])
    height = sum(max(map(panel_height, line)) for line in lines) + FOOT * (1 + entries[-1][3])
    figure = new_figure(width, height)
    with style():
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set(xlim=(0, width), ylim=(height, 0))
        ax.set_axis_off()
        top = 0.0
        for line in lines:
            left = 0.1
            for panel in line:
                draw_panel(ax, left, top, panel)
                left += panel_width(panel)
            top += max(map(panel_height, line))
        for kind, text, x, row in entries:
            y = top + 0.1 + row * FOOT
            draw_cell(ax, x, y, kind, 0.5)
            draw_text(ax, x + 0.58, y + HEIGHT / 2, text, ha="left", va="center_baseline", fontsize=SIZE)
    return figure


def check_panels(panels: Sequence[Panel]) -> None:
    """Raise where there is nothing to draw, or what cannot be drawn."""
    example = 'Give [("today", {"gloo CPU": {"broadcast": "works"}})].'
    if not panels or not all(columns and all(columns.values()) for _, columns in panels):
        raise ArgumentError(f"panels must be tables with columns and rows, got {panels!r}. {example}")
    for kind in (kind for _, columns in panels for cells in columns.values() for kind in cells.values()):
        if kind not in KINDS:
            raise ArgumentError(f"a cell must be one of {', '.join(map(repr, KINDS))}, got {kind!r}. {example}")


def inches(text: str, size: float = SIZE) -> float:
    """Width of a text."""
    return text_width(text, size) * UNIT


def names_width(panel: Panel) -> float:
    """Width of the rows' names."""
    return max(inches(name) for cells in panel[1].values() for name in cells) + 0.18


def panel_width(panel: Panel) -> float:
    """Width of a panel with the room beside it."""
    return max(names_width(panel) + WIDTH * len(panel[1]), inches(panel[0], 11)) + 2 * SIDE


def head_height(panel: Panel) -> float:
    """Height of the columns' names: upright where one of their words is wider than its column."""
    longest = max(inches(word) for name in panel[1] for word in name.split())
    return HEAD if longest <= WIDTH else longest + 0.16


def panel_height(panel: Panel) -> float:
    """Height of a panel with the room below it."""
    return TITLE + head_height(panel) + HEIGHT * len(next(iter(panel[1].values()))) + 0.16


def draw_panel(ax: Axes, left: float, top: float, panel: Panel) -> None:
    """Draw a panel with its left upper corner there."""
    title, columns = panel
    draw_text(ax, left, top + TITLE / 2 + 0.04, title, ha="left", fontsize=11)
    head, start = head_height(panel), left + names_width(panel)
    for place, (name, cells) in enumerate(columns.items()):
        x = start + place * WIDTH
        upright = {} if head == HEAD else {"rotation": 90}
        label = name.replace(" ", "\n") if head == HEAD else name
        draw_text(ax, x + WIDTH / 2, top + TITLE + head - 0.05, label, va="bottom", fontsize=SIZE, color=INK, **upright)
        for line, (row, kind) in enumerate(cells.items()):
            y = top + TITLE + head + line * HEIGHT
            if place == 0:
                draw_text(ax, start - 0.08, y + HEIGHT / 2, row, ha="right", va="center_baseline", fontsize=SIZE)
            draw_cell(ax, x, y, kind)


def draw_cell(ax: Axes, x: float, y: float, kind: str, width: float = WIDTH) -> None:
    """Draw one cell in the colour of its kind, with its word."""
    ink = INK
    if KINDS[kind] != "-":
        color = COLORS.get(kind, BAD)
        ink = text_color(color)
        ax.add_patch(Rectangle((x + 0.01, y + 0.01), width - 0.02, HEIGHT - 0.02, facecolor=color, edgecolor="none"))
    draw_text(ax, x + width / 2, y + HEIGHT / 2, KINDS[kind], va="center_baseline", fontsize=SIZE - 1, color=ink)


def legend(kinds: set[str], width: float) -> list[tuple[str, str, float, int]]:
    """What the colours mean: kind, its words, where it begins and in which row, in rows of at most that width."""
    if "no device" in kinds:
        kinds = {*kinds, "not built"}
    entries: list[tuple[str, str, float, int]] = []
    x, row = 0.1, 0
    for kind in KINDS:
        text = MEANINGS.get(kind, kind)
        if kind in kinds and text:
            room = 0.58 + inches(text)
            if x + room > width:
                x, row = 0.1, row + 1
            entries.append((kind, text, x, row))
            x += room + 0.3
    return entries
