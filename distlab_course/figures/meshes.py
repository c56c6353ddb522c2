"""Labs 50 to 52: a mesh of ranks, and who talks to whom along its rows and columns.

The notebooks call it through `distlab_course.figures`, in their kernel. Lengths are in inches.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from distlab.plotting.canvas import draw_text, new_canvas, text_width
from distlab.plotting.describing import describe
from distlab.plotting.style import INK, SMALL_SIZE, filled, rank_color, text_color

Point = tuple[float, float]


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
    widest = 0.0
    most_lines = 0
    for _, words in groups:
        lines = words.splitlines()
        most_lines = max(most_lines, len(lines))
        for line in lines:
            widest = max(widest, text_width(line, SMALL_SIZE))
    across = widest + 0.9  # from one rank to the next in its row
    down = 0.2 * most_lines + 0.9  # and in its column
    rows, columns = shape
    figure, ax = new_canvas(across * columns, down * (rows - 1) + 0.9, title)
    places = []
    for rank in range(rows * columns):
        row, column = divmod(rank, columns)
        places.append((0.4 + across * column, 0.5 + down * row))
    for ranks, words in groups:
        _draw_group(ax, places[ranks[0]], places[ranks[-1]], words)
    for rank, (x, y) in enumerate(places):
        color = rank_color(rank)
        ax.add_patch(Circle((x, y), 0.25, **filled(color)))
        draw_text(ax, x, y, str(rank), color=text_color(color), va="center_baseline")
    parts = [f"ranks {', '.join(map(str, ranks))}: {words}" for ranks, words in groups]
    describe(figure, f"{title or 'a mesh'}, {rows} x {columns} ranks", parts)
    return figure


def _draw_group(ax: Axes, first: Point, last: Point, words: str) -> None:
    """Draw the line of a group from its first rank to its last, with what they call beside it."""
    left, upper = first
    right, lower = last
    (line,) = ax.plot([left, right], [upper, lower], color=INK, linewidth=2, zorder=0)
    if upper == lower:
        middle = (left + right) / 2
        draw_text(ax, middle, upper - 0.07, words, va="bottom", fontsize=SMALL_SIZE)
    else:
        line.set_linestyle((0, (4, 2)))
        middle = (upper + lower) / 2
        draw_text(ax, left + 0.1, middle, words, ha="left", fontsize=SMALL_SIZE)
