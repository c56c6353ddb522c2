"""Lab 08: torchrun and its ranks on a time axis.

The notebooks call it through `distlab_course.figures`, in their kernel. Times are in seconds.
"""

import re
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distlab.plotting.axes import new_panels
from distlab.plotting.bars import Bar, Look, draw_lanes, height_of
from distlab.plotting.describing import describe, of_lanes
from distlab.plotting.style import INK, MIXED, NAME_SIZE, rank_color

NEAR = 0.08  # of the axis: ticks that have one text
# rank, or None for torchrun; when it began and ended
Life = tuple[int | None, float, float]


def restarts(lives: Sequence[Life], lines: Sequence[tuple[float, str]], title: str = "") -> Figure:
    """Draw when torchrun and its ranks were there, and when rank 0 had done an epoch.

    Args:
        lives: rank, begin and end of each process.
        lines: (time, text) of what rank 0 printed: "epoch 3: ..." marks epoch 3.
        title: what was watched.
    """
    zero = min(begin for _, begin, _ in lives)
    end = max(end for _, _, end in lives) - zero
    ranks = sorted({rank for rank, _, _ in lives if rank is not None})
    lanes: dict[str, list[Bar]] = {"torchrun": []}
    lanes |= {f"rank {rank}": [] for rank in ranks}
    for rank, begin, stop in sorted(lives, key=lambda life: life[1]):
        name = "torchrun"
        look = Look(MIXED)
        words = "starts the ranks, and watches them"
        if rank is not None:
            name = f"rank {rank}"
            look = Look(rank_color(rank))
            words = f"attempt {len(lanes[name])}"
        lanes[name].append(Bar(begin - zero, stop - zero, look, (words,)))
    lanes["epochs done"] = []
    bands = [MIXED, *(rank_color(rank) for rank in ranks)]
    with new_panels(7.2, height_of(lanes) + 0.9, 1, 1, title) as (figure, (ax,)):
        ax.set_xlabel("time")
        tops = draw_lanes(ax, lanes, 1.02 * end, bands=bands)
        _mark_epochs(ax, lines, zero, tops["epochs done"])
        del lanes["epochs done"]
        epochs = [f"epoch {number} at {when - zero:.1f} s" for when, number in _epochs_in(lines)]
        describe(ax, title or "when ranks were there", [*of_lanes(lanes), ", ".join(epochs)])
    return figure


def _epochs_in(lines: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """When which epoch was done, as rank 0 has printed it."""
    found = []
    for when, line in lines:
        done = re.match(r"epoch (\d+)", line)
        if done:
            found.append((when, done[1]))
    return found


def _mark_epochs(ax: Axes, lines: Sequence[tuple[float, str]], zero: float, top: float) -> None:
    """Draw a tick where an epoch was done, and write the numbers below ticks that are close."""
    near = NEAR * ax.get_xlim()[1]
    groups: list[list[tuple[float, str]]] = []  # of ticks
    for when, number in _epochs_in(lines):
        x = when - zero
        ax.plot([x, x], [top, top + 0.35], color=INK, linewidth=1.2)
        if not groups or x - groups[-1][-1][0] > near:
            groups.append([])
        groups[-1].append((x, number))
    for group in groups:
        (first_x, first), (last_x, last) = group[0], group[-1]
        words = first if first == last else f"{first} to {last}"
        middle = (first_x + last_x) / 2
        ax.text(middle, top + 0.7, words, ha="center", va="center", fontsize=NAME_SIZE, color=INK)
