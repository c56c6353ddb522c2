"""Labs 00 and 02: which rank waits for which, as the report of a deadlock says.

The notebooks call it through `distlab_course.figures`, in their kernel. Lengths are in inches.
"""

import re
from collections.abc import Iterable, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from distlab.arguments import refuse
from distlab.plotting.canvas import draw_box, draw_text, new_canvas
from distlab.plotting.style import line_color, rank_color, style

# of a rank's box; from one box to the next
WIDTH = 0.86
HEIGHT = 0.36
APART = 1.5
# from the middle of a box to an arrow; how far it bends, as a share of its length
ASIDE = 0.18
BOW = 0.24
WORD = 0.3  # height of a word above or below the boxes


def who_waits(report: object, title: str = "who waits for whom") -> Figure:
    """Draw an arrow from each rank to the rank that it waits for.

    Arrows to the right run above the ranks, those to the left below them. Ranks that have finished
    are outlines.

    Args:
        report: a DeadlockError about messages between two ranks.
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
    lefts = {rank: place * APART for place, rank in enumerate(ranks)}
    spans = [lefts[other] - lefts[rank] for rank, other in waits.items()]
    # The word "finished" stands where no arrow is.
    word_above = not any(span > 0 for span in spans)
    top = _room_for_arrows(spans)
    below = _room_for_arrows(-span for span in spans)
    if word_above:
        top = max(top, WORD)
    else:
        below = max(below, WORD)
    figure, ax = new_canvas(max(lefts.values()) + WIDTH, top + HEIGHT + below, title)
    figure.alt = f"{title}: {', '.join(_in_words(waits, finished))}"
    with style():
        for rank, left in lefts.items():
            fill = "none" if rank in finished else rank_color(rank)
            draw_box(ax, left, top, WIDTH, HEIGHT, f"rank {rank}", fill, 12)
            if rank in finished:
                ax.patches[-1].set(edgecolor=line_color(rank), linestyle=(0, (3, 2)), linewidth=1.4)
                y = top - 0.14 if word_above else top + HEIGHT + 0.16
                draw_text(ax, left + WIDTH / 2, y, "finished", fontsize=10)
        for rank, other in waits.items():
            _draw_wait(ax, rank, lefts[rank], lefts[other], top)
    return figure


def _waits_in(report: object) -> dict[int, int]:
    """By waiting rank, the rank that it waits for, as a report's sentences name it."""
    waits = {}
    for failure in getattr(report, "failures", ()):
        peer = re.search(r"\b(?:src|dst)=(\d+)", failure.message)
        if peer:
            waits[failure.rank] = int(peer[1])
    return waits


def _in_words(waits: Mapping[int, int], finished: Iterable[int]) -> list[str]:
    """What the figure says, for those who do not see it."""
    words = [f"rank {rank} waits for rank {other}" for rank, other in sorted(waits.items())]
    return words + [f"rank {rank} has finished" for rank in sorted(finished)]


def _room_for_arrows(spans: Iterable[float]) -> float:
    """The height that arrows need on one side of the boxes; those below 0 run on the other side."""
    longest = max([0.0, *spans])
    return 0.1 + BOW / 2 * longest


def _draw_wait(ax: Axes, rank: int, start: float, end: float, top: float) -> None:
    """Draw the arrow of a rank to another: above the boxes to the right, below them to the left."""
    side = 1 if end > start else -1
    y = top if side > 0 else top + HEIGHT
    arrow = FancyArrowPatch(
        (start + WIDTH / 2 + side * ASIDE, y),
        (end + WIDTH / 2 - side * ASIDE, y),
        connectionstyle=f"arc3,rad={-BOW}",
        shrinkA=1,
        shrinkB=1,
        arrowstyle="-|>",
        mutation_scale=14,
        linewidth=1.8,
        color=line_color(rank),
    )
    ax.add_patch(arrow)
