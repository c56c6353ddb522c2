"""Lab 60: what exchanges of two messages say about the offset of another clock.

The notebooks call it through `distlab_course.figures`, in their kernel. Times are in seconds.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from distlab.plotting.axes import even_ticks, new_panels, short
from distlab.plotting.describing import describe
from distlab.plotting.style import (
    HAZE,
    INK,
    LABEL_SIZE,
    WHITE,
    blend,
    filled,
    line_color,
    rank_color,
)

# when the question was asked, what the other clock then showed, when the answer was there
Exchange = tuple[float, float, float]
ASKING = 0  # the rank that asks for the time
ASKED = 2  # the rank whose clock it asks for


def clocks(exchanges: Sequence[Exchange], truth: float) -> Figure:
    """Draw what exchanges of two messages say about another clock.

    At the left is the shortest exchange over time, at the right the bounds that each one gives.

    Args:
        exchanges: (asked, seen, answered): when rank 0 asked and had its answer, by its clock, and
            what the clock of rank 2 showed in between.
        truth: how much the latter is ahead.
    """
    shortest = min(exchanges, key=_seconds_of)
    best = _estimate_of(shortest)
    with new_panels(8.6, 3.8, 1, 2, width_ratios=(1, 1.3)) as (figure, (left, right)):
        _draw_exchange(left, _seconds_of(shortest))
        right.set_title("the bounds of each exchange")
        right.set(xlabel="exchange", ylabel="offset − best estimate")
        for number, exchange in enumerate(exchanges):
            _draw_bounds(right, number, exchange, best, exchange == shortest)
        right.axhline(truth - best, linewidth=1.2, linestyle="--", color=INK)
        right.annotate(
            "the\ntruth",
            (1, truth - best),
            xycoords=("axes fraction", "data"),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=LABEL_SIZE,
        )
        for axis in (left.xaxis, right.yaxis):
            even_ticks(axis, "s")
        left.locator_params("x", nbins=3)
        for ax in (left, right):
            ax.grid(visible=False)
        words = [f"the shortest takes {short(_seconds_of(shortest), 's')}"]
        for number, exchange in enumerate(exchanges):
            apart = short(_estimate_of(exchange) - best, "s")
            words.append(f"exchange {number}: {apart} ± {short(_seconds_of(exchange) / 2, 's')}")
        words.append(f"the truth: {short(truth - best, 's')}")
        what = f"how far the clock of rank {ASKED} is ahead of the best estimate, by exchange"
        describe(figure, what, words)
    return figure


def _seconds_of(exchange: Exchange) -> float:
    """How long an exchange took."""
    asked, _, answered = exchange
    return answered - asked


def _estimate_of(exchange: Exchange) -> float:
    """How much the other clock is ahead, if it was looked at in the middle of the exchange."""
    asked, seen, answered = exchange
    return seen - (asked + answered) / 2


def _draw_exchange(ax: Axes, whole: float) -> None:
    """Draw a question and its answer, together `whole` seconds, as arrows between two ranks."""
    ax.set_title("the shortest exchange")
    ax.set_xlabel(f"time by the clock of rank {ASKING}")
    ax.set_xlim(-0.12 * whole, 1.12 * whole)
    ax.set_ylim(1.75, -0.55)
    ax.set_yticks((0, 1), (f"rank {ASKING}", f"rank {ASKED}"))
    ax.barh(1, whole, height=0.34, **filled(blend(WHITE, rank_color(ASKED), 2 * HAZE)))
    start = (0, 0)
    looked = (whole / 2, 1)
    end = (whole, 0)
    for tail, head, sender in ((start, looked, ASKING), (looked, end, ASKED)):
        arrow = FancyArrowPatch(
            tail,
            head,
            arrowstyle="-|>",
            mutation_scale=14,
            shrinkA=0,
            shrinkB=0,
            linewidth=1.8,
            color=line_color(sender),
        )
        ax.add_patch(arrow)
    look: dict[str, Any] = {"fontsize": LABEL_SIZE, "color": INK}
    words = "its clock was read\nsome time in here"
    ax.text(whole / 2, 1.25, words, ha="center", va="top", **look)
    ax.text(0, -0.12, "asked", ha="left", va="bottom", **look)
    ax.text(whole, -0.12, "answered", ha="right", va="bottom", **look)


def _draw_bounds(ax: Axes, number: int, exchange: Exchange, best: float, shortest: bool) -> None:
    """Draw between which offsets the other clock is, by one exchange, and their middle."""
    asked, seen, answered = exchange
    lowest = seen - answered - best
    highest = seen - asked - best
    color = INK
    width = 1.8
    if shortest:
        color = line_color(ASKED)
        width = 4.0
    ax.plot([number, number], [lowest, highest], color=color, linewidth=width)
    ax.plot(number, _estimate_of(exchange) - best, "o", markersize=5, color=color)
