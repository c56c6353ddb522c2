"""The handshake of a process group: which rank writes and reads which key of the store, in the order of their times.

Called by the notebooks. Runs in the notebook's process, on calls that the ranks have recorded. Lengths in inches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from distlab.errors import ArgumentError
from distlab.plotting.cells import UNIT, draw_text, text_width
from distlab.plotting.style import HAZE, INK, curve_color, new_figure, rank_color, style, text_color
from distlab.timing import format_seconds

STEP, LANE, GAP, KEY = 0.52, 0.42, 0.2, 0.3  # width of a call; heights of a rank's lane, between lanes, of a key
HEAD, FOOT = 0.42, 0.58
SIZE = 9  # of the font, in points
MOST_KEYS = 6  # rows of keys in the store; further ones begin again at the top

Call = tuple[str, str, float, float]  # "set", "get", "wait" or "add"; key; when it began and ended, in seconds


@dataclass(frozen=True)
class Step:
    """One arrow: a rank writes a key, or reads it after it may have waited for it since `began`."""

    rank: int
    key: str
    writes: bool
    began: float
    ended: float

    @property
    def when(self) -> float:
        """When it took place: another rank may read a key before the call that wrote it has returned."""
        return self.began if self.writes else self.ended


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
    steps = sorted((step for rank, own in enumerate(calls) for step in fold(rank, own)), key=lambda step: step.when)
    if not steps:
        raise ArgumentError(f"calls must hold a call of some rank, got {calls!r}. Record them: see notebook 06.")
    writers = {step.key: step.rank for step in steps if step.writes}
    left = 0.3 + max(UNIT * text_width(text, 11) for text in ("store", *(f"rank {r}" for r in range(len(calls)))))
    labels = {step: STEP / 2 + UNIT * text_width(step.key, SIZE) for step in steps if step.writes}
    ends = [left + steps.index(step) * STEP + room for step, room in labels.items()]
    width = max([left + len(steps) * STEP + 0.2, *ends, UNIT * text_width(title, 12) + 0.2])
    store = HEAD + 0.1 + KEY * max(1, min(len(labels), MOST_KEYS))
    height = store + len(calls) * (LANE + GAP) + FOOT
    figure = new_figure(width, height)
    with style():
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set(xlim=(0, width), ylim=(height, 0))
        ax.set_axis_off()
        draw_text(ax, 0.1, HEAD / 2, title, ha="left", fontsize=12)
        draw_lanes(ax, width, store, len(calls))
        first = min(step.began for step in steps)
        for place, step in enumerate(steps):
            draw_wait(ax, left, store, steps, place)
            draw_step(ax, left + place * STEP, store, step, writers.get(step.key))
            if step.writes:
                draw_key(ax, left + place * STEP, HEAD + 0.08 + list(labels).index(step) % MOST_KEYS * KEY, step)
            when = format_seconds(step.when - first)
            x = left + (place + 0.5) * STEP
            draw_text(ax, x, height - FOOT + 0.1, when, fontsize=SIZE - 1.5, color=INK, rotation=45, va="top")
    return figure


def fold(rank: int, calls: Sequence[Call]) -> list[Step]:
    """The calls of one rank as steps: a wait and what it waits for are one."""
    steps: list[Step] = []
    waiting: dict[str, float] = {}
    for name, key, began, ended in calls:
        if name == "wait":
            waiting.setdefault(key, began)
        else:
            steps.append(Step(rank, key, name in ("set", "add"), waiting.pop(key, began), ended))
    return steps


def lane_top(store: float, rank: int) -> float:
    """Where the lane of a rank begins; the store's ends at `store`."""
    return store + GAP + rank * (LANE + GAP)


def draw_lanes(ax: Axes, width: float, store: float, ranks: int) -> None:
    """Draw the store's lane and, below it, a lane for each rank."""
    ax.add_patch(Rectangle((0.05, HEAD), width - 0.1, store - HEAD, facecolor=INK, alpha=HAZE, edgecolor="none"))
    draw_text(ax, 0.2, (HEAD + store) / 2, "store", ha="left", va="center_baseline", fontsize=11)
    for rank in range(ranks):
        color, top = rank_color(rank), lane_top(store, rank)
        ax.add_patch(Rectangle((0.05, top), width - 0.1, LANE, facecolor=color, alpha=HAZE, edgecolor="none"))
        ax.add_patch(Rectangle((0.05, top), 0.065, LANE, facecolor=color, edgecolor="none"))
        draw_text(ax, 0.2, top + LANE / 2, f"rank {rank}", ha="left", va="center_baseline", fontsize=11)


def draw_wait(ax: Axes, left: float, store: float, steps: Sequence[Step], place: int) -> None:
    """Draw a hatched bar where a rank waits for a key that is written while it waits."""
    step = steps[place]
    written = [other.when for other in steps if other.writes and other.key == step.key]
    begin = sum(other.when <= step.began for other in steps)  # columns that were over when it began to wait
    if step.writes or not written or min(written) <= step.began or begin == place:
        return
    color, top = curve_color(step.rank), lane_top(store, step.rank)
    look = {"facecolor": "none", "edgecolor": color, "hatch": "////", "linewidth": 0}
    ax.add_patch(Rectangle((left + begin * STEP, top + 0.08), (place - begin + 0.35) * STEP, LANE - 0.16, **look))


def draw_step(ax: Axes, x: float, store: float, step: Step, writer: int | None) -> None:
    """Draw the arrow of one call between the store and the lane of its rank."""
    middle, lane = x + STEP / 2, lane_top(store, step.rank) + LANE / 2
    tail, head = (lane, store - 0.04) if step.writes else (store - 0.04, lane)
    color = INK if writer is None else curve_color(writer)
    ax.annotate("", (middle, head), (middle, tail), arrowprops={"arrowstyle": "-|>", "color": color, "lw": 1.8})


def draw_key(ax: Axes, x: float, y: float, step: Step) -> None:
    """Draw a key in the store where its arrow ends, in the colour of its rank."""
    color = rank_color(step.rank)
    box = Rectangle(
        (x + 0.1, y), UNIT * text_width(step.key, SIZE) + 0.16, KEY - 0.05, facecolor=color, edgecolor="none"
    )
    ax.add_patch(box)
    text = {"ha": "left", "va": "center_baseline", "fontsize": SIZE, "color": text_color(color)}
    draw_text(ax, x + 0.18, y + (KEY - 0.05) / 2, step.key, **text)
