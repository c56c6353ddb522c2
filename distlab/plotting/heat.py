"""Heat maps of what works where: a cell for each row and column, with a colour and a word.

Called by `Probe.plot`. Runs in the notebook's process. Lengths in inches.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distlab.measure.probe_result import KINDS, Outcomes
from distlab.plotting.cells import canvas, draw_box, draw_text, text_width
from distlab.plotting.style import blend

WIDTH, HEIGHT = 0.42, 0.235  # of a cell
TITLE, GAP = 0.28, 0.16  # heights of a title and of the room below it, below a panel and beside a name
SIZE, KEY, LINE = 9, 92, 0.2  # of the font, in points; characters of a line of the key, and its height
COLORS = {
    "works": blend("#009E73", "#FFFFFF", 0.3),
    "refused": "#E69F00",
    "depends": "#56B4E9",
}
BAD = "#D55E00"  # a wrong result, a hang, an end
# of kinds that stand in a cell as the same word, the first one speaks for all
MEANINGS = {"-": "not built, or no such device", "?": "depends on how it was built"}

Panel = tuple[str, Outcomes]  # a title, and what stands below it


def heat_maps(panels: Sequence[Panel]) -> Figure:
    """Draw tables of what works where, one below the other.

    Runs on: client.

    Args:
        panels: each a title and, by column, by row, what came of it; none is empty, and the columns of
            a panel have the same rows.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell.
    """
    columns = [columns for _, columns in panels]
    rows = [list(next(iter(panel.values()))) for panel in columns]
    start = GAP + max(text_width(row, SIZE) for names in rows for row in names)
    firsts, bottom = [], 0.0  # where the cells of each panel begin, and where it ends
    for panel, names in zip(columns, rows, strict=True):
        firsts.append(bottom + TITLE + GAP + max(text_width(name, SIZE) for name in panel))
        bottom = firsts[-1] + HEIGHT * len(names) + GAP
    kinds = {cell.kind for panel in columns for cells in panel.values() for cell in cells.values()}
    words = {KINDS[kind]: MEANINGS.get(KINDS[kind], kind) for kind in KINDS if kind in kinds}
    key = textwrap.wrap(";  ".join(f"{word}: {meaning}" for word, meaning in words.items()), KEY)
    widths = [start + WIDTH * len(panel) for panel in columns] + [1.03 * text_width(line, SIZE) for line in key]
    figure, ax = canvas(max(widths), bottom + LINE * len(key))
    for panel, names, first in zip(panels, rows, firsts, strict=True):
        draw_panel(ax, start, first, panel, names)
    for number, line in enumerate(key):
        draw_text(ax, 0, bottom + LINE * (number + 0.5), line, ha="left", fontsize=SIZE)
    return figure


def draw_panel(ax: Axes, left: float, top: float, panel: Panel, rows: Sequence[str]) -> None:
    """Draw a panel with the left upper corner of its cells there."""
    title, columns = panel
    head = max(text_width(name, SIZE) for name in columns) + GAP + TITLE / 2
    draw_text(ax, 0, top - head, title, ha="left", fontsize=SIZE + 2)
    for line, row in enumerate(rows):
        draw_text(ax, left - 0.08, top + (line + 0.5) * HEIGHT, row, ha="right", va="center_baseline", fontsize=SIZE)
    for place, (name, cells) in enumerate(columns.items()):
        draw_text(ax, left + (place + 0.5) * WIDTH, top - 0.05, name, va="bottom", fontsize=SIZE, rotation=90)
        for line, (kind, _) in enumerate(cells.values()):
            color = "none" if KINDS[kind] == "-" else COLORS.get(kind, BAD)
            corner = left + place * WIDTH + 0.01, top + line * HEIGHT + 0.01
            draw_box(ax, *corner, WIDTH - 0.02, HEIGHT - 0.02, KINDS[kind], color, SIZE - 1)
