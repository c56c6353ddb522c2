"""The strokes of a space-time diagram: lanes, bars, arrows, lines where a collective's last rank came.

Called by `timelines`. Runs in the notebook's process. Of the axes, x is in milliseconds and y in pixels, downwards.
"""

from __future__ import annotations

from math import hypot

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from distlab.plotting.lanes import Box
from distlab.plotting.scenes import MOST_MARKS, WIDE, Scene
from distlab.plotting.style import FAINT, HAZE, INK, curve_color, rank_color
from distlab.plotting.words import DPI, TEXT

LOST = "#D4443C"
LOOKS = {
    "compute": "#0072B2",
    "forward": "#8CC4E6",
    "backward": "#7A5CC8",
    "optimizer": "#009E73",
    "move": "#E69F00",
    "wait": FAINT,
}
DOTS = (0, (1, 1.6))
WIDE_ENOUGH = 8  # pixels of a bar with an edge or a hatch


def draw_axes(ax: Axes, scene: Scene) -> None:
    """The axis of time."""
    ax.set(xlim=[1e3 * time for time in scene.view], ylim=(scene.bottom, scene.top))
    ax.set(xlabel="time (ms)", yticks=[])
    ax.spines["left"].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(8, steps=(1, 2, 5, 10)))
    ax.xaxis.get_major_formatter().set_useOffset(False)
    ax.tick_params(axis="x", labelsize=TEXT)
    ax.xaxis.label.set_size(TEXT)


def draw_lanes(ax: Axes, scene: Scene) -> None:
    """A band in each rank's colour, with its name at the left, and the ranges that the program named above it."""
    for rank, lane in scene.lanes.items():
        color, low = rank_color(rank), 1e3 * scene.view[0]
        wide = 1e3 * (scene.view[1] - scene.view[0])
        band = {"facecolor": color, "alpha": HAZE, "edgecolor": "none", "zorder": 0.5}
        ax.add_patch(Rectangle((low, lane.top - 2), wide, lane.bottom - lane.top + 4, **band))
        chip = {"facecolor": color, "edgecolor": "none", "clip_on": False}
        ax.add_patch(
            Rectangle((low - 5 * wide / WIDE, lane.top - 2), 5 * wide / WIDE, lane.bottom - lane.top + 4, **chip)
        )
        place = {"xytext": (-12 * 72 / DPI, 0), "textcoords": "offset points", "ha": "right", "va": "center_baseline"}
        ax.annotate(f"rank {rank}", (low, sum(lane.bar_span) / 2), fontsize=TEXT + 1, annotation_clip=False, **place)


def draw_bars(ax: Axes, scene: Scene) -> None:
    """All rectangles, look by look; communication is above computation."""
    for order, (look, color) in enumerate(LOOKS.items()):
        wide, narrow = [], []
        for box in scene.boxes.get(look, ()):
            (wide if box[1] - box[0] >= WIDE_ENOUGH * scene.pixel else narrow).append(_corners(box))
        edge = {"linewidths": 0.7, "edgecolors": INK if look == "wait" else "#FFFFFF", "zorder": 2 + order / 10}
        ax.add_collection(PolyCollection(wide, facecolors=color, hatch="////" if look == "wait" else None, **edge))
        plain = {"facecolors": color, "linewidths": 0, "antialiaseds": False}
        ax.add_collection(PolyCollection(narrow, **plain, zorder=2 + order / 10))
    outlines = [_corners((event.start, event.end, *scene.lanes[event.rank].bar_span)) for event in scene.failed]
    ax.add_collection(PolyCollection(outlines, facecolors="none", edgecolors=LOST, linewidths=1.8, zorder=3))


def _corners(box: Box) -> list[tuple[float, float]]:
    left, right, top, bottom = box
    return [(1e3 * left, top), (1e3 * right, top), (1e3 * right, bottom), (1e3 * left, bottom)]


def draw_collectives(ax: Axes, scene: Scene) -> None:
    """A line through the group's lanes where its last rank came to a collective."""
    if len(scene.collectives) > MOST_MARKS:
        return
    for collective in scene.collectives:
        members = [scene.lanes[rank] for rank in collective.group]
        came, tops = 1e3 * collective.came, [lane.top for lane in members]
        ends = (min(tops) - 4, max(tops) + members[0].sizes.bar + 4)
        ax.plot([came, came], ends, color=INK, linewidth=1, linestyle=DOTS, zorder=4)
        passed = sum(min(tops) <= lane.top <= max(tops) for lane in scene.lanes.values())
        if passed > len(members):
            ax.plot([came] * len(members), [top - 1 for top in tops], "o", color=INK, markersize=4, zorder=4)


def draw_arrows(ax: Axes, scene: Scene) -> None:
    """Each arrow in the colour of the rank that sends."""
    shafts, heads, colors, widths = [], [], [], []
    for arrow in scene.arrows:
        start, end = (scene.x(arrow.left), arrow.tail), (scene.x(arrow.arrived), arrow.head)
        length = hypot(end[0] - start[0], end[1] - start[1]) or 1.0
        along = ((end[0] - start[0]) / length, (end[1] - start[1]) / length)
        width = 1.2 + 0.25 * (arrow.count - 1).bit_length()
        tip, half = 5 + 1.5 * width, 2.2 + 0.9 * width
        base = (end[0] - along[0] * tip, end[1] - along[1] * tip)
        sides = [(base[0] - along[1] * s * half, base[1] + along[0] * s * half) for s in (1, -1)]
        shafts.append([scene.point(*start), scene.point(*base)])
        heads.append([scene.point(*point) for point in (end, *sides)])
        colors.append(curve_color(arrow.src))
        widths.append(width)
    ax.add_collection(LineCollection(shafts, colors=colors, linewidths=widths, zorder=6), autolim=False)
    ax.add_collection(PolyCollection(heads, facecolors=colors, linewidths=0, zorder=6.5))
