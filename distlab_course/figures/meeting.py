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
from distlab.plotting.describing import describe
from distlab.plotting.style import (
    INK,
    LABEL_SIZE,
    NAME_SIZE,
    NOTE_SIZE,
    filled,
    line_color,
    rank_color,
    style,
)
from distlab.tables import format_seconds

# "set", "get", "wait" or "add"; key; when it began and ended, in seconds
Call = tuple[str, str, float, float]

COLUMN_WIDTH = 0.52  # of a call
LANE_HEIGHT = 0.42  # of a rank
LANE_GAP = 0.2
KEY_HEIGHT = 0.3  # of a key's row in the store
TIMES_HEIGHT = 0.5  # of the times below


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
    steps: list[Step] = []
    for rank, own in enumerate(calls):
        steps += steps_of(rank, own)
    steps.sort()
    chart = _chart_of(steps, len(calls))
    writers = {step.key: step.rank for step in steps if step.writes}
    first = min(step.began for step in steps)
    below = chart.tops[-1] + LANE_HEIGHT + 0.1
    figure, ax = new_canvas(chart.width, below + TIMES_HEIGHT, title)
    with style():
        draw_lane(ax, 0, 0, chart.width, chart.store_height, INK, "store", LABEL_SIZE)
        for rank, top in enumerate(chart.tops):
            color = rank_color(rank)
            draw_lane(ax, 0, top, chart.width, LANE_HEIGHT, color, f"rank {rank}", LABEL_SIZE)
        keys_written = 0
        for place, step in enumerate(steps):
            x = chart.left + place * COLUMN_WIDTH
            _draw_wait(ax, x, chart.tops[step.rank], step.rank, columns_waited(steps, place))
            color = line_color(writers[step.key]) if step.key in writers else INK
            _draw_arrow(ax, x, chart, step, color)
            if step.writes:
                _draw_key(ax, x, keys_written, step)
                keys_written += 1
            when = format_seconds(step.when - first)
            look = {"fontsize": NOTE_SIZE - 1.5, "rotation": 45, "va": "top"}
            draw_text(ax, x + COLUMN_WIDTH / 2, below, when, **look)
    parts = []
    for step in steps:
        verb = "writes" if step.writes else "reads"
        when = format_seconds(step.when - first).strip()
        parts.append(f"rank {step.rank} {verb} {step.key} at {when}")
    describe(figure, title or "what ranks write into a store and read from it", parts)
    return figure


class Chart(NamedTuple):
    """Where the lanes and the columns of a handshake stand.

    Attributes:
        left: where the first column begins.
        width: of the lanes.
        store_height: of the lane of the store, which is the upper one.
        tops: by rank, where its lane begins.
    """

    left: float
    width: float
    store_height: float
    tops: Sequence[float]


def _chart_of(steps: Sequence[Step], ranks: int) -> Chart:
    """The chart that has a column for each step, and in the store a row for each write."""
    names = ["store", *(f"rank {rank}" for rank in range(ranks))]
    left = 0.25 + max(text_width(name, LABEL_SIZE) for name in names)
    width = left + len(steps) * COLUMN_WIDTH
    keys_written = 0
    for place, step in enumerate(steps):
        if step.writes:
            keys_written += 1
            middle = left + (place + 0.5) * COLUMN_WIDTH
            width = max(width, middle + text_width(step.key, NOTE_SIZE))
    store_height = 0.1 + KEY_HEIGHT * keys_written
    first_top = store_height + LANE_GAP
    tops = [first_top + rank * (LANE_HEIGHT + LANE_GAP) for rank in range(ranks)]
    return Chart(left, width, store_height, tops)


def _draw_key(ax: Axes, x: float, row: int, step: Step) -> None:
    """Draw the key that a step writes, in this row of the store, in the colour of its rank."""
    y = 0.08 + row * KEY_HEIGHT
    width = text_width(step.key, NOTE_SIZE) + 0.16
    height = KEY_HEIGHT - 0.05
    draw_box(ax, x + 0.1, y, width, height, step.key, rank_color(step.rank), NOTE_SIZE)


def _draw_wait(ax: Axes, x: float, top: float, rank: int, columns: int) -> None:
    """Draw the hatched bar of a rank that waited for a key, on its lane; nothing for no columns."""
    if columns == 0:
        return
    bar = Rectangle(
        (x - columns * COLUMN_WIDTH, top + 0.08),
        (columns + 0.35) * COLUMN_WIDTH,
        LANE_HEIGHT - 0.16,
        facecolor="none",
        edgecolor=line_color(rank),
        hatch="////",
        linewidth=0,
    )
    ax.add_patch(bar)


def _draw_arrow(ax: Axes, x: float, chart: Chart, step: Step, color: str) -> None:
    """Draw the arrow of a step in the column that begins at `x`: up to write, down to read."""
    middle = x + COLUMN_WIDTH / 2
    in_store = (middle, chart.store_height - 0.04)
    at_rank = (middle, chart.tops[step.rank] + LANE_HEIGHT / 2)
    tail = at_rank if step.writes else in_store
    head = in_store if step.writes else at_rank
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


def _errors_in_words(mistake: str, errors: Sequence[tuple[float, str]]) -> str:
    """When each rank reported which error, in words."""
    told = [f"rank {rank} {words} after {s:.3g} s" for rank, (s, words) in enumerate(errors)]
    return f"{mistake}, {', '.join(told)}"


def first_errors(outcomes: Mapping[str, Sequence[tuple[float, str]]], timeout: float) -> Axes:
    """Draw when each rank reported its error, mistake by mistake from the top down.

    Args:
        outcomes: by mistake, for rank 0 and rank 1 the seconds until the error, and a few words of
            it.
        timeout: that all of them had.
    """
    height = 0.6 + 0.85 * len(outcomes)
    with new_axes(7.4, height, xlabel="time until the rank reports an error") as ax:
        latest = 0.0
        for place, errors in enumerate(outcomes.values()):
            for rank, (seconds, words) in enumerate(errors):
                y = place + 0.19 * (2 * rank - 1)  # one above the middle, the other below
                latest = max(latest, seconds)
                ax.barh(y, seconds, height=0.34, **filled(rank_color(rank)))
                ax.annotate(
                    f"rank {rank}: {words}",
                    (max(seconds, timeout), y),
                    color=INK,
                    xytext=(5, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=NAME_SIZE,
                )
        describe(
            ax,
            f"time until a rank reports an error, with a timeout of {timeout:g} s",
            [_errors_in_words(mistake, errors) for mistake, errors in outcomes.items()],
        )
        ax.axvline(timeout, color=INK, linestyle="--", linewidth=1)
        ax.text(timeout, -0.52, " the timeout", va="bottom", fontsize=NAME_SIZE, color=INK)
        ax.set_yticks(range(len(outcomes)), list(outcomes))
        ax.set_ylim(len(outcomes) - 0.5, -0.5)
        ax.set_xlim(0, 1.75 * latest)
        even_ticks(ax.xaxis, "s")
        ax.grid(visible=False, axis="y")
    return ax
