"""An algorithm step by step: who holds what before each step, and the messages that then move.

Called by the notebooks. Runs in the notebook's process, on states and messages that are plain data: those of
`distlab.algorithms.schedule`, or what the ranks of a real run reported.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from distlab.plotting.frames import NAMES, cell_width, names, picture, picture_height, picture_width
from distlab.plotting.moves import Move, State, check_steps
from distlab.plotting.shapes import DPI, Group, Label
from distlab.plotting.style import INK, new_figure, style

WIDEST = 900  # pixels: the width of a notebook
MARGIN, GAP = 10, 14  # around the figure, between two pictures
TITLE, KEY = 26, 24  # heights of the title and of the line below


def steps(
    states: Sequence[object],
    messages: Sequence[object],
    title: str = "",
    headings: Sequence[str] | None = None,
) -> Figure:
    """Draw a small picture for each step: what every rank holds before it, rank x chunk, and what it then sends.

    For a schedule: steps(algorithms.holdings(plan), plan.steps). A cell that holds a set of ranks has a coloured part
    for each rank of the set: whose numbers are added up in it. A cell that holds a number or a text shows that, in the
    colour of the one rank that had it at first, dark grey where none had. An arrow with a plus adds to what is there,
    a plain one takes its place. The last picture is the end.

    Runs on: client.

    Args:
        states: the state before the first step and after each one; a state is a list by rank of lists by chunk (or
            tensors), whose entries are sets of ranks, numbers, texts or None.
        messages: by step, lists of messages: objects with `src`, `dst`, `chunks` and `operation`, or tuples of these.
            `chunks` is a number or several, `operation` "reduce" or "copy", which may be left out. A message with an
            `origin` carries what that rank had at first.
        title: what is shown.
        headings: a name for each picture; without it "step 1", "step 2" ... "end".

    Returns:
        The figure, at most 9 inches wide; a notebook shows it where it is the last value of a cell.

    Raises:
        ArgumentError: the states and messages do not fit together, or there are more ranks or chunks than can be drawn.
    """
    parts, width, height = layout(*check_steps(states, messages, headings), title)
    figure = new_figure(width / DPI, height / DPI)
    with style():
        ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.set_axis_off()
    for part in parts:
        part.draw(ax, 0, 0)
    return figure


def layout(
    states: Sequence[State], moves: Sequence[Sequence[Move]], headings: Sequence[str], title: str
) -> tuple[list[Group | Label], float, float]:
    """The pictures in rows of equal length, with names, title and key; width and height of it all."""
    cell = cell_width(states)
    across = picture_width(states[0], cell) + GAP
    most = max(1, int((WIDEST - 2 * MARGIN - NAMES + GAP) // across))
    rows = -(-len(states) // most)
    per_row = -(-len(states) // rows)  # as many in each row as the number of rows allows
    top, down = MARGIN + (TITLE if title else 0), picture_height(states[0]) + GAP
    parts = [Label(MARGIN, MARGIN + 10, title, 15)] if title else []
    for number, (state, step, heading) in enumerate(zip(states, [*moves, ()], headings, strict=True)):
        row, place = divmod(number, per_row)
        y = top + row * down
        if place == 0:
            parts.append(Group(names(state), MARGIN, y, {"class": "names"}))
        shapes = picture(state, step, heading, cell)
        parts.append(Group(shapes, MARGIN + NAMES + place * across, y, {"class": "picture"}))
    said = key(states, moves)
    parts.append(Label(MARGIN, top + rows * down + KEY / 2 - 4, said, 12, INK))
    width = max(NAMES + per_row * across - GAP, 6.8 * len(said), 8.6 * len(title))
    return parts, width + 2 * MARGIN, top + rows * down + KEY


def key(states: Sequence[State], moves: Sequence[Sequence[Move]]) -> str:
    """What the marks mean, of those that there are."""
    added = any(move.adds for step in moves for move in step)
    copied = any(not move.adds for step in moves for move in step)
    summed = any(content.ranks for state in states for row in state for content in row)
    words = ["a colour: that rank's numbers are in the sum"] if summed else []
    words += ["plus: is added to what is there"] if added else []
    words += [f"arrowhead: takes {'its place' if added else 'the place of what is there'}"] if copied else []
    return ";  ".join(words)
