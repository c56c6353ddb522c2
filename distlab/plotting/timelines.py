"""The space-time diagram of a trace: a lane for each rank, bars for what it did, an arrow for each message.

Called by `Trace.plot` in the notebook's kernel. It is laid out first, since the figure's size depends on that.
Lengths are in pixels from the left, and downwards; times are in seconds.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import floor, log10
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from distlab.plotting.cells import text_width
from distlab.plotting.lanes import LOOKS, Box, draw_band, draw_boxes, outline, without_crowds
from distlab.plotting.style import INK, curve_color, new_figure, rank_color, style
from distlab.plotting.units import format_bytes
from distlab.text import grouped
from distlab.traces.events import Collective, Event, Message, pack

WIDE = 660  # of the axes
LEFT, RIGHT, FOOT = 71, 19, 48  # beside the axes, and below for the axis of time
EDGE = 8  # above the first lane and below the last one
LINE, ROW = 15, 20  # heights of a note and of a row of the legend
MARGIN = 10  # left of the title and the legend
DPI = 100
TEXT, SMALL = 9.5, 8.5  # font sizes in points
MOST_ROWS = 3  # of calls in flight; more are drawn on top of each other in the last one
CROSSINGS, TOGETHER = 24, 10  # messages for each lane before they are taken together, and about as many arrows after
FEW = 5  # columns that the figure does not mention
MOST_MARKS = 48  # collectives that are marked one by one, and messages without a partner
MOST_LABELS = 8  # arrows that have their bytes beside them although all messages are of one size
FLAT = 2.5  # of an arrow with its label above it, pixels across for each pixel down
LOST = "#D4443C"
DOTS = (0, (1, 1.6))

Span = tuple[float, float]  # top and bottom of a bar
Place = tuple[float, float, float, float]  # of a text: left, top, right, bottom


class Arrow(NamedTuple):
    """From `tail` to `head`, x and y each; it stands for messages of rank `src` of `sizes` bytes."""

    src: int
    tail: tuple[float, float]
    head: tuple[float, float]
    sizes: tuple[int, ...]


class Lane(NamedTuple):
    """Where a rank's bars begin and end, and where its calls in flight end."""

    top: float
    under: float
    bottom: float


@dataclass
class Scene:
    """What is to be drawn."""

    view: tuple[float, float]  # first and last second that are seen
    lanes: dict[int, Lane]  # by rank
    gap: float  # between two lanes
    spans: dict[Event, Span]  # of the events that are seen
    lost: list[Message]  # those without a partner
    collectives: list[Collective]  # those to mark
    arrows: list[Arrow] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    columns: int = 0  # that stand for several bars each

    @property
    def sizes(self) -> list[int]:
        """The sizes of the messages that are seen, in bytes."""
        return sorted({size for arrow in self.arrows for size in arrow.sizes if size is not None})

    def x(self, seconds: float) -> float:
        """A time as pixels from the left."""
        return (seconds - self.view[0]) / (self.view[1] - self.view[0]) * WIDE


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
        events, messages, collectives: those of a trace; a collective is marked where its last rank came.
        window: first and last second to draw; all of it without one.
        title, notes: what was traced, and what a reader must know of it.
    """
    scene = compose(ranks, events, messages, collectives, window)
    lines = [line for note in (*notes, *remarks(scene)) for line in textwrap.wrap(note, 102)]
    legend = legend_entries(scene)
    columns = 4 if len(legend) <= 4 and not any(event.kind == "serve" for event in scene.spans) else 3
    head = 14 + 22 * bool(title) + LINE * len(lines)
    foot = FOOT + ROW * -(-len(legend) // columns)
    bottom = max(lane.bottom for lane in scene.lanes.values())
    wide, high = LEFT + WIDE + RIGHT, head + bottom + 2 * EDGE + foot
    figure = new_figure(wide / DPI, high / DPI)
    with style():
        ax = figure.add_axes((LEFT / wide, foot / high, WIDE / wide, (bottom + 2 * EDGE) / high))
        ax.set(xlim=(0, WIDE), ylim=(bottom + EDGE, -EDGE))
        draw_axes(ax, scene)
        draw_boxes(ax, scene.boxes, TEXT)
        draw_collectives(ax, scene)
        draw_arrows(ax, scene.arrows)
        taken: list[Place] = []
        draw_lost(ax, scene, taken)
        label_arrows(ax, scene, taken)
        for y, text, size in ((7, title, 12), (7 + 22 * bool(title), "\n".join(lines), SMALL + 0.5)):
            figure.text(MARGIN / wide, 1 - y / high, text, fontsize=size, va="top", parse_math=False)
        place = {"loc": "lower left", "bbox_to_anchor": (0, 0), "borderaxespad": 0, "frameon": False}
        figure.legend(handles=legend, ncols=columns, fontsize=TEXT, handlelength=1.6, columnspacing=1.2, **place)
    return figure


# --- how it is laid out ---


def compose(
    ranks: Sequence[int],
    events: Sequence[Event],
    messages: Sequence[Message],
    collectives: Sequence[Collective],
    window: tuple[float, float] | None,
) -> Scene:
    """Lay out the lanes, and take together what would crowd."""
    last = max((event.end for event in events), default=1e-3)
    first, last = view = window or (-0.01 * last, 1.01 * last)
    seen = {event: None for event in events if event.rank in ranks and event.end >= first and event.start <= last}
    lost = [m for m in messages if m.traced and not m.matched and (m.send or m.recv) in seen]
    known = [c for c in collectives if len(c.group) > 1 and c.came is not None and {*c.group} <= {*ranks}]
    marked = [c for c in known if first <= c.came <= last]
    scene = Scene(view, *lay_out(ranks, seen), lost[:MOST_MARKS], marked if len(marked) <= MOST_MARKS else [])
    scene.arrows = arrows(scene, [m for m in messages if m.matched and m.send in seen and m.recv in seen])
    bars = (box for event, span in scene.spans.items() for box in boxes_of(scene, event, *span))
    scene.boxes, scene.columns = without_crowds(bars)
    return scene


def lay_out(ranks: Sequence[int], events: Collection[Event]) -> tuple[dict[int, Lane], float, dict[Event, Span]]:
    """A lane for each rank, from the top down, with a gap for arrows: the more there are, the lower they are."""
    bar, row, gap = (30, 15, 34) if len(ranks) <= 4 else (26, 14, 26) if len(ranks) <= 8 else (16, 7, 17)
    lanes, spans, top = {}, {}, 0.0
    for rank in ranks:
        own = [event for event in events if event.rank == rank]
        under = bottom = top + bar
        spans |= dict.fromkeys((event for event in own if event.blocking), (top, under))
        for flying in pack([event for event in own if not event.blocking], MOST_ROWS):
            spans |= dict.fromkeys(flying, (bottom + 2, bottom + row))
            bottom += row
        lanes[rank] = Lane(top, under, bottom)
        top = bottom + gap
    return lanes, gap, spans


def boxes_of(scene: Scene, event: Event, top: float, bottom: float) -> list[Box]:
    """The parts of an event that are seen; the widest one has its texts."""
    boxes = []
    for what, start, end in event.parts:
        left, right = max(0.0, scene.x(start)), min(float(WIDE), scene.x(end))
        if right >= left:
            boxes.append(Box(LOOKS[what], left, right, top, bottom))
    widest = max(boxes, key=lambda box: box.right - box.left, default=None)
    return [box._replace(texts=texts_of(event)) if box is widest else box for box in boxes]


def texts_of(event: Event) -> list[str]:
    """What may be written in the bar of an event, the longest first."""
    if event.kind == "wait":
        return [f"wait for {event.op}", "wait"]
    if event.kind == "collective" and event.num_bytes:
        return [f"{event.op} {format_bytes(event.num_bytes)}", event.op]
    signs = {"send": "→", "recv": "←", "remote": "→", "serve": "for"}
    if event.kind in signs and event.peer is not None:
        return [f"{event.op} {signs[event.kind]} {event.peer}", event.op, event.op.split()[-1]]
    return [event.op]


def arrows(scene: Scene, messages: Sequence[Message]) -> list[Arrow]:
    """An arrow for each message of the view, or for several of the same two ranks that left close to each other."""
    seen = [m for m in messages if m.src != m.dst and m.arrived >= scene.view[0] and m.left <= scene.view[1]]
    groups = [[message] for message in seen]
    if len(seen) > CROSSINGS * len(scene.lanes):
        # as many slices of time as leave about as many arrows as the lanes can bear
        slices = TOGETHER * len(scene.lanes) // len({(m.src, m.dst) for m in seen}) or 1
        timed = ((min(slices - 1, max(0, int(scene.x(m.left) / WIDE * slices))), m) for m in seen)
        groups = grouped(((m.src, m.dst, when), m) for when, m in timed).values()
    return [arrow(scene, together) for together in groups]


def arrow(scene: Scene, messages: Sequence[Message]) -> Arrow:
    """One arrow, that of the message in the middle: from the sender's bar to the edge of the receiver's."""
    one = messages[len(messages) // 2]
    upper, lower = scene.spans[one.recv]
    edge = upper if scene.lanes[one.src].top < scene.lanes[one.dst].top else lower
    tail, head = (scene.x(one.left), sum(scene.spans[one.send]) / 2), (scene.x(one.arrived), edge)
    return Arrow(one.src, tail, head, tuple(message.num_bytes for message in messages))


def remarks(scene: Scene) -> list[str]:
    """What a reader must know of the figure: sizes of messages, and what was taken together."""
    words, counts, sizes = [], [len(arrow.sizes) for arrow in scene.arrows], [*map(format_bytes, scene.sizes)]
    if sizes:
        words.append(f"Each message is {sizes[0]}." if len(sizes) == 1 else f"Messages of {sizes[0]} to {sizes[-1]}.")
    if sum(counts) > len(counts):
        drawn = f"{sum(counts):,} messages are drawn as {len(counts)} arrows"
        words.append(f"{drawn}, of which one stands for up to {max(counts)}.")
    if scene.columns >= FEW:
        words.append("Where bars would be too narrow, columns show what share of the time went where.")
    return [" ".join(words)] if words else []


# --- how it is drawn ---


def draw_axes(ax: Axes, scene: Scene) -> None:
    """The axis of time, and a lane in each rank's colour with its name at the left."""
    first, last = (1e3 * time for time in scene.view)
    times = MaxNLocator(8, steps=(1, 2, 5, 10)).tick_values(first, last)
    digits = max(0, -floor(log10(times[1] - times[0]) + 1e-9))
    times = [time for time in times if first <= time <= last]
    ax.set_xticks([scene.x(time / 1e3) for time in times], [f"{time:.{digits}f}" for time in times], fontsize=TEXT)
    ax.set_xlabel("time (ms)", fontsize=TEXT)
    ax.spines["left"].set_visible(False)
    ax.grid(visible=False, axis="y")
    middles = [(lane.top + lane.under) / 2 for lane in scene.lanes.values()]
    ax.set_yticks(middles, [f"rank {rank}" for rank in scene.lanes], fontsize=TEXT + 1)
    ax.tick_params(axis="y", length=0)
    for rank, lane in scene.lanes.items():
        draw_band(ax, lane.top - 2, lane.bottom + 2, rank_color(rank))


def draw_collectives(ax: Axes, scene: Scene) -> None:
    """A line through the group's lanes where its last rank came to a collective."""
    for collective in scene.collectives:
        x, lanes = scene.x(collective.came), [scene.lanes[rank] for rank in collective.group]
        first, last = min(lane.top for lane in lanes), max(lane.under for lane in lanes)
        ax.plot([x, x], [first - 4, last + 4], color=INK, linewidth=1, linestyle=DOTS, zorder=4)


def draw_arrows(ax: Axes, arrows: Sequence[Arrow]) -> None:
    """Each arrow in the colour of the rank that sends."""
    if arrows:
        tails, heads = np.array([arrow.tail for arrow in arrows]), np.array([arrow.head for arrow in arrows])
        look = {"units": "dots", "width": 1.6, "headwidth": 5, "headlength": 6, "headaxislength": 6, "zorder": 6}
        colors = [curve_color(arrow.src) for arrow in arrows]
        scale = {"angles": "xy", "scale_units": "xy", "scale": 1}
        ax.quiver(*tails.T, *(heads - tails).T, color=colors, minlength=0, **scale, **look)


def legend_entries(scene: Scene) -> list[Patch | Line2D]:
    """What is drawn and nothing else, each with its words."""
    seen = {box.look for box in scene.boxes}
    looks = [look for look in LOOKS.values() if look in seen]
    flying = any(not event.blocking and event.kind != "serve" for event in scene.spans)
    lines = (
        ("in flight, not blocking", flying, LOOKS["move"].fill, {"lw": 4}),
        ("message, coloured by sender", scene.arrows, curve_color(0), {"lw": 1.4, "marker": ">", "ms": 5}),
        ("everybody has come", scene.collectives, INK, {"lw": 1, "ls": DOTS}),
        ("without a partner", scene.lost, LOST, {"lw": 0, "marker": "x", "mew": 2}),
    )
    entries = [Patch(facecolor=look.fill, label=look.words, **outline(look)) for look in looks]
    return entries + [Line2D([], [], color=color, label=words, **look) for words, there, color, look in lines if there]


# --- words beside the bars ---


def write(ax: Axes, taken: list[Place], x: float, y: float, text: str, color: str, ha: str = "left") -> bool:
    """Write a text at the middle of its height, if it keeps clear of others and of the edges; whether it does."""
    wide, half = text_width(text, SMALL) * DPI, SMALL * 1.25 / 72 * DPI / 2
    left = x - wide * {"left": 0, "center": 0.5, "right": 1}[ha]
    left, upper, right, lower = place = (left - 2, y - half, left + wide + 2, y + half)
    if left < 0 or right > WIDE or any(a < right and left < c and b < lower and upper < d for a, b, c, d in taken):
        return False
    taken.append(place)
    look = {"fontsize": SMALL, "ha": ha, "va": "center_baseline", "zorder": 9, "parse_math": False}
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
        write(ax, taken, x + 9, y, text, LOST) or write(ax, taken, x - 9, y, text, LOST, "right")


def label_arrows(ax: Axes, scene: Scene, taken: list[Place]) -> None:
    """The bytes of each message beside its arrow, or how many messages it stands for, where there is space."""
    single = all(len(arrow.sizes) == 1 for arrow in scene.arrows)
    if single and len(scene.sizes) == 1 and len(scene.arrows) > MOST_LABELS:
        return
    for arrow in scene.arrows:
        if arrow.sizes == (None,):
            continue
        across, down = arrow.head[0] - arrow.tail[0], arrow.head[1] - arrow.tail[1]
        lane = scene.lanes[arrow.src]
        y = lane.bottom + scene.gap / 2 if down > 0 else lane.top - scene.gap / 2  # between its lane and the next one
        x = arrow.tail[0] + (y - arrow.tail[1]) / down * across
        flat = abs(across) > FLAT * abs(down)
        text = format_bytes(arrow.sizes[0]) if len(arrow.sizes) == 1 else f"×{len(arrow.sizes)}"
        place = (x, y - 8) if flat else (x + 6, y)
        write(ax, taken, *place, text, curve_color(arrow.src), "center" if flat else "left")
