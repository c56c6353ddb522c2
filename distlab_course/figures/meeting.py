"""Labs 30 and 61: how ranks meet at a store, and when they report that they do not.

The notebooks call it through `distlab_course.figures`, in their kernel. Lengths are in inches,
times in seconds.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from distlab.plotting.axes import even_ticks, new_axes
from distlab.plotting.canvas import draw_box, draw_lane, draw_text, new_canvas, text_width
from distlab.plotting.style import (
    INK,
    LABEL_SIZE,
    NAME_SIZE,
    NOTE_SIZE,
    line_color,
    rank_color,
    style,
)
from distlab.tables import format_seconds

Point = tuple[float, float]

# "set", "get", "wait" or "add"; key; when it began and ended, in seconds
Call = tuple[str, str, float, float]
STEP = 0.52  # width of a call
LANE = 0.42  # height of a rank's lane
GAP = 0.2  # between lanes
KEY = 0.3  # height of a key
FOOT = 0.5  # height of the times below


class Step(NamedTuple):
    """One arrow: a rank writes a key, or reads it and may have waited for it since `began`.

    `when` it took place is the end of a read, and the beginning of a write: another rank may read a
    key before the call that wrote it has returned.
    """

    when: float
    rank: int
    key: str
    writes: bool
    began: float


def handshake(calls: Sequence[Sequence[Call]], title: str = "") -> Figure:
    """Draw what each rank wrote into a store and read from it: one arrow a call, by time.

    An arrow up writes a key, an arrow down reads one, in the colour of the rank that wrote it. A
    hatched bar is a rank that waits for a key that is not written yet. The times below are since
    the first call; steps of time are not drawn to scale.

    Args:
        calls: by rank, each call as (name, key, began, ended), times in seconds on one clock. A
            "wait" and the "get" of the same key after it are one arrow.
        title: what was recorded.
    """
    steps = sorted(step for rank, own in enumerate(calls) for step in steps_of(rank, own))
    writers = {step.key: step.rank for step in steps if step.writes}
    writes = [place for place, step in enumerate(steps) if step.writes]
    names = ["store", *(f"rank {rank}" for rank in range(len(calls)))]
    left = 0.25 + max(text_width(name, LABEL_SIZE) for name in names)
    key_ends = [
        left + (place + 0.5) * STEP + text_width(steps[place].key, NOTE_SIZE) for place in writes
    ]
    width = max([left + len(steps) * STEP, *key_ends])
    store = 0.1 + KEY * len(writes)
    tops = [store + GAP + rank * (LANE + GAP) for rank in range(len(calls))]
    below = tops[-1] + LANE + 0.1
    first = min(step.began for step in steps)
    figure, ax = new_canvas(width, below + FOOT, title)
    with style():
        draw_lane(ax, 0, 0, width, store, INK, "store", LABEL_SIZE)
        for rank, top in enumerate(tops):
            draw_lane(ax, 0, top, width, LANE, rank_color(rank), f"rank {rank}", LABEL_SIZE)
        for place, step in enumerate(steps):
            x = left + place * STEP
            top = tops[step.rank]
            _draw_wait(ax, x, top, step.rank, columns_waited(steps, place))
            in_store = (x + STEP / 2, store - 0.04)
            at_rank = (x + STEP / 2, top + LANE / 2)
            color = line_color(writers[step.key]) if step.key in writers else INK
            if step.writes:
                _draw_arrow(ax, at_rank, in_store, color)
                y = 0.08 + writes.index(place) * KEY
                wide = text_width(step.key, NOTE_SIZE) + 0.16
                draw_box(
                    ax, x + 0.1, y, wide, KEY - 0.05, step.key, rank_color(step.rank), NOTE_SIZE
                )
            else:
                _draw_arrow(ax, in_store, at_rank, color)
            when = format_seconds(step.when - first)
            draw_text(
                ax, x + STEP / 2, below, when, fontsize=NOTE_SIZE - 1.5, rotation=45, va="top"
            )
    return figure


def _draw_wait(ax: Axes, x: float, top: float, rank: int, columns: int) -> None:
    """Draw the hatched bar of a rank that waited for a key, on its lane; nothing for no columns."""
    if not columns:
        return
    bar = Rectangle(
        (x - columns * STEP, top + 0.08),
        (columns + 0.35) * STEP,
        LANE - 0.16,
        facecolor="none",
        edgecolor=line_color(rank),
        hatch="////",
        linewidth=0,
    )
    ax.add_patch(bar)


def _draw_arrow(ax: Axes, tail: Point, head: Point, color: str) -> None:
    """Draw the arrow of one call between a rank and the store."""
    ax.annotate("", head, tail, arrowprops={"arrowstyle": "-|>", "color": color, "lw": 1.8})


def steps_of(rank: int, calls: Sequence[Call]) -> list[Step]:
    """The calls of one rank as steps: a wait and what it waits for are one."""
    steps: list[Step] = []
    waits_since: dict[str, float] = {}
    for name, key, called, ended in calls:
        if name == "wait":
            waits_since.setdefault(key, called)
            continue
        began = waits_since.pop(key, called)
        writes = name in ("set", "add")
        when = began if writes else ended
        steps.append(Step(when, rank, key, writes, began))
    return steps


def columns_waited(steps: Sequence[Step], place: int) -> int:
    """The columns before a read in which its rank waited for the key.

    There are none where the key was there when the rank asked for it.
    """
    step = steps[place]
    if step.writes:
        return 0
    written = [other.when for other in steps if other.writes and other.key == step.key]
    if not written or min(written) <= step.began:
        return 0
    earlier = [other for other in steps if other.when <= step.began]
    return place - len(earlier)


def first_errors(outcomes: Mapping[str, Sequence[tuple[float, str]]], timeout: float) -> Axes:
    """Draw when each rank reported its error, mistake by mistake from the top down.

    Args:
        outcomes: by mistake, for each rank the seconds until its error, and a few words of it.
        timeout: that all of them had.
    """
    height = 0.6 + 0.85 * len(outcomes)
    with new_axes(7.4, height, xlabel="time until the rank reports an error") as ax:
        latest = 0.0
        for place, ranks in enumerate(outcomes.values()):
            for rank, (seconds, words) in enumerate(ranks):
                y = place + 0.19 * (2 * rank - 1)
                ax.barh(y, seconds, height=0.34, color=rank_color(rank))
                ax.annotate(
                    f"rank {rank}: {words}",
                    (max(seconds, timeout), y),
                    color=INK,
                    xytext=(5, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=NAME_SIZE,
                )
                latest = max(latest, seconds)
        ax.axvline(timeout, color=INK, linestyle="--", linewidth=1)
        ax.text(timeout, -0.52, " the timeout", va="bottom", fontsize=NAME_SIZE, color=INK)
        ax.set(yticks=range(len(outcomes)), yticklabels=outcomes, ylim=(len(outcomes) - 0.5, -0.5))
        ax.set_xlim(0, 1.75 * latest)
        even_ticks(ax.xaxis, "s")
        ax.grid(visible=False, axis="y")
    return ax
