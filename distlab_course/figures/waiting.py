"""Labs 00, 02 and 33: which rank waits for which, as the report of a deadlock says.

The notebooks call it through `distlab_course.figures`, in their kernel. Lengths are in inches.
"""

import re
from collections.abc import Iterable, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from distlab.arguments import refuse
from distlab.plotting.canvas import draw_box, draw_outline, draw_text, new_canvas
from distlab.plotting.style import NAME_SIZE, TEXT_SIZE, line_color, rank_color, style

# of a rank's box, and from one box to the next
BOX_WIDTH = 0.86
BOX_HEIGHT = 0.36
BOX_PITCH = 1.5
ARROW_ASIDE = 0.18  # from the middle of a box to an arrow
ARROW_BEND = 0.24  # as a share of its length
WORD_HEIGHT = 0.3  # of a word above or below the boxes


def who_waits(report: object | Mapping[int, int], title: str = "who waits for whom") -> Figure:
    """Draw an arrow from each rank to the rank that it waits for.

    Arrows to the right run above the ranks, those to the left below them. Ranks that have finished
    are outlines.

    Args:
        report: a DeadlockError about messages between two ranks; or by waiting rank, the rank that
            it waits for.
        title: of the figure.
    """
    finished = getattr(report, "finished", ())
    waits = _waits_in(report)
    if not waits:
        refuse(
            "report",
            "the report of ranks that wait for messages",
            report,
            "Run the cell that deadlocks once more.",
        )
    ranks = sorted({*waits, *waits.values(), *finished})
    lefts = {rank: place * BOX_PITCH for place, rank in enumerate(ranks)}
    spans = [lefts[other] - lefts[rank] for rank, other in waits.items()]
    top = _room_for_arrows(spans)
    below = _room_for_arrows(-span for span in spans)
    # The word "finished" stands where no arrow is.
    word_above = all(span <= 0 for span in spans)
    if word_above:
        top = max(top, WORD_HEIGHT)
        word_y = top - 0.14
    else:
        below = max(below, WORD_HEIGHT)
        word_y = top + BOX_HEIGHT + 0.16
    width = max(lefts.values()) + BOX_WIDTH
    figure, ax = new_canvas(width, top + BOX_HEIGHT + below, title)
    figure.alt = f"{title}: {', '.join(_in_words(waits, finished))}"
    with style():
        for rank, left in lefts.items():
            _draw_rank(ax, rank, left, top, is_hollow=rank in finished)
            if rank in finished:
                draw_text(ax, left + BOX_WIDTH / 2, word_y, "finished", fontsize=NAME_SIZE)
        for rank, other in waits.items():
            _draw_wait(ax, rank, lefts[rank], lefts[other], top)
    return figure


def _waits_in(report: object) -> dict[int, int]:
    """By waiting rank, the rank that it waits for, as a report's sentences name it."""
    if isinstance(report, Mapping):
        return dict(report)
    waits = {}
    for failure in getattr(report, "failures", ()):
        peer = re.search(r"\b(?:src|dst)=(\d+)", failure.message)
        if peer:
            waits[failure.rank] = int(peer[1])
    return waits


def _in_words(waits: Mapping[int, int], finished: Iterable[int]) -> list[str]:
    """What the figure says, for those who do not see it."""
    words = []
    for rank, other in sorted(waits.items()):
        words.append(f"rank {rank} waits for rank {other}")
    for rank in sorted(finished):
        words.append(f"rank {rank} has finished")
    return words


def _room_for_arrows(spans: Iterable[float]) -> float:
    """The height that arrows need on one side of the boxes; those below 0 run on the other side."""
    longest = max([0.0, *spans])
    return 0.1 + ARROW_BEND / 2 * longest


def _draw_rank(ax: Axes, rank: int, left: float, top: float, is_hollow: bool) -> None:
    """Draw the box of a rank, or only its edge."""
    place = (left, top, BOX_WIDTH, BOX_HEIGHT)
    name = f"rank {rank}"
    if is_hollow:
        draw_outline(ax, *place, name, line_color(rank), TEXT_SIZE)
    else:
        draw_box(ax, *place, name, rank_color(rank), TEXT_SIZE)


def _draw_wait(ax: Axes, rank: int, start: float, end: float, top: float) -> None:
    """Draw the arrow of a rank to another: above the boxes to the right, below them to the left."""
    if end > start:
        side = 1
        y = top
    else:
        side = -1
        y = top + BOX_HEIGHT
    arrow = FancyArrowPatch(
        (start + BOX_WIDTH / 2 + side * ARROW_ASIDE, y),
        (end + BOX_WIDTH / 2 - side * ARROW_ASIDE, y),
        connectionstyle=f"arc3,rad={-ARROW_BEND}",
        shrinkA=1,
        shrinkB=1,
        arrowstyle="-|>",
        mutation_scale=14,
        linewidth=1.8,
        color=line_color(rank),
    )
    ax.add_patch(arrow)
