"""Notebook 06: tables of what works where, a cell with a colour and a word for each. Runs in the notebook's kernel.

Lengths are in inches.
"""

import textwrap
from collections.abc import Mapping

from matplotlib.figure import Figure

from distlab.plotting.cells import canvas, draw_box, draw_text, text_width
from distlab.plotting.style import blend

WIDTH, HEIGHT, GAP, SIZE = 0.46, 0.235, 0.16, 9  # of a cell; between panels; font size in points
# by word: its colour, and what it means
WORDS = {
    "yes": (blend("#009E73", "#FFFFFF", 0.3), "works"),
    "no": ("#E69F00", "refused"),
    "WRONG": ("#D55E00", "a wrong result"),
    "HANGS": ("#D55E00", "hangs"),
    "DIES": ("#D55E00", "ends the process"),
    "?": ("#56B4E9", "depends on how it was built"),
}
Panel = Mapping[str, Mapping[str, str]]  # by column, by row: a word


def heat_maps(panels: Mapping[str, Panel]) -> Figure:
    """Draw tables of what works where, one below the other.

    Args:
        panels: by title, and in each by column and by row, a word of `WORDS`; columns of a panel have the same rows.
    """
    rows = {title: list(next(iter(columns.values()))) for title, columns in panels.items()}
    left = GAP + max(text_width(row, SIZE) for names in rows.values() for row in names)
    tops, bottom = {}, 0.0
    for title, columns in panels.items():
        tops[title] = bottom + 0.28 + GAP + max(text_width(name, SIZE) for name in columns)
        bottom = tops[title] + HEIGHT * len(rows[title]) + GAP
    seen = {word for columns in panels.values() for cells in columns.values() for word in cells.values()}
    meanings = (f"{word}: {meaning}" for word, (_, meaning) in WORDS.items() if word in seen)
    key = textwrap.wrap(";  ".join(meanings), 80)
    width = max(left + WIDTH * max(map(len, panels.values())), *(1.03 * text_width(line, SIZE) for line in key))
    figure, ax = canvas(width, bottom + 0.2 * len(key))
    for number, line in enumerate(key):
        draw_text(ax, 0, bottom + 0.2 * number + 0.1, line, ha="left", fontsize=SIZE)
    for title, columns in panels.items():
        top = tops[title]
        head = top - max(text_width(name, SIZE) for name in columns) - GAP - 0.14
        draw_text(ax, 0, head, title, ha="left", fontsize=SIZE + 2)
        for line, row in enumerate(rows[title]):
            y = top + (line + 0.5) * HEIGHT
            draw_text(ax, left - 0.08, y, row, ha="right", va="center_baseline", fontsize=SIZE)
        for place, (name, cells) in enumerate(columns.items()):
            x = left + place * WIDTH
            draw_text(ax, x + WIDTH / 2, top - 0.05, name, va="bottom", fontsize=SIZE, rotation=90)
            for line, word in enumerate(cells.values()):
                corner = x + 0.01, top + line * HEIGHT + 0.01
                draw_box(ax, *corner, WIDTH - 0.02, HEIGHT - 0.02, word, WORDS[word][0], SIZE - 1)
    return figure
