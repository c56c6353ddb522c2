"""An algorithm step by step: who holds what before each step, and the messages that follow; drawn,
or played.

Called by the notebooks, in the kernel, on states and messages that are plain data, as an
algorithm's schedule has them. Lengths are in inches; y points down.

The player runs in the browser, in any notebook viewer, without a kernel or a network: it is the
figure that `steps` draws, the places of its pictures, and player.js, which shows one of them at a
time, with a slider and a play button. Where scripts do not run, as on GitHub and in notebooks that
JupyterLab does not trust, the whole figure is seen instead; where HTML is not shown at all, it is a
PNG.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from IPython.core.pylabtools import print_figure
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.path import Path as Curve

from distlab.plotting import cells
from distlab.plotting.cells import Cell, draw_text
from distlab.plotting.drawing import Drawing
from distlab.plotting.style import line_color, rank_color, style
from distlab.simulated.schedules import Message
from distlab.tables import count

WIDEST = 8.8  # of a row of pictures: a notebook's width
TEXT, SMALL = 9.5, 8.5  # font sizes, in points
# heights of a heading, of the chunks' numbers and of the line below
HEAD, NUMBERS, KEY = 0.22, 0.18, 0.2
NAMES = 0.66  # width of the ranks' names
# height of a lane; from one lane to the next; height of a cell
LANE, PITCH, CELL = 0.32, 0.36, 0.24
# between two cells, for arrows; at a lane's ends; between two pictures
GUTTER, SIDE, GAP = 0.18, 0.03, 0.14
SCRIPT = Path(__file__).with_name("player.js").read_text(encoding="utf-8")
DPI = 200  # of the figure in the player, which shows its pictures larger

# by rank, by chunk: the ranks whose numbers are added up in it
State = Sequence[Sequence[Iterable[int]]]


class Pictures:
    """States and messages of an algorithm, and where their pictures stand below the title, in equal
    rows.

    The parts of a cell are wide enough to be seen; a row has as many pictures as fit.

    Attributes:
        states: what each picture shows.
        messages: those after each state, once for each of their chunks; none after the last one.
        headings: one for each picture.
        cell: width of a cell.
        width: of a picture.
        height: of a picture.
        head: height of what is above its lanes.
        per_row: how many pictures a row has.
        rows: how many rows there are.
    """

    def __init__(self, states: Sequence[State], messages: Sequence[Sequence[Message]]):
        self.states = states
        self.messages = [
            [(m, chunk) for m in step for chunk in m.chunks] for step in [*messages, ()]
        ]
        self.headings = [f"step {number}" for number in range(len(states) - 1)] + ["end"]
        ranks, chunks = len(states[0]), len(states[0][0])
        parts = (0.06 if ranks <= 4 else 0.05) * ranks + 0.04
        self.cell = max(0.26 if chunks > 1 else 0.44, parts)
        self.width = chunks * (self.cell + GUTTER) + 2 * SIDE
        self.head = HEAD + (NUMBERS if chunks > 1 else 0)
        self.height = self.head + ranks * PITCH
        most = max(1, int((WIDEST - NAMES + GAP) // (self.width + GAP)))
        self.rows = -(-len(states) // most)
        # as many in each row as the number of rows allows
        self.per_row = -(-len(states) // self.rows)

    def place(self, picture: int) -> tuple[float, float]:
        """The upper left corner of a picture, to the right of the names and of the pictures before
        it in its row.
        """
        row, column = divmod(picture, self.per_row)
        return NAMES + column * (self.width + GAP), row * (self.height + GAP)

    def lane_top(self, picture: int, rank: int) -> float:
        """Where the lane of a rank begins in a picture."""
        return self.place(picture)[1] + self.head + rank * PITCH

    def corner(self, picture: int, rank: int, chunk: int) -> tuple[float, float]:
        """The upper left corner of a cell."""
        x = self.place(picture)[0] + SIDE + GUTTER / 2 + chunk * (self.cell + GUTTER)
        return x, self.lane_top(picture, rank) + (LANE - CELL) / 2

    @property
    def key(self) -> str:
        """What the colours and marks mean that are there."""
        operations = {message.operation for step in self.messages for message, _ in step}
        marks = {
            "reduce": "plus: is added to what is there",
            "copy": "arrowhead: replaces what is there",
        }
        words = [
            "colour: that rank's numbers are in the sum",
            *(marks[kind] for kind in marks if kind in operations),
        ]
        return ";  ".join(words)


def steps(
    states: Sequence[State], messages: Sequence[Sequence[Message]], title: str = ""
) -> Figure:
    """Draw a small picture for each step: what every rank holds before it, rank x chunk, and what
    it then sends.

    For a schedule: steps(algorithms.holdings(plan), plan.steps). A cell has a coloured part for
    each rank whose numbers are in its sum. An arrow with a plus adds to what is there, a plain one
    replaces it. The last picture is the end.

    Runs on: the notebook's kernel.

    Args:
        states: the state before the first step and after each one; a state is a list by rank of
            lists by chunk of sets of ranks.
        messages: by step, those that follow the state; a message has the colour of its `origin` if
            it has one, else that of its sender.
        title: what is shown.

    Returns:
        The figure, at most 9 inches wide; a notebook shows it if it is the last value of a cell.
    """
    return draw_steps(Pictures(states, messages), title)


# --- how it is drawn ---


def draw_steps(shown: Pictures, title: str) -> Drawing:
    """Draw the pictures in rows, with the names of the ranks, the title and what the marks mean."""
    below = shown.rows * (shown.height + GAP)
    # letters on whole pixels take more than their outlines
    line = 1.03 * cells.text_width(shown.key, SMALL)
    width = max(shown.place(shown.per_row - 1)[0] + shown.width, line)
    figure, ax = cells.canvas(width, below + KEY, title)
    for picture, (state, step, heading) in enumerate(
        zip(shown.states, shown.messages, shown.headings, strict=True)
    ):
        draw_picture(ax, shown, picture, state, heading)
        for message, chunk in step:
            draw_message(ax, shown, picture, message, chunk)
    draw_text(ax, 0, below + KEY / 2, shown.key, ha="left", fontsize=SMALL)
    figure.alt = f"{title or 'An algorithm'}, step by step: {', '.join(shown.headings)}"
    return figure


def draw_picture(ax: Axes, shown: Pictures, picture: int, state: State, heading: str) -> None:
    """Draw the heading, the chunks' numbers and what each rank holds: a part for each rank in the
    sum.

    The first picture of a row has the names of the lanes at its left.
    """
    left, top = shown.place(picture)
    begins = picture % shown.per_row == 0
    draw_text(ax, left + shown.width / 2, top + HEAD / 2, heading, fontsize=TEXT, fontweight="bold")
    if len(state[0]) > 1:
        numbers = {"y": top + HEAD + NUMBERS / 2, "va": "center_baseline", "fontsize": SMALL}
        if begins:
            draw_text(ax, NAMES - 0.08, text="chunk", ha="right", **numbers)
        for chunk in range(len(state[0])):
            draw_text(
                ax, shown.corner(picture, 0, chunk)[0] + shown.cell / 2, text=str(chunk), **numbers
            )
    for rank, row in enumerate(state):
        y, color = shown.lane_top(picture, rank), rank_color(rank)
        if begins:
            cells.draw_lane(ax, 0, y, NAMES, LANE, color, f"rank {rank}", TEXT)
        cells.draw_lane(ax, left, y, shown.width, LANE, color)
        for chunk, members in enumerate(row):
            x, y = shown.corner(picture, rank, chunk)
            cells.draw_cell(ax, x, y, shown.cell, CELL, Cell(origin="unknown"), TEXT)  # an outline
            part = (shown.cell - 0.05) / len(state)
            for member in sorted(members):  # at its own place in the sum's cell
                corner = x + 0.025 + member * part, y + 0.025
                ax.add_artist(
                    Rectangle(
                        corner, part, CELL - 0.05, facecolor=rank_color(member), edgecolor="none"
                    )
                )


def draw_message(ax: Axes, shown: Pictures, picture: int, message: Message, chunk: int) -> None:
    """Draw an arrow from cell to cell: downwards to the right of the chunk's cells, upwards to
    their left.
    """
    src, dst, adds = message.src, message.dst, message.operation == "reduce"
    side = 1 if dst > src else -1
    x, y = shown.corner(picture, src, chunk)
    edge = x + (shown.cell if side > 0 else 0)
    # a cell that both gets and sends has its arrows apart
    start = y + CELL / 2 + 0.05 * side
    end = shown.corner(picture, dst, chunk)[1] + CELL / 2 - 0.05 * side
    bulge = edge + side * min(0.115, 0.08 + 0.015 * abs(dst - src))
    tip = edge + side * (0.05 if adds else 0.015)
    curve = Curve(
        [(edge, start), (bulge, start), (bulge, end), (tip, end)],
        [Curve.MOVETO, *[Curve.CURVE4] * 3],
    )
    color = line_color(src if message.origin is None else message.origin)
    head = "-" if adds else "-|>,head_length=4,head_width=2.2"
    ax.add_artist(
        FancyArrowPatch(
            path=curve, arrowstyle=head, shrinkA=0, shrinkB=0, color=color, linewidth=1.2
        )
    )
    if adds:
        cells.draw_plus(ax, tip, end, 0.052, TEXT)


# --- how it is played ---


@dataclass(frozen=True, repr=False)
class Player:
    """Pictures of steps that a notebook shows one at a time.

    Attributes:
        figure: all the pictures.
        html: the player, with all that it needs.
        text: what is shown, in one line.
    """

    figure: Figure
    html: str
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {
            "text/plain": repr(self),
            "text/html": self.html,
            "image/png": png_text(self.figure, 100),
        }


def play(states: Sequence[State], messages: Sequence[Sequence[Message]], title: str = "") -> Player:
    """Like `steps`, one picture at a time: with a slider and buttons; messages move when it is
    played.

    Runs on: the notebook's kernel.

    Args:
        states, messages, title: see `steps`.

    Returns:
        The `Player`; a notebook shows it if it is the last value of a cell.
    """
    shown = Pictures(states, messages)
    figure = draw_steps(shown, title)
    (ax,) = figure.axes
    data = {
        "title": title,
        "key": shown.key,
        "dpi": DPI,
        "names": NAMES,
        "cell": [shown.cell, CELL],
    }
    data |= {
        "origin": [ax.get_xlim()[0], ax.get_ylim()[1]],
        "size": [NAMES + shown.width, shown.height],
    }
    data["pictures"] = []
    for number, (step, heading) in enumerate(zip(shown.messages, shown.headings, strict=True)):
        # the corners of the cell that a message looks like, of its sender's and of its receiver's
        moves = []
        for message, chunk in step:
            start, end = (shown.corner(number, rank, chunk) for rank in (message.src, message.dst))
            looks = start if message.origin is None else shown.corner(0, message.origin, chunk)
            moves.append({"looks": looks, "start": start, "end": end})
        data["pictures"].append({"heading": heading, "corner": shown.place(number), "moves": moves})
    source, script = f"data:image/png;base64,{png_text(figure, DPI)}", escape(f"({SCRIPT})(this)")
    alt = escape(figure.in_words())
    look = f'width="{100 * figure.get_figwidth():.0f}" style="max-width:100%"'
    image = f'<img src="{source}" alt="{alt}" {look} data-steps="{escape(json.dumps(data))}" onload="{script}">'
    text = f"<{title}{title and ': '}{count(len(messages), 'step')} to play>"
    return Player(figure, f'<div style="padding:4px">{image}</div>', text)


def png_text(figure: Figure, dpi: int) -> str:
    """A figure as PNG, in base64; the same bytes on every run."""
    with style():
        return print_figure(
            figure, base64=True, bbox_inches=None, dpi=dpi, metadata={"Software": None}
        )
