"""The handshake of a process group: which rank writes and reads which key of the store, in the order of their times.

Called by the notebooks. Runs in the notebook's process, on calls that the ranks have recorded. Lengths in inches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from distlab.plotting.cells import canvas, draw_box, draw_lane, draw_text, text_width
from distlab.plotting.style import INK, curve_color, rank_color, style
from distlab.plotting.units import format_seconds
from distlab.text import refuse

STEP, LANE, GAP, KEY = 0.52, 0.42, 0.2, 0.3  # width of a call; heights of a rank's lane, between lanes, of a key
FOOT = 0.5  # height of the times below
LABEL, SIZE = 11, 9  # of the fonts, in points
MOST_KEYS = 6  # rows of keys in the store; further ones begin again at the top

Call = tuple[str, str, float, float]  # "set", "get", "wait" or "add"; key; when it began and ended, in seconds


class Step(NamedTuple):
    """One arrow: a rank writes a key, or reads it after it may have waited for it since `began`.

    `when` it took place is the end of a read, and the beginning of a write: another rank may read a key before the call
    that wrote it has returned.
    """

    when: float
    rank: int
    key: str
    writes: bool
    began: float


def handshake(calls: Sequence[Sequence[Call]], title: str = "") -> Figure:
    """Draw what each rank wrote into a store and read from it, one arrow a call, in the order of their times.

    An arrow up writes a key, an arrow down reads one, in the colour of the rank that wrote it. A hatched bar is a rank
    that waits for a key that nobody has written yet. The times below are since the first call; steps of time are not
    drawn to scale.

    Runs on: client.

    Args:
        calls: by rank, each call as (name, key, began, ended), times in seconds on one clock. A "wait" and the "get" of
            the same key after it are one arrow.
        title: what was recorded.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell.

    Raises:
        ArgumentError: if no rank made a call.
    """
    steps = sorted(step for rank, own in enumerate(calls) for step in fold(rank, own))
    if not steps:
        refuse("calls", "by rank, with a call of some rank", calls, "Record them: see notebook 06.")
    writers = {step.key: step.rank for step in steps if step.writes}
    left = 0.25 + max(text_width(name, LABEL) for name in ["store", *(f"rank {n}" for n in range(len(calls)))])
    places = [place for place, step in enumerate(steps) if step.writes]
    ends = [left + (place + 0.5) * STEP + text_width(steps[place].key, SIZE) for place in places]
    width = max([left + len(steps) * STEP, *ends])
    store = 0.1 + KEY * max(1, min(len(places), MOST_KEYS))
    tops = [store + GAP + rank * (LANE + GAP) for rank in range(len(calls))]
    below = tops[-1] + LANE + 0.1
    figure, ax = canvas(width, below + FOOT, title)
    with style():
        draw_lane(ax, 0, 0, width, store, INK, "store", LABEL)
        for rank, top in enumerate(tops):
            draw_lane(ax, 0, top, width, LANE, rank_color(rank), f"rank {rank}", LABEL)
        first = min(step.began for step in steps)
        for place, step in enumerate(steps):
            x, top = left + place * STEP, tops[step.rank]
            waited = columns_waited(steps, place)
            if waited:
                look = {"facecolor": "none", "edgecolor": curve_color(step.rank), "hatch": "////", "linewidth": 0}
                ax.add_patch(Rectangle((x - waited * STEP, top + 0.08), (waited + 0.35) * STEP, LANE - 0.16, **look))
            ends = (store - 0.04, top + LANE / 2)
            tail, head = reversed(ends) if step.writes else ends
            color = curve_color(writers[step.key]) if step.key in writers else INK
            arrow = {"arrowstyle": "-|>", "color": color, "lw": 1.8}
            ax.annotate("", (x + STEP / 2, head), (x + STEP / 2, tail), arrowprops=arrow)
            if step.writes:
                y, wide = 0.08 + places.index(place) % MOST_KEYS * KEY, text_width(step.key, SIZE) + 0.16
                draw_box(ax, x + 0.1, y, wide, KEY - 0.05, step.key, rank_color(step.rank), SIZE)
            when = format_seconds(step.when - first)
            draw_text(ax, x + STEP / 2, below, when, fontsize=SIZE - 1.5, rotation=45, va="top")
    return figure


def fold(rank: int, calls: Sequence[Call]) -> list[Step]:
    """The calls of one rank as steps: a wait and what it waits for are one."""
    steps: list[Step] = []
    waiting: dict[str, float] = {}
    for name, key, began, ended in calls:
        if name == "wait":
            waiting.setdefault(key, began)
        else:
            writes, began = name in ("set", "add"), waiting.pop(key, began)
            steps.append(Step(began if writes else ended, rank, key, writes, began))
    return steps


def columns_waited(steps: Sequence[Step], place: int) -> int:
    """The columns before a read in which its rank waited for the key: none where that was there when it asked."""
    step = steps[place]
    written = [other.when for other in steps if other.writes and other.key == step.key]
    waits = not step.writes and written and min(written) > step.began
    return place - sum(other.when <= step.began for other in steps) if waits else 0
