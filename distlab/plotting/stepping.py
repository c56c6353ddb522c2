"""An algorithm step by step, picture by picture: who holds what before each step, and what is sent.

Called by the notebooks and by player.py, on the kernel, with states and messages that are plain
data, as an algorithm's schedule has them. Lengths are in inches; y points down.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.path import Path as ArrowPath

from distlab.plotting.canvas import draw_lane, draw_plus, draw_text, new_canvas, text_width
from distlab.plotting.cells import Slot, draw_cell
from distlab.plotting.describing import describe
from distlab.plotting.drawing import Drawing
from distlab.plotting.style import SMALL_SIZE, TINY_SIZE, filled, line_color, rank_color
from distlab.simulated.schedules import ChunkMessage
from distlab.tables import count

PICTURES_WIDTH = 8.8  # of a row of pictures: a notebook's width
HEADING_HEIGHT = 0.22  # height of a heading
NUMBERS_HEIGHT = 0.18  # height of the chunks' numbers
KEY_HEIGHT = 0.2  # height of the line below
NAMES_WIDTH = 0.66  # width of the ranks' names
PICTURE_LANE = 0.32  # height of a lane
PICTURE_PITCH = 0.36  # from one lane to the next
CELL_HEIGHT = 0.24  # height of a cell
GUTTER = 0.18  # between two cells, for arrows
SIDE = 0.03  # at a lane's ends
PICTURE_GAP = 0.14  # between two pictures
PART_INSET = 0.025  # between a cell's edge and the parts in it

State = Sequence[Sequence[Iterable[int]]]  # by rank, by chunk: the ranks whose numbers are in it
MessagesByStep = Sequence[Sequence[ChunkMessage]]  # by step, what is sent
Point = tuple[float, float]


class SentChunk(NamedTuple):
    """One chunk of a message."""

    message: ChunkMessage
    chunk: int


class Pictures:
    """States and messages of an algorithm, and where their pictures stand below the title.

    They stand in rows of equal length, as many in a row as fit. The parts of a cell are wide enough
    to be seen.

    Attributes:
        states: what each picture shows.
        messages: what is sent after each state, chunk by chunk; nothing after the last one.
        headings: one for each picture.
        ranks: how many lanes a picture has.
        chunks: how many cells a lane has.
        cell: width of a cell.
        width: of a picture.
        height: of a picture.
        head: height of what is above its lanes.
        per_row: how many pictures a row has.
        rows: how many rows there are.
    """

    def __init__(self, states: Sequence[State], messages: MessagesByStep):
        self.states = states
        self.messages = [_chunk_by_chunk(step) for step in messages]
        self.messages.append([])
        self.headings = [f"step {number}" for number in range(len(states) - 1)]
        self.headings.append("end")
        self.ranks = len(states[0])
        self.chunks = len(states[0][0])
        self.cell = _cell_width(self.ranks, self.chunks)
        self.width = self.chunks * (self.cell + GUTTER) + 2 * SIDE
        self.head = HEADING_HEIGHT
        if self.chunks > 1:
            self.head += NUMBERS_HEIGHT
        self.height = self.head + self.ranks * PICTURE_PITCH
        room = PICTURES_WIDTH - NAMES_WIDTH + PICTURE_GAP
        most = max(1, int(room // (self.width + PICTURE_GAP)))
        self.rows = math.ceil(len(states) / most)
        self.per_row = math.ceil(len(states) / self.rows)

    def place(self, picture: int) -> Point:
        """The upper left corner of a picture, to the right of the names and the pictures before."""
        row, column = divmod(picture, self.per_row)
        left = NAMES_WIDTH + column * (self.width + PICTURE_GAP)
        top = row * (self.height + PICTURE_GAP)
        return left, top

    def lane_top(self, picture: int, rank: int) -> float:
        """Where the lane of a rank begins in a picture."""
        _, top = self.place(picture)
        return top + self.head + rank * PICTURE_PITCH

    def corner(self, picture: int, rank: int, chunk: int) -> Point:
        """The upper left corner of a cell."""
        left, _ = self.place(picture)
        x = left + SIDE + GUTTER / 2 + chunk * (self.cell + GUTTER)
        y = self.lane_top(picture, rank) + (PICTURE_LANE - CELL_HEIGHT) / 2
        return x, y

    @property
    def key(self) -> str:
        """What the colours mean, and the marks that are there."""
        operations = {message.operation for message, _ in chain.from_iterable(self.messages)}
        words = ["colour: that rank's numbers are in the sum"]
        if "reduce" in operations:
            words.append("plus: is added to what is there")
        if "copy" in operations:
            words.append("arrowhead: replaces what is there")
        return ";  ".join(words)


def _cell_width(ranks: int, chunks: int) -> float:
    """The width of a cell that has a part for each rank."""
    part = 0.06 if ranks <= 4 else 0.05
    least = 0.26 if chunks > 1 else 0.44
    return max(least, part * ranks + 0.04)


def _chunk_by_chunk(step: Iterable[ChunkMessage]) -> list[SentChunk]:
    """The messages of a step, once for each of their chunks."""
    sent: list[SentChunk] = []
    for message in step:
        sent += [SentChunk(message, chunk) for chunk in message.chunks]
    return sent


def steps(states: Sequence[State], messages: MessagesByStep, title: str = "") -> Figure:
    """Draw a small picture for each step: what every rank holds before it, and what it then sends.

    For a schedule: steps(algorithms.holdings(plan), plan.steps). A picture has a lane for each rank
    and a cell for each chunk. A cell has a coloured part for each rank whose numbers are in its
    sum. An arrow with a plus adds to what is there, a plain one replaces it. The last picture is
    the end.

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
    below = shown.rows * (shown.height + PICTURE_GAP)
    last_left, _ = shown.place(shown.per_row - 1)
    # letters on whole pixels take more than their outlines
    key_width = 1.03 * text_width(shown.key, TINY_SIZE)
    width = max(last_left + shown.width, key_width)
    figure, ax = new_canvas(width, below + KEY_HEIGHT, title)
    for picture, step in enumerate(shown.messages):
        draw_picture(ax, shown, picture)
        for sent in step:
            draw_message(ax, shown, picture, sent)
    draw_text(ax, 0, below + KEY_HEIGHT / 2, shown.key, ha="left", fontsize=TINY_SIZE)
    parts = []
    for heading, step in zip(shown.headings, shown.messages, strict=True):
        parts.append(f"{heading}, {count(len(step), 'message')}" if step else heading)
    describe(figure, f"{title or 'An algorithm'}, step by step", parts)
    return figure


def draw_picture(ax: Axes, shown: Pictures, picture: int) -> None:
    """Draw the heading of a picture, the chunks' numbers and what each rank holds.

    The first picture of a row has the names of the lanes at its left.
    """
    left, top = shown.place(picture)
    is_first = picture % shown.per_row == 0
    look = {"fontsize": SMALL_SIZE, "fontweight": "bold"}
    x = left + shown.width / 2
    draw_text(ax, x, top + HEADING_HEIGHT / 2, shown.headings[picture], **look)
    if shown.chunks > 1:
        _draw_chunk_numbers(ax, shown, picture, is_first)
    for rank, row in enumerate(shown.states[picture]):
        y = shown.lane_top(picture, rank)
        color = rank_color(rank)
        if is_first:
            draw_lane(ax, 0, y, NAMES_WIDTH, PICTURE_LANE, color, f"rank {rank}", SMALL_SIZE)
        draw_lane(ax, left, y, shown.width, PICTURE_LANE, color)
        for chunk, members in enumerate(row):
            _draw_sum(ax, shown, shown.corner(picture, rank, chunk), members)


def _draw_chunk_numbers(ax: Axes, shown: Pictures, picture: int, named: bool) -> None:
    """Write the numbers of the chunks above their cells; where it is `named`, also "chunk"."""
    _, top = shown.place(picture)
    y = top + HEADING_HEIGHT + NUMBERS_HEIGHT / 2
    look = {"va": "center_baseline", "fontsize": TINY_SIZE}
    if named:
        draw_text(ax, NAMES_WIDTH - 0.08, y, "chunk", ha="right", **look)
    for chunk in range(shown.chunks):
        left, _ = shown.corner(picture, 0, chunk)
        draw_text(ax, left + shown.cell / 2, y, str(chunk), **look)


def _draw_sum(ax: Axes, shown: Pictures, corner: Point, members: Iterable[int]) -> None:
    """Draw a cell with a part for each rank whose numbers are in its sum, at the rank's place."""
    x, y = corner
    outline = Slot(origin="unknown")
    draw_cell(ax, x, y, shown.cell, CELL_HEIGHT, outline, SMALL_SIZE)
    width = (shown.cell - 2 * PART_INSET) / shown.ranks
    height = CELL_HEIGHT - 2 * PART_INSET
    for rank in sorted(members):
        place = (x + PART_INSET + rank * width, y + PART_INSET)
        part = Rectangle(place, width, height, **filled(rank_color(rank)))
        ax.add_artist(part)


def draw_message(ax: Axes, shown: Pictures, picture: int, sent: SentChunk) -> None:
    """Draw an arrow from cell to cell.

    It goes downwards to the right of the chunk's cells, upwards to their left.
    """
    message, chunk = sent
    adds = message.operation == "reduce"
    side = 1 if message.dst > message.src else -1
    left, start_top = shown.corner(picture, message.src, chunk)
    _, end_top = shown.corner(picture, message.dst, chunk)
    edge = left + shown.cell if side > 0 else left
    # a cell that both gets and sends has its arrows apart
    start = start_top + CELL_HEIGHT / 2 + 0.05 * side
    end = end_top + CELL_HEIGHT / 2 - 0.05 * side
    bulge = edge + side * _bulge(abs(message.dst - message.src))
    if adds:
        tip = edge + side * 0.05
        head = "-"
    else:
        tip = edge + side * 0.015
        head = "-|>,head_length=4,head_width=2.2"
    path = ArrowPath(
        [(edge, start), (bulge, start), (bulge, end), (tip, end)],
        [ArrowPath.MOVETO, ArrowPath.CURVE4, ArrowPath.CURVE4, ArrowPath.CURVE4],
    )
    arrow = FancyArrowPatch(
        path=path,
        arrowstyle=head,
        shrinkA=0,
        shrinkB=0,
        color=line_color(message.src if message.origin is None else message.origin),
        linewidth=1.2,
    )
    ax.add_artist(arrow)
    if adds:
        draw_plus(ax, tip, end, 0.052, SMALL_SIZE)


def _bulge(lanes: int) -> float:
    """How far an arrow that goes so many lanes up or down leads aside."""
    return min(0.115, 0.08 + 0.015 * lanes)
