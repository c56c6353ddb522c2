"""The space-time diagram of a trace: lanes for ranks, bars for what they did, arrows for messages.

Called by `Trace.plot`, and by notebooks, on the notebook's kernel. Times are in seconds, heights in
rows of a lane.
"""

import math
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from distlab.plotting.axes import new_panels
from distlab.plotting.bars import (
    ACTIVITY_LOOKS,
    Bar,
    Lanes,
    draw_lanes,
    height_in_rows,
    height_of,
    legend_below,
    used,
)
from distlab.plotting.describing import describe, of_lanes
from distlab.plotting.style import INK, NOTE_SIZE, SMALL_SIZE, line_color, rank_color
from distlab.tables import format_bytes
from distlab.traces.events import Collective, Event, Message, pack_into_rows

ARROW_GAP = 1.1  # from one lane to the next, for arrows
IN_FLIGHT_HEIGHT = 0.55  # height of the bar of a call in flight
MOST_FLIGHT_ROWS = 3  # of calls in flight; more are drawn on top of each other in the last one
MOST_HIGH = 8  # ranks; the lanes of more are half as high
MOST_ARROWS = 200  # messages; of more, none is drawn
MOST_MARKS = 48  # collectives; of more, none is marked
NOTE_LINE = 0.15  # height of a note, in inches
LEGEND_ROW = 0.22  # height of a row of the legend, in inches
LEGEND_COLUMNS = 3  # entries in a row of the legend
LEAST_SEEN = 0.003  # of the window: a bar that is narrower has no colour to explain
DOTS = (0, (1, 1.6))
SIGNS = {"send": "→", "recv": "←", "remote": "→", "serve": "for"}  # between a call and its peer

Window = tuple[float, float]  # the first and last second that are drawn


class Edges(NamedTuple):
    """Where the bar of an event begins and ends, from the top down."""

    upper: float
    lower: float


EdgesByEvent = Mapping[Event, Edges]


class Arrow(NamedTuple):
    """A message of which both halves are drawn, and its two ranks."""

    message: Message
    src: int
    dst: int


class LastArrival(NamedTuple):
    """When the last rank came to a collective, whose events are all drawn."""

    events: Sequence[Event]
    came: float


class Scene(NamedTuple):
    """All that a diagram shows.

    Attributes:
        window: the time that is drawn.
        lanes: the bars of each rank, by its name.
        edges: where events are in their lanes.
        arrows: the messages that are drawn.
        arrivals: what is marked of collectives.
        notes: what a reader must know, below the title.
    """

    window: Window
    lanes: Lanes
    edges: EdgesByEvent
    arrows: Sequence[Arrow]
    arrivals: Sequence[LastArrival]
    notes: Sequence[str]


def space_time(
    ranks: Sequence[int],
    events: Sequence[Event],
    messages: Sequence[Message] = (),
    collectives: Sequence[Collective] = (),
    window: Window | None = None,
    title: str = "",
    notes: Sequence[str] = (),
) -> Figure:
    """Draw what each rank did when, and each message from its sender to its receiver.

    A bar of communication is hatched while a partner that it needs has not arrived, and solid from
    then on; that of a message without a partner is red. Calls that do not block are thin bars below
    the others. If there are too many messages to tell apart, they are not drawn, and the figure
    says so.

    Runs on: the notebook's kernel.

    Args:
        ranks: the lanes, from the top.
        events, messages, collectives: those of a trace; a collective is marked where its last rank
            arrived.
        window: first and last second to draw; None for all.
        title, notes: what was traced, and what a reader must know about it.
    """
    if window is None:
        end = max((event.end for event in events), default=1e-3)
        window = (0.0, 1.01 * end)
    by_rank = {rank: lay_out(_visible(events, rank, window)) for rank in ranks}
    edges: dict[Event, Edges] = {}
    for own in by_rank.values():
        edges.update(own)
    arrows = arrows_of(messages, edges)
    sizes = _sizes_of(arrows)
    have_several_sizes = len(sizes) > 1
    all_notes = [*notes, *_notes_on(arrows, sizes)]
    if len(arrows) > MOST_ARROWS:
        arrows = []
    arrivals = last_arrivals_of(collectives, edges)
    if len(arrivals) > MOST_MARKS:
        arrivals = []
    lost = _without_partner(messages)
    lanes = {}
    for rank, own in by_rank.items():
        lanes[f"rank {rank}"] = bars_of(own, window, lost, have_several_sizes)
    figure = _draw(Scene(window, lanes, edges, arrows, arrivals, all_notes), ranks, title)
    describe(figure, ", ".join([title or "what ranks did", *notes]), of_lanes(lanes))
    return figure


# --- what is drawn ---


def _visible(events: Iterable[Event], rank: int, window: Window) -> list[Event]:
    """The events of a rank of which a part is in the window."""
    first, last = window
    own = [event for event in events if event.rank == rank]
    return [event for event in own if event.end >= first and event.start <= last]


def arrows_of(messages: Iterable[Message], edges: EdgesByEvent) -> list[Arrow]:
    """The messages between two ranks of which both halves have a bar."""
    arrows = []
    for message in messages:
        src = message.src
        send = message.send
        recv = message.recv
        if src is None or send is None or recv is None:
            continue
        if src != message.dst and send in edges and recv in edges:
            arrows.append(Arrow(message, src, message.dst))
    return arrows


def _sizes_of(arrows: Iterable[Arrow]) -> set[int]:
    """The sizes of the messages, in bytes, as far as they are known."""
    sizes = set()
    for arrow in arrows:
        if arrow.message.num_bytes is not None:
            sizes.add(arrow.message.num_bytes)
    return sizes


def last_arrivals_of(collectives: Iterable[Collective], edges: EdgesByEvent) -> list[LastArrival]:
    """The collectives of several ranks whose calls all have a bar, if the last arrival is known."""
    arrivals = []
    for collective in collectives:
        if len(collective.group) < 2 or collective.came is None:
            continue
        if all(event in edges for event in collective.events):
            arrivals.append(LastArrival(collective.events, collective.came))
    return arrivals


def _without_partner(messages: Iterable[Message]) -> set[Event]:
    """The halves of messages that nobody received, and of recvs that got nothing."""
    alone = set()
    for message in messages:
        half = message.send or message.recv
        if message.traced and not message.matched and half is not None:
            alone.add(half)
    return alone


def _notes_on(arrows: Sequence[Arrow], sizes: Collection[int]) -> list[str]:
    """What a reader must know about the arrows: their common size, or why there are none."""
    notes = []
    if len(sizes) == 1:
        (size,) = sizes
        notes.append(f"Each message is {format_bytes(size)}.")
    if len(arrows) > MOST_ARROWS:
        too_many = f"{len(arrows):,} messages are too many for arrows"
        notes.append(f"{too_many}: plot(window=(start, end)) draws a part, in ms.")
    return notes


# --- how it is laid out ---


def lay_out(events: Sequence[Event]) -> EdgesByEvent:
    """Where the bars of a rank's events are in its lane: calls in flight below the others."""
    edges = {event: Edges(0.0, 1.0) for event in events if event.blocking}
    in_flight = [event for event in events if not event.blocking]
    for place, row in enumerate(pack_into_rows(in_flight, MOST_FLIGHT_ROWS)):
        upper = 1 + place * IN_FLIGHT_HEIGHT
        lower = 1 + (place + 1) * IN_FLIGHT_HEIGHT
        for event in row:
            edges[event] = Edges(upper, lower)
    return edges


def bars_of(edges: EdgesByEvent, window: Window, lost: Collection[Event], sized: bool) -> list[Bar]:
    """The visible parts of a rank's events; the widest one of each event has texts.

    Args:
        edges: where the events of the rank are in its lane.
        window: what is visible.
        lost: events of messages without a partner.
        sized: whether messages have several sizes, so that texts name them.

    Returns:
        The bars in the order of `ACTIVITY_LOOKS`, in which one may cover another.
    """
    bars = []
    for event, own_edges in edges.items():
        own = _parts_of(event, own_edges, window, event in lost)
        widest = max(own, key=lambda bar: bar.end - bar.start)
        for bar in own:
            if bar is widest:
                bar = bar._replace(texts=texts_of(event, sized))
            bars.append(bar)
    order = list(ACTIVITY_LOOKS.values())
    return sorted(bars, key=lambda bar: order.index(bar.look))


def _parts_of(event: Event, edges: Edges, window: Window, is_lost: bool) -> list[Bar]:
    """A bar for each part of an event that is in the window, cut where the window ends."""
    first, last = window
    height = edges.lower - edges.upper
    bars = []
    for what, start, end in event.parts:
        if end < first or start > last:
            continue
        look = ACTIVITY_LOOKS["lost" if is_lost else what]
        seen_from = max(start, first)
        seen_until = min(end, last)
        bars.append(Bar(seen_from, seen_until, look, row=edges.upper, height=height))
    return bars


def texts_of(event: Event, sized: bool) -> list[str]:
    """What may be written in the bar of an event, the longest first.

    Args:
        event: a call, or what a rank computed.
        sized: whether messages have several sizes, so that texts name them.
    """
    if event.kind == "wait":
        return [f"wait for {event.op}", "wait"]
    named = event.op
    if event.kind in SIGNS and event.peer is not None:
        named += f" {SIGNS[event.kind]} {event.peer}"
    texts = [named, event.op, event.op.split()[-1]]
    if event.num_bytes and (sized or event.kind == "collective"):
        texts.insert(0, f"{named}, {format_bytes(event.num_bytes)}")
    return texts


def _height(lanes: Lanes, notes: int, entries: int) -> float:
    """The height of the figure in inches, with so many notes and entries of the legend."""
    height = height_of(lanes, ARROW_GAP)
    if len(lanes) > MOST_HIGH:
        height *= 0.5
    legend_rows = math.ceil(entries / LEGEND_COLUMNS)
    return height + (1.2 + NOTE_LINE * notes + LEGEND_ROW * legend_rows)


def _from_the_top(edges: EdgesByEvent, tops: Mapping[str, float]) -> EdgesByEvent:
    """Where the bars of events are from the top of the axes, not of their lanes."""
    moved = {}
    for event, (upper, lower) in edges.items():
        top = tops[f"rank {event.rank}"]
        moved[event] = Edges(top + upper, top + lower)
    return moved


def _edges_of_lane(lanes: Lanes, tops: Mapping[str, float], name: str) -> Edges:
    """Where a lane itself begins and ends."""
    return Edges(tops[name], tops[name] + height_in_rows(lanes[name]))


# --- how it is drawn ---


def _draw(scene: Scene, ranks: Sequence[int], title: str) -> Figure:
    """Draw the scene with lanes in the colours of these ranks."""
    lines: list[str] = []
    for note in scene.notes:
        lines += textwrap.wrap(note, 96)
    looks = used(ACTIVITY_LOOKS.values(), _wide_enough(scene))
    legend = legend_lines(scene)
    entries = len(looks) + len(legend)
    height = _height(scene.lanes, len(lines), entries)
    first, last = scene.window
    bands = [rank_color(rank) for rank in ranks]
    with new_panels(7.5, height, 1, 1, textwrap.fill(title, 76)) as (figure, (ax,)):
        ax.set_title("\n".join(lines), fontsize=NOTE_SIZE, pad=5)
        ax.set_xlabel("time")
        legend_below(ax, looks, legend, LEGEND_COLUMNS)
        tops = draw_lanes(
            ax, scene.lanes, last, bands=bands, size=SMALL_SIZE, start=first, gap=ARROW_GAP
        )
        ax.locator_params("x", nbins=7)
        edges = _from_the_top(scene.edges, tops)
        lanes = {rank: _edges_of_lane(scene.lanes, tops, f"rank {rank}") for rank in ranks}
        draw_arrows(ax, scene.arrows, lanes)
        draw_last_arrivals(ax, scene.arrivals, edges)
    return figure


def _wide_enough(scene: Scene) -> dict[str, list[Bar]]:
    """By lane, the bars whose colour can be seen, which the legend explains."""
    first, last = scene.window
    least = LEAST_SEEN * (last - first)
    return {
        name: [bar for bar in bars if bar.end - bar.start >= least]
        for name, bars in scene.lanes.items()
    }


def legend_lines(scene: Scene) -> list[Line2D]:
    """Legend entries for what is drawn besides bars, as far as it is there."""
    lines = []
    if any(not event.blocking and event.kind != "serve" for event in scene.edges):
        fill = ACTIVITY_LOOKS["move"].fill
        lines.append(Line2D([], [], color=fill, label="in flight, not blocking", lw=4))
    if scene.arrows:
        words = "message, coloured by sender"
        color = line_color(0)
        lines.append(Line2D([], [], color=color, label=words, lw=1.4, marker=">", ms=5))
    if scene.arrivals:
        words = "the last rank has arrived"
        lines.append(Line2D([], [], color=INK, label=words, lw=1, ls=DOTS))
    return lines


def draw_arrows(ax: Axes, arrows: Iterable[Arrow], lanes: Mapping[int, Edges]) -> None:
    """Draw from the edge of the sender's lane to the receiver's, in the colour of the sender.

    In a lane itself an arrow would be cut by the texts of its bars.
    """
    for message, src, dst in arrows:
        sender = lanes[src]
        receiver = lanes[dst]
        points_down = sender < receiver
        arrow = FancyArrowPatch(
            (message.left, sender.lower if points_down else sender.upper),
            (message.arrived, receiver.upper if points_down else receiver.lower),
            color=line_color(src),
            arrowstyle="-|>",
            mutation_scale=9,
            shrinkA=0,
            shrinkB=0,
            linewidth=1.4,
            zorder=6,
        )
        ax.add_artist(arrow)


def draw_last_arrivals(ax: Axes, arrivals: Iterable[LastArrival], edges: EdgesByEvent) -> None:
    """Draw a dotted line across the bars of each collective, where its last rank arrived."""
    for events, came in arrivals:
        top = min(edges[event].upper for event in events) - 0.15
        bottom = max(edges[event].lower for event in events) + 0.15
        ax.vlines(came, top, bottom, color=INK, lw=1, ls=DOTS, zorder=4)
