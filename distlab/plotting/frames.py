"""One small picture of an algorithm's step: what each rank holds in each chunk, and arrows for what it sends.

Called by `stepping`. Runs anywhere. Lengths in pixels; (0, 0) is the picture's left upper corner.
"""

from __future__ import annotations

from collections.abc import Sequence

from distlab.plotting.moves import Chunk, Move, State
from distlab.plotting.shapes import Box, Curve, Disc, Group, Label, Polygon
from distlab.plotting.style import FAINT, HAZE, INK, MIXED, curve_color, rank_color, text_color

HEAD, NUMBERS = 22, 18  # heights of the heading and, where there are several chunks, of their numbers
PITCH = 36  # from one lane to the next
LANE, CELL = 32, 24  # heights of a rank's lane and of a cell
GUTTER, SIDE = 18, 3  # room for arrows between two cells of a lane, and what more there is at the lane's ends
NAMES = 58  # width of the ranks' names


def picture(state: State, moves: Sequence[Move], heading: str, cell: float) -> list[Group | Label | Box]:
    """The shapes of one picture.

    Args:
        state: before the step. moves: those of the step. cell: width of a cell, see `cell_width`.
    """
    width, chunks = picture_width(state, cell), len(state[0])
    lanes: list[Group | Label | Box] = []
    for rank, row in enumerate(state):
        lanes.append(Box(0, _top(rank) - 4, width, LANE, rank_color(rank), opacity=HAZE))
        for chunk, content in enumerate(row):
            marks = {"class": "cell", "data-at": f"{rank},{chunk}"}
            lanes.append(Group(_cell(content, cell, len(state)), _left(chunk, cell), _top(rank), marks))
    lanes += [_arrow(move, cell) for move in moves]
    numbers = [Label(_left(chunk, cell) + cell / 2, HEAD + 7, str(chunk), 11, INK, "middle") for chunk in range(chunks)]
    head = Label(width / 2, 9, heading, 13, INK, "middle", bold=True)
    return [head, *numbers[: chunks if chunks > 1 else 0], Group(lanes, 0, head_height(state))]


def names(state: State) -> list[Group | Label]:
    """The names of the lanes, at the left of the pictures."""
    lanes: list[Label | Box] = []
    for rank in range(len(state)):
        lanes.append(Box(NAMES - 4, _top(rank) - 4, 4, LANE, rank_color(rank)))
        lanes.append(Label(0, _top(rank) + CELL / 2, f"rank {rank}"))
    head = [Label(NAMES - 8, HEAD + 7, "chunk", 11, INK, "end")] if len(state[0]) > 1 else []
    return [*head, Group(lanes, 0, head_height(state))]


def cell_width(states: Sequence[State]) -> float:
    """Width of a cell in every picture: parts that can be told apart, or the longest text."""
    ranks = len(states[0])
    longest = max(len(content.text) for state in states for row in state for content in row)
    least = 26 if len(states[0][0]) > 1 else 44
    return max(least, (6 if ranks <= 4 else 5) * ranks + 4, 8 * longest + 8)


def picture_width(state: State, cell: float) -> float:
    """Width of a picture."""
    return len(state[0]) * (cell + GUTTER) + 2 * SIDE


def picture_height(state: State) -> float:
    """Height of a picture."""
    return head_height(state) + len(state) * PITCH


def head_height(state: State) -> float:
    """Height of what stands above the lanes."""
    return HEAD + (NUMBERS if len(state[0]) > 1 else 0)


def _left(chunk: int, cell: float) -> float:
    return SIDE + chunk * (cell + GUTTER) + GUTTER / 2


def _top(rank: int) -> float:
    return rank * PITCH + 4


def _cell(content: Chunk, width: float, ranks: int) -> list[Box | Label]:
    """A part for each rank whose numbers are in it, always at that rank's place; or a text on its origin's colour."""
    if content.text:
        neutral = {"mixed": MIXED, "shared": FAINT}
        fill = rank_color(content.origin) if isinstance(content.origin, int) else neutral[content.origin]
        label = Label(width / 2, CELL / 2, content.text, 13, text_color(fill), "middle")
        return [Box(0, 0, width, CELL, fill, fill, 3), label]
    part = (width - 4) / ranks
    parts = [Box(2 + rank * part, 2, part, CELL - 4, rank_color(rank)) for rank in content.ranks]
    return [Box(0, 0, width, CELL, "none", INK, 3), *parts]


def _arrow(move: Move, cell: float) -> Group:
    """From the sender's cell to the receiver's: downwards at the right of the chunk's cells, upwards at their left."""
    down = move.dst > move.src
    side = 1 if down else -1
    edge = _left(move.chunk, cell) + (cell if down else 0)
    # a cell that both gets and sends has its arrows apart
    start, end = (_top(rank) + CELL / 2 + 5 * turn * side for rank, turn in ((move.src, 1), (move.dst, -1)))
    tip, bulge = edge + side * 1.5, edge + side * min(11.5, 8 + 1.5 * abs(move.dst - move.src))
    back = tip + side * 6
    color = curve_color(move.src if move.origin is None else move.origin)
    curve = Curve(((edge, start), (bulge, start), (bulge, end), (back, end)), color)
    head = [Polygon(((tip, end), (back, end - 4), (back, end + 4)), color)]
    if move.adds:
        center = edge + side * 5
        head = [Disc(center, end, 5, MIXED)]
        head += [Box(center - 3, end - 0.7, 6, 1.4, "#FFFFFF"), Box(center - 0.7, end - 3, 1.4, 6, "#FFFFFF")]
    marks = {"class": "move", "data-from": f"{move.src},{move.chunk}", "data-to": f"{move.dst},{move.chunk}"}
    if move.origin is not None:
        marks["data-first"] = f"{move.origin},{move.chunk}"
    return Group([curve, *head], marks=marks)
