"""What a space-time diagram shows of a trace: laid out, with what would crowd taken together, before it is drawn.

Pure functions, called by `timelines` in the notebook's kernel. Lengths are in pixels from the left, and downwards;
times are in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from distlab.plotting.lanes import LOOKS, Box, Look
from distlab.plotting.units import format_bytes
from distlab.text import grouped
from distlab.traces.events import Collective, Event, Message, pack

WIDE = 660  # of the axes
THIN, COLUMN = 2.0, 5.0  # a bar is drawn at least this wide; narrower ones that crowd share columns of this width
MOST_ROWS = 3  # of calls in flight; more are drawn on top of each other in the last one
CROSSINGS, TOGETHER = 24, 10  # messages for each lane before they are taken together, and about as many arrows after
FEW = 5  # columns that the figure does not mention
MOST_MARKS = 48  # collectives that are marked one by one, and messages without a partner

Spans = dict[Event, tuple[float, float]]  # top and bottom of each bar


class Arrow(NamedTuple):
    """From `tail` to `head`, x and y each; it stands for messages of rank `src` of `sizes` bytes."""

    src: int
    tail: tuple[float, float]
    head: tuple[float, float]
    sizes: tuple[int, ...]


class Lane(NamedTuple):
    """Where a rank's bars begin and end, where its calls in flight end, and how much is free below these."""

    top: float
    under: float
    bottom: float
    gap: float


@dataclass
class Scene:
    """What is to be drawn, computed before the figure, whose size depends on it.

    Attributes:
        view: first and last second that are seen.
        lanes: by rank.
        spans: of the events that are seen.
        lost: messages without a partner.
        collectives: those to mark.
        columns: how many columns stand for several bars each.
    """

    view: tuple[float, float]
    lanes: dict[int, Lane]
    spans: Spans
    lost: list[Message]
    collectives: list[Collective]
    arrows: list[Arrow] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    columns: int = 0

    @property
    def sizes(self) -> list[int]:
        """The sizes of the messages that are seen, in bytes."""
        return sorted({size for arrow in self.arrows for size in arrow.sizes if size is not None})

    def x(self, seconds: float) -> float:
        """A time as pixels from the left."""
        return (seconds - self.view[0]) / (self.view[1] - self.view[0]) * WIDE


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
    marked = [c for c in collectives if len(c.group) > 1 and c.came is not None and {*c.group} <= {*ranks}]
    marked = [c for c in marked if first <= c.came <= last]
    scene = Scene(view, *lay_out(ranks, seen), lost[:MOST_MARKS], marked if len(marked) <= MOST_MARKS else [])
    scene.arrows = arrows(scene, [m for m in messages if m.matched and m.send in seen and m.recv in seen])
    fill(scene)
    return scene


def lay_out(ranks: Sequence[int], events: Collection[Event]) -> tuple[dict[int, Lane], Spans]:
    """A lane for each rank, from the top down, with room between for arrows: the more there are, the lower they are.

    Args:
        events: those that are seen.
    """
    bar, row, gap = (30, 15, 34) if len(ranks) <= 4 else (26, 14, 26) if len(ranks) <= 8 else (16, 7, 17)
    lanes, spans, top = {}, {}, 0.0
    for rank in ranks:
        own = [event for event in events if event.rank == rank]
        under = bottom = top + bar
        spans |= dict.fromkeys((event for event in own if event.blocking), (top, under))
        for flying in pack([event for event in own if not event.blocking], MOST_ROWS):
            spans |= dict.fromkeys(flying, (bottom + 2, bottom + row))
            bottom += row
        lanes[rank] = Lane(top, under, bottom, gap)
        top = bottom + gap
    return lanes, spans


def fill(scene: Scene) -> None:
    """Add the boxes of all bars, those that are higher in `LOOKS` first.

    Bars that are wide enough are drawn as they are. Of the others, one that is alone is drawn a little wider; where
    they crowd, each column of pixels shows what share of its time went where.
    """
    boxes = [box for event, (top, bottom) in scene.spans.items() for box in boxes_of(scene, event, top, bottom)]
    narrow = [box for box in boxes if box.right - box.left < COLUMN]
    scene.boxes = [box for box in boxes if box.right - box.left >= COLUMN]
    for (_, place), crowd in grouped(((box.top, int(box.left / COLUMN)), box) for box in narrow).items():
        if len(crowd) == 1:
            scene.boxes.append(crowd[0]._replace(right=max(crowd[0].right, crowd[0].left + THIN)))
        else:
            scene.columns += 1
            scene.boxes += column(crowd, place * COLUMN)
    scene.boxes.sort(key=lambda box: [*LOOKS.values()].index(box.look))


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


def column(crowd: Sequence[Box], left: float) -> list[Box]:
    """Boxes on top of each other whose heights are the looks' shares of the column's time, from the bottom up."""
    shares: Counter[Look] = Counter()
    for box in crowd:
        shares[box.look] += box.right - box.left
    total = max(shares.total(), COLUMN)
    boxes, bottom = [], crowd[0].bottom
    for look in sorted(shares):
        top = bottom - shares[look] / total * (crowd[0].bottom - crowd[0].top)
        boxes.append(Box(look, left, left + COLUMN, top, bottom))
        bottom = top
    return boxes


def arrows(scene: Scene, messages: Sequence[Message]) -> list[Arrow]:
    """An arrow for each message of the view, or for several of the same two ranks that left close to each other."""
    seen = [m for m in messages if m.src != m.dst and m.arrived >= scene.view[0] and m.left <= scene.view[1]]
    if len(seen) <= CROSSINGS * len(scene.lanes):
        return [arrow(scene, [message]) for message in seen]
    # as many slices of time as leave about as many arrows as the lanes can bear
    slices = TOGETHER * len(scene.lanes) // len({(m.src, m.dst) for m in seen}) or 1
    timed = ((min(slices - 1, max(0, int(scene.x(m.left) / WIDE * slices))), m) for m in seen)
    groups = grouped(((m.src, m.dst, when), m) for when, m in timed)
    return [arrow(scene, together) for together in groups.values()]


def arrow(scene: Scene, messages: Sequence[Message]) -> Arrow:
    """One arrow, that of the message in the middle: from the sender's bar to the edge of the receiver's."""
    one = messages[len(messages) // 2]
    upper, lower = scene.spans[one.recv]
    edge = upper if scene.lanes[one.src].top < scene.lanes[one.dst].top else lower
    tail, head = (scene.x(one.left), sum(scene.spans[one.send]) / 2), (scene.x(one.arrived), edge)
    return Arrow(one.src, tail, head, tuple(message.num_bytes for message in messages))


def remarks(scene: Scene) -> list[str]:
    """What a reader must know of the figure: sizes of messages, and what was taken together."""
    words = []
    counts = [len(arrow.sizes) for arrow in scene.arrows]
    if scene.sizes:
        sizes = [format_bytes(size) for size in scene.sizes]
        words.append(f"Each message is {sizes[0]}." if len(sizes) == 1 else f"Messages of {sizes[0]} to {sizes[-1]}.")
    if sum(counts) > len(counts):
        drawn = f"{sum(counts):,} messages are drawn as {len(counts)} arrows"
        words.append(f"{drawn}, of which one stands for up to {max(counts)}.")
    if scene.columns >= FEW:
        words.append("Where bars would be too narrow, columns show what share of the time went where.")
    return [" ".join(words)] if words else []
