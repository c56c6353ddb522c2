"""The space-time diagram of a trace: a lane for each rank, bars for what it did, an arrow for each message.

Called by `Trace.plot`. Runs in the notebook's process. Of the axes, x and y are in pixels, y downwards.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby
from math import floor, log10
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from distlab.plotting.cells import text_width
from distlab.plotting.style import (
    BACKWARD,
    COMPUTING,
    FAINT,
    FORWARD,
    HAZE,
    INK,
    OPTIMIZER,
    SERVING,
    TRAVELLING,
    curve_color,
    new_figure,
    rank_color,
    style,
    text_color,
)
from distlab.plotting.timeline_layout import ROOM, WIDE, Arrow, Scene, compose, remarks
from distlab.plotting.units import format_bytes
from distlab.traces.events import Collective, Event, Message

Place = tuple[float, float, float, float]  # of a text: left, top, right, bottom
LEFT, RIGHT, FOOT = 71, 19, 48  # pixels beside the axes, and below for the axis of time
LINE, ROW = 15, 20  # heights of a note and of a row of the legend
MARGIN = 10  # left of head and legend
DPI = 100
TEXT, SMALL = 9.5, 8.5  # font sizes in points
WIDE_ENOUGH, LEGIBLE = 8, 18  # pixels of a bar with an edge or a hatch, and of one with words
LOW = 12  # pixels of the height of one with words
FLAT = 2.5  # of an arrow with its label above it, pixels across for each pixel down
MOST_LABELS = 8  # arrows that have their bytes beside them although all messages are of one size
LOST = "#D4443C"
# by look of a bar, from the lowest to the highest: its fill, and what the legend calls it
LOOKS = {
    "compute": (COMPUTING, "computing"),
    "forward": (FORWARD, "forward"),
    "backward": (BACKWARD, "backward"),
    "optimizer": (OPTIMIZER, "optimizer"),
    "serve": (SERVING, "serving a remote call"),
    "move": (TRAVELLING, "communicating"),
    "wait": (FAINT, "waiting for a partner"),
}
DOTS = (0, (1, 1.6))
WAITING = {"edgecolor": INK, "hatch": "////"}


def space_time(
    ranks: Sequence[int],
    events: Sequence[Event],
    messages: Sequence[Message] = (),
    collectives: Sequence[Collective] = (),
    window: tuple[float, float] | None = None,
    title: str = "",
    notes: Sequence[str] = (),
) -> Figure:
    """Draw what each rank did when, and each message from its sender to its receiver.

    A bar of communication is hatched while a partner that it needs had not come, and full from then on. Calls that do
    not block are thin bars below the others. Where bars or arrows would crowd, they are taken together, and the figure
    says so.

    Runs on: client.

    Args:
        ranks: the lanes, from the top.
        events: what the ranks did, times in seconds.
        messages: between them.
        collectives: marked with a line where their last rank came.
        window: first and last second to draw; all of it without one.
        title: what was traced.
        notes: what has to be said of it.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell.
    """
    scene = compose(ranks, events, messages, collectives, window)
    lines = [line for note in (*notes, *remarks(scene)) for line in textwrap.wrap(note, 102)]
    legend = legend_entries(scene)
    head, lanes = 14 + 22 * bool(title) + LINE * len(lines), scene.bottom + 2 * ROOM
    columns = 4 if len(legend) <= 4 and not any(box.look == "serve" for box in scene.boxes) else 3
    foot = FOOT + ROW * -(-len(legend) // columns)
    wide, high = LEFT + WIDE + RIGHT, head + lanes + foot
    figure = new_figure(wide / DPI, high / DPI)
    with style():
        ax = figure.add_axes((LEFT / wide, foot / high, WIDE / wide, lanes / high))
        draw_axes(ax, scene)
        draw_lanes(ax, scene)
        draw_bars(ax, scene)
        draw_collectives(ax, scene)
        if scene.arrows:
            draw_arrows(ax, scene.arrows)
        taken: list[Place] = []
        draw_lost(ax, scene, taken)
        label_bars(ax, scene, taken)
        label_arrows(ax, scene, taken)
        for y, text, size in ((14, title, 12), (14 + 22 * bool(title), "\n".join(lines), SMALL + 0.5)):
            figure.text(MARGIN / wide, 1 - (y - 7) / high, text, fontsize=size, va="top", parse_math=False)
        place = {"loc": "lower left", "bbox_to_anchor": (0, 0), "borderaxespad": 0, "frameon": False}
        figure.legend(handles=legend, ncols=columns, fontsize=TEXT, handlelength=1.6, columnspacing=1.2, **place)
    return figure


def draw_axes(ax: Axes, scene: Scene) -> None:
    """The axis of time."""
    first, last = (1e3 * time for time in scene.view)
    times = MaxNLocator(8, steps=(1, 2, 5, 10)).tick_values(first, last)
    digits = max(0, -floor(log10(times[1] - times[0]) + 1e-9))
    times = [time for time in times if first <= time <= last]
    ax.set(xlim=(0, WIDE), ylim=(scene.bottom + ROOM, -ROOM), yticks=[])
    ax.set_xticks([scene.x(time / 1e3) for time in times], [f"{time:.{digits}f}" for time in times], fontsize=TEXT)
    ax.set_xlabel("time (ms)", fontsize=TEXT)
    ax.spines["left"].set_visible(False)


def draw_lanes(ax: Axes, scene: Scene) -> None:
    """A band in each rank's colour, with its name at the left."""
    for rank, lane in scene.lanes.items():
        look = {"facecolor": rank_color(rank), "edgecolor": "none"}
        top, height = lane.top - 2, lane.bottom - lane.top + 4
        ax.add_patch(Rectangle((0, top), WIDE, height, alpha=HAZE, zorder=0.5, **look))
        ax.add_patch(Rectangle((-5, top), 5, height, clip_on=False, **look))
        ax.text(-9, (lane.top + lane.under) / 2, f"rank {rank}", fontsize=TEXT + 1, ha="right", va="center_baseline")


def draw_bars(ax: Axes, scene: Scene) -> None:
    """All rectangles, look by look; communication is above computation."""
    for order, (look, (color, _)) in enumerate(LOOKS.items()):
        edge = {"linewidth": 0.7, **(WAITING if look == "wait" else {"edgecolor": "#FFFFFF"})}
        for fits, outline in ((True, edge), (False, {"linewidth": 0, "antialiased": False})):
            boxes = [box for box in scene.boxes if box.look == look and (box.width >= WIDE_ENOUGH) == fits]
            corners = [[(b.left, b.top), (b.right, b.top), (b.right, b.bottom), (b.left, b.bottom)] for b in boxes]
            ax.add_collection(PolyCollection(corners, facecolor=color, zorder=2 + order / 10, **outline))


def draw_collectives(ax: Axes, scene: Scene) -> None:
    """A line through the group's lanes where its last rank came to a collective."""
    for collective in scene.collectives:
        x, lanes = scene.x(collective.came), [scene.lanes[rank] for rank in collective.group]
        first, last = min(lane.top for lane in lanes), max(lane.under for lane in lanes)
        ax.plot([x, x], [first - 4, last + 4], color=INK, linewidth=1, linestyle=DOTS, zorder=4)


def draw_arrows(ax: Axes, arrows: Sequence[Arrow]) -> None:
    """Each arrow in the colour of the rank that sends."""
    tails, heads = np.array([arrow.tail for arrow in arrows]), np.array([arrow.head for arrow in arrows])
    look = {"units": "dots", "width": 1.6, "headwidth": 5, "headlength": 6, "headaxislength": 6, "zorder": 6}
    colors = [curve_color(arrow.src) for arrow in arrows]
    scale = {"angles": "xy", "scale_units": "xy", "scale": 1}
    ax.quiver(*tails.T, *(heads - tails).T, color=colors, minlength=0, **scale, **look)


def legend_entries(scene: Scene) -> list[Patch | Line2D]:
    """What is drawn and nothing else, each with its words."""
    looks = {box.look for box in scene.boxes}
    entries: list[Patch | Line2D] = [
        Patch(facecolor=color, label=words, **(WAITING if look == "wait" else {}))
        for look, (color, words) in LOOKS.items()
        if look in looks
    ]
    lines = (
        (
            "in flight, not blocking",
            any(not event.blocking and event.kind != "serve" for event in scene.spans),
            LOOKS["move"][0],
            {"lw": 4},
        ),
        ("message, coloured by sender", scene.arrows, curve_color(0), {"lw": 1.4, "marker": ">", "ms": 5}),
        ("everybody has come", scene.collectives, INK, {"lw": 1, "ls": DOTS}),
        ("without a partner", scene.lost, LOST, {"lw": 0, "marker": "x", "mew": 2}),
    )
    return entries + [Line2D([], [], color=color, label=words, **look) for words, there, color, look in lines if there]


# --- words ---


def write(ax: Axes, taken: list[Place], x: float, y: float, text: str, color: str, **look: Any) -> bool:
    """Write a text at the middle of its height, if it keeps clear of those before it and of the axes' edges.

    Args:
        taken: what the others take up. look: matplotlib's text options; without them small, and from x to the right.

    Returns:
        Whether there was room for it.
    """
    look = {"fontsize": SMALL, "ha": "left", "va": "center_baseline", "zorder": 9, "parse_math": False, **look}
    wide, half = text_width(text, look["fontsize"]) * DPI, look["fontsize"] * 1.25 / 72 * DPI / 2
    left = x - wide * {"left": 0, "center": 0.5, "right": 1}[look["ha"]]
    if left < 2 or left + wide > WIDE - 2:
        return False
    left, upper, right, lower = place = (left - 2, y - half, left + wide + 2, y + half)
    if any(a < right and left < c and b < lower and upper < d for a, b, c, d in taken):
        return False
    taken.append(place)
    ax.text(x, y, text, color=color, **look)
    return True


def draw_lost(ax: Axes, scene: Scene, taken: list[Place]) -> None:
    """A cross beside a send that nobody received or a recv that nothing came for, on the side of the partner."""
    crosses = []
    for message in scene.lost:
        event, partner = (message.send, message.dst) if message.send else (message.recv, message.src)
        lane = scene.lanes[event.rank]
        above = partner in scene.lanes and scene.lanes[partner].top < lane.top
        x, y = max(scene.x(event.start), 0) + 8, lane.top - 9 if above else lane.bottom + 9
        ax.plot(x, y, "x", markersize=6, markeredgewidth=2, color=LOST, zorder=7, clip_on=False)
        taken.append((x - 5, y - 7, x + 5, y + 7))
        who = "nobody" if partner is None else f"rank {partner}"
        crosses.append((x, y, f"{who} never received it" if message.send else f"{who} never sent it"))
    for x, y, text in crosses:
        write(ax, taken, x + 9, y, text, LOST) or write(ax, taken, x - 9, y, text, LOST, ha="right")


def label_bars(ax: Axes, scene: Scene, taken: list[Place]) -> None:
    """The name of each call in its bar, where it fits, with the partner or the bytes where that fits too."""
    for event, boxes in groupby(scene.boxes, key=lambda box: box.event):
        box = max(boxes, key=lambda box: box.width)
        if event is None or box.width < LEGIBLE or box.bottom - box.top < LOW:
            continue
        size = TEXT if event.blocking else SMALL
        text = next((text for text in texts_of(event) if text_width(text, size) * DPI <= box.width - 6), "")
        fill = LOOKS[box.look][0]
        # no hatch behind the words
        look = {"bbox": {"facecolor": fill, "edgecolor": "none", "pad": 1.2}} if box.look == "wait" else {}
        if text:
            middle = (box.left + box.right) / 2, (box.top + box.bottom) / 2
            write(ax, taken, *middle, text, text_color(fill), fontsize=size, ha="center", **look)


def texts_of(event: Event) -> list[str]:
    """What may stand in the bar of an event, the longest first."""
    if event.kind == "wait":
        return [f"wait for {event.op}", "wait"]
    if event.kind == "collective" and event.num_bytes:
        return [f"{event.op} {format_bytes(event.num_bytes)}", event.op]
    if event.kind in ("remote", "serve") and event.peer is not None:
        return [f"{event.op} {'→' if event.kind == 'remote' else 'for'} {event.peer}", event.op, event.op.split()[-1]]
    if event.kind in ("send", "recv") and event.peer is not None:
        return [f"{event.op} {'→' if event.kind == 'send' else '←'} {event.peer}", event.op]
    return [event.op]


def label_arrows(ax: Axes, scene: Scene, taken: list[Place]) -> None:
    """The bytes of each message beside its arrow, or how many messages it stands for, where there is room."""
    single = all(len(arrow.sizes) == 1 for arrow in scene.arrows)
    if single and len(scene.sizes) == 1 and len(scene.arrows) > MOST_LABELS:
        return
    for arrow in scene.arrows:
        across, down = arrow.head[0] - arrow.tail[0], arrow.head[1] - arrow.tail[1]
        lane = scene.lanes[arrow.src]
        y = lane.bottom + lane.gap / 2 if down > 0 else lane.top - lane.gap / 2  # in the room beside its lane
        x = arrow.tail[0] + (y - arrow.tail[1]) / down * across
        flat = abs(across) > FLAT * abs(down)
        if arrow.sizes == (None,):
            continue
        text = format_bytes(arrow.sizes[0]) if len(arrow.sizes) == 1 else f"×{len(arrow.sizes)}"
        place = (x, y - 8) if flat else (x + 6, y)
        write(ax, taken, *place, text, curve_color(arrow.src), ha="center" if flat else "left")
