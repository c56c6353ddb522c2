"""The schedule of a pipeline: what each rank computed for which micro-batch, and where it was idle.

Called by the notebooks. Runs in the notebook's process. Lengths are in inches, y points down; times are in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from distlab.plotting.axes import even_ticks
from distlab.plotting.cells import text_width
from distlab.plotting.style import BACKWARD, FORWARD, HAZE, OPTIMIZER, new_figure, rank_color, style, text_color
from distlab.text import refuse

# by kind of computing: its fill, and what the legend calls it
KINDS = {
    "F": (FORWARD, "forward"),
    "B": (BACKWARD, "backward"),
    "I": (BACKWARD, "backward, input only"),
    "W": (OPTIMIZER, "backward, weights only"),
}
Action = tuple[str, int, int, float, float]  # kind, stage, micro-batch, begin, end
LEFT, WIDE, RIGHT, HEAD, FOOT, LEGEND = 0.75, 6.0, 0.75, 0.42, 0.3, 0.5
ROW, GAP, SMALL = 0.24, 0.06, 8.5  # heights of a row and between lanes; font size in points


def pipeline(schedules: Mapping[str, Sequence[Sequence[Action]]], simulated: str = "") -> Figure:
    """Draw schedules of pipelines below each other on one scale: a box for each micro-batch, a row for each stage.

    Each title ends with the share of the time, from the first begin to the last end, in which ranks are idle.

    Runs on: client.

    Args:
        schedules: by name and by rank, what the rank computed: the kind ("F" forward, "B" backward, "I" and "W" its
            halves for the input and for the weights), the stage, the micro-batch, begin and end in seconds.
        simulated: on which machines, as `cluster.simulated` says it; "" for measured times.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell.

    Raises:
        ArgumentError: there is no schedule, or one in which nothing was computed.
    """
    if not schedules or not all(any(ranks) for ranks in schedules.values()):
        refuse("schedules", "at least one, in which a rank computes", schedules, 'Give {"GPipe": actions_by_rank}.')
    lanes = {
        name: [sorted({action[1] for action in rank}) or [0] for rank in ranks] for name, ranks in schedules.items()
    }
    heights = [sum(len(stages) * ROW + GAP for stages in lane) for lane in lanes.values()]
    high = sum(heights) + len(heights) * (HEAD + FOOT) + LEGEND
    wide, top = LEFT + WIDE + RIGHT, 0.0
    last = max(idle(ranks)[1] for ranks in schedules.values())
    figure = new_figure(wide, high)
    with style():
        for (name, ranks), height in zip(schedules.items(), heights, strict=True):
            top += HEAD
            ax = figure.add_axes((LEFT / wide, 1 - (top + height) / high, WIDE / wide, height / high))
            ax.set(xlim=(0, 1.01 * last), ylim=(height, 0), yticks=[])
            ax.set_title(f"{name}: idle {idle(ranks)[0]:.0%}", fontsize=11, pad=5)
            ax.spines["left"].set_visible(False)
            even_ticks(ax.xaxis, "s")
            ax.tick_params(labelsize=SMALL)
            draw_lanes(ax, ranks, lanes[name], 1.01 * last)
            top += height + FOOT
        kinds = {action[0] for ranks in schedules.values() for rank in ranks for action in rank}
        shown = {kind: KINDS[kind] for kind in KINDS if kind in kinds}
        edge = {"edgecolor": "#FFFFFF", "linewidth": 0.8}
        handles = [Patch(facecolor=fill, label=words, **edge) for fill, words in shown.values()]
        place = {"loc": "lower left", "bbox_to_anchor": (0.01, 0), "frameon": False}
        title = f"time ({simulated})" if simulated else "time, measured"
        figure.text(LEFT / wide, (LEGEND - 0.07) / high, title, fontsize=9.5, va="center")
        figure.legend(handles=handles, ncols=4, fontsize=9.5, **place)
    return figure


def idle(ranks: Sequence[Sequence[Action]]) -> tuple[float, float]:
    """The share of the time in which ranks are idle, and the seconds from the first begin to the last end."""
    actions = [action for rank in ranks for action in rank]
    seconds = max(action[4] for action in actions) - min(action[3] for action in actions)
    return 1 - sum(end - begin for *_, begin, end in actions) / (len(ranks) * seconds), seconds


def draw_lanes(ax: Axes, ranks: Sequence[Sequence[Action]], lanes: Sequence[Sequence[int]], last: float) -> None:
    """A lane for each rank, in it a row for each of its stages, and a box with a number for each micro-batch."""
    zero, top = min(action[3] for rank in ranks for action in rank), 0.0
    for rank, (actions, stages) in enumerate(zip(ranks, lanes, strict=True)):
        height = len(stages) * ROW
        look = {"edgecolor": "none", "facecolor": rank_color(rank)}
        ax.add_patch(Rectangle((0, top), last, height, alpha=HAZE, **look))
        ax.add_patch(Rectangle((-0.008 * last, top), 0.008 * last, height, clip_on=False, **look))
        words = {"fontsize": 9.5, "va": "center_baseline", "parse_math": False}
        ax.text(-0.015 * last, top + height / 2, f"rank {rank}", ha="right", **words)
        for row, stage in enumerate(stages if len(stages) > 1 else ()):
            ax.text(1.01 * last, top + (row + 0.5) * ROW, f"stage {stage}", **{**words, "fontsize": SMALL})
        for kind, stage, batch, begin, end in actions:
            left, upper, fill = begin - zero, top + stages.index(stage) * ROW, KINDS[kind][0]
            box = Rectangle((left, upper), end - begin, ROW, facecolor=fill, edgecolor="#FFFFFF", linewidth=0.8)
            ax.add_patch(box)
            if text_width(str(batch), SMALL) < 0.8 * (end - begin) / last * WIDE:
                place = left + (end - begin) / 2, upper + ROW / 2
                ax.text(*place, batch, ha="center", color=text_color(fill), **{**words, "fontsize": SMALL})
        top += height + GAP
