"""Draws figs/staircase: a step of a pipeline, as it was found and mended. Called by diagrams.py.

The times are those of `distlab.predict` for distlab_course/staircase.py, Llama 7B on 8 stages with
8 copies each; tests/cluster/predict/test_staircase.py predicts it again.
"""

from typing import NamedTuple

from matplotlib.figure import Figure

from distlab.plotting.axes import new_panels
from distlab.plotting.bars import ACTIVITY_LOOKS, Bar, Look, draw_lanes, legend_below
from distlab.plotting.describing import describe

STAGES = 8
MICROBATCHES = 8
MESSAGE = 0.34  # milliseconds of an activation, or a gradient, from one stage to the next
FORWARD = ACTIVITY_LOOKS["forward"]
BACKWARD = ACTIVITY_LOOKS["backward"]
AVERAGE = ACTIVITY_LOOKS["exposed"]._replace(words="averaging with the copies")
TITLES = {
    "found": "Each stage averages before its last gradient leaves",
    "mended": "The last gradient leaves first, then they average",
}


class Times(NamedTuple):
    """What a stage takes, in milliseconds: a pass of a micro-batch, and the average."""

    forward: float
    backward: float
    average: float


FIRST = Times(9.0, 20.2, 139.0)
MIDDLE = Times(8.95, 19.6, 119.7)
LAST = Times(10.5, 22.9, 139.0)


def times_of(stage: int) -> Times:
    """The first stage has the embedding, too, and the last one the output."""
    if stage == 0:
        return FIRST
    if stage == STAGES - 1:
        return LAST
    return MIDDLE


def bars_of(order: str) -> list[list[Bar]]:
    """The bars of each stage, in seconds.

    Args:
        order: "found", where the average comes before the last message, or "mended".
    """
    bars: list[list[Bar]] = [[] for _ in range(STAGES)]
    free = [0.0] * STAGES  # when a stage has done what it did last

    def work(stage: int, ready: float, milliseconds: float, look: Look) -> float:
        begin = max(ready, free[stage])
        free[stage] = begin + milliseconds
        bars[stage].append(Bar(begin / 1e3, free[stage] / 1e3, look))
        return free[stage]

    for _ in range(MICROBATCHES):
        ready = 0.0
        for stage in range(STAGES):
            ready = work(stage, ready, times_of(stage).forward, FORWARD) + MESSAGE
    for number in range(MICROBATCHES):
        ready = 0.0
        for stage in reversed(range(STAGES)):
            ready = work(stage, ready, times_of(stage).backward, BACKWARD)
            if number == MICROBATCHES - 1:
                averaged = work(stage, ready, times_of(stage).average, AVERAGE)
                if order == "found":
                    ready = averaged
            ready += MESSAGE
    return bars


def seconds_of(bars: list[list[Bar]]) -> float:
    """How long the step takes, without the optimizer."""
    return max(row[-1].end for row in bars)


def staircase() -> Figure:
    """Draw both orders below one another, on one scale of time."""
    steps = {order: bars_of(order) for order in TITLES}
    end = max(seconds_of(bars) for bars in steps.values())
    parts = []
    with new_panels(7.2, 6.2, 2, 1, sharex=True) as (figure, axes):
        legend_below(axes[-1], [FORWARD, BACKWARD, AVERAGE])
        for ax, (order, bars) in zip(axes, steps.items(), strict=True):
            seconds = seconds_of(bars)
            ax.set_title(f"{TITLES[order]}: {seconds:.2f} s")
            lanes = {f"stage {stage}": row for stage, row in enumerate(bars)}
            draw_lanes(ax, lanes, 1.01 * end, gap=0.15)
            parts.append(f"{TITLES[order]}: {seconds:.2f} s")
        axes[-1].set_xlabel("time of a step, predicted for Llama 7B on 64 GPUs")
        describe(figure, "a step of a pipeline of eight stages, as a staircase and mended", parts)
    return figure
