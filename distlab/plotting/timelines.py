"""The space-time diagram of a trace: a lane for each rank, bars for what it did, an arrow for each
message.

Called by `Trace.plot` in the notebook's kernel. Times are in seconds, heights in rows of a lane.
"""

import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from distlab.plotting.axes import new_panels
from distlab.plotting.lanes import LOOKS, Bar, draw_lanes, height_of, legend_below, used
from distlab.plotting.style import INK, line_color, rank_color
from distlab.tables import format_bytes
from distlab.traces.events import Collective, Event, Message, pack

GAP = 1.1  # from one lane to the next, for arrows
FLYING = 0.55  # height of the bar of a call in flight
MOST_ROWS = 3  # of calls in flight; more are drawn on top of each other in the last one
MOST_HIGH = 8  # ranks; the lanes of more are half as high
MOST_ARROWS, MOST_MARKS = 200, 48  # of messages; of collectives
TEXT, NOTE = 9.5, 9  # font sizes in points
LINE, ROW = 0.15, 0.22  # heights of a note and of a row of the legend, in inches
DOTS = (0, (1, 1.6))

# where the bar of an event begins and ends, from the top down
Spans = Mapping[Event, tuple[float, float]]


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
    first, last = window or (0.0, 1.01 * max((event.end for event in events), default=1e-3))
    seen = [event for event in events if event.end >= first and event.start <= last]
    by_rank = {rank: lay_out([event for event in seen if event.rank == rank]) for rank in ranks}
    spans = {event: span for own in by_rank.values() for event, span in own.items()}
    sent = [
        m for m in messages if m.matched and m.src != m.dst and {m.send, m.recv} <= spans.keys()
    ]
    sizes = {m.num_bytes for m in sent} - {None}
    lost = {m.send or m.recv for m in messages if m.traced and not m.matched}
    lanes = {
        f"rank {rank}": bars_of(own, first, last, lost, len(sizes) > 1)
        for rank, own in by_rank.items()
    }
    met = [
        c
        for c in collectives
        if len(c.group) > 1 and c.came is not None and {*c.events} <= spans.keys()
    ]
    met = met if len(met) <= MOST_MARKS else []
    notes = [
        *notes,
        *(f"Each message is {format_bytes(size)}." for size in sizes if len(sizes) == 1),
    ]
    if len(sent) > MOST_ARROWS:
        notes += [
            f"{len(sent):,} messages are too many for arrows: plot(window=(start, end)) draws a part, in ms."
        ]
        sent = []
    lines = [line for note in notes for line in textwrap.wrap(note, 96)]
    looks, legend = used(LOOKS.values(), lanes), legend_lines(spans, sent, met)
    height = height_of(lanes, GAP) * (1 if len(ranks) <= MOST_HIGH else 0.5)
    height += 1.2 + LINE * len(lines) + ROW * -(-len(looks + legend) // 3)
    with new_panels(7.5, height, 1, 1, textwrap.fill(title, 76)) as (figure, (ax,)):
        ax.set_title("\n".join(lines), fontsize=NOTE, pad=5)
        ax.set_xlabel("time")
        legend_below(ax, looks, legend)
        bands = [rank_color(rank) for rank in ranks]
        tops = draw_lanes(ax, lanes, last, bands=bands, size=TEXT, start=first, gap=GAP)
        ax.locator_params("x", nbins=7)
        places = {
            event: tuple(tops[f"rank {event.rank}"] + y for y in span)
            for event, span in spans.items()
        }
        draw_arrows(ax, sent, places)
        for collective in met:
            ends = [y for event in collective.events for y in places[event]]
            ax.vlines(
                collective.came,
                min(ends) - 0.15,
                max(ends) + 0.15,
                color=INK,
                lw=1,
                ls=DOTS,
                zorder=4,
            )
    return figure


# --- how it is laid out ---


def lay_out(events: Sequence[Event]) -> Spans:
    """Where the bars of a rank's events are in its lane: calls in flight below the others."""
    spans = {event: (0.0, 1.0) for event in events if event.blocking}
    for place, row in enumerate(pack([event for event in events if not event.blocking], MOST_ROWS)):
        spans |= dict.fromkeys(row, (1 + place * FLYING, 1 + (place + 1) * FLYING))
    return spans


def bars_of(
    spans: Spans, first: float, last: float, lost: Collection[Event], sized: bool
) -> list[Bar]:
    """The visible parts of a rank's events, in the order of `LOOKS`; the widest one of each event
    has texts.
    """
    bars = []
    for event, (upper, lower) in spans.items():
        own = []
        for what, start, end in event.parts:
            if end >= first and start <= last:
                look = LOOKS["lost" if event in lost else what]
                own.append(Bar(max(start, first), min(end, last), look, (), upper, lower - upper))
        widest = max(own, key=lambda bar: bar.end - bar.start)
        bars += [
            bar._replace(texts=texts_of(event, sized)) if bar is widest else bar for bar in own
        ]
    return sorted(bars, key=lambda bar: [*LOOKS.values()].index(bar.look))


def texts_of(event: Event, sized: bool) -> list[str]:
    """What may be written in the bar of an event, the longest first; `sized` if messages have
    several sizes.
    """
    if event.kind == "wait":
        return [f"wait for {event.op}", "wait"]
    signs = {"send": "→", "recv": "←", "remote": "→", "serve": "for"}
    named = event.op
    if event.kind in signs and event.peer is not None:
        named += f" {signs[event.kind]} {event.peer}"
    texts = [named, event.op, event.op.split()[-1]]
    if event.num_bytes and (sized or event.kind == "collective"):
        texts = [f"{named}, {format_bytes(event.num_bytes)}", *texts]
    return texts


# --- how it is drawn ---


def legend_lines(
    events: Iterable[Event], sent: Sequence[Message], met: Sequence[Collective]
) -> list[Line2D]:
    """Legend entries for what is drawn besides bars, as far as it is there."""
    flying = any(not event.blocking and event.kind != "serve" for event in events)
    lines = (
        ("in flight, not blocking", flying, LOOKS["move"].fill, {"lw": 4}),
        ("message, coloured by sender", sent, line_color(0), {"lw": 1.4, "marker": ">", "ms": 5}),
        ("the last rank has arrived", met, INK, {"lw": 1, "ls": DOTS}),
    )
    return [
        Line2D([], [], color=color, label=words, **look)
        for words, there, color, look in lines
        if there
    ]


def draw_arrows(ax: Axes, sent: Sequence[Message], places: Spans) -> None:
    """From the middle of the sender's bar to the edge of the receiver's, in the colour of the rank
    that sends.
    """
    look = {
        "arrowstyle": "-|>",
        "mutation_scale": 9,
        "shrinkA": 0,
        "shrinkB": 0,
        "linewidth": 1.4,
        "zorder": 6,
    }
    for message in sent:
        upper, lower = places[message.recv]
        edge = upper if places[message.send] < (upper, lower) else lower
        tail, head = (message.left, sum(places[message.send]) / 2), (message.arrived, edge)
        ax.add_artist(FancyArrowPatch(tail, head, color=line_color(message.src), **look))
