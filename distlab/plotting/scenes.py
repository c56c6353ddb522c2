"""What a space-time diagram shows of a trace: laid out, with what would crowd taken together, before it is drawn.

Pure functions, called by `timelines`. Lengths are in pixels, times in seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from distlab.plotting.arrows import Arrow, arrows
from distlab.plotting.lanes import RANGE, Box, Lane, boxes, lay_out
from distlab.plotting.units import format_bytes
from distlab.trace.events import Collective, Event, Message

WIDE = 660  # of the axes
FEW = 5  # columns that the figure does not mention
MOST_MARKS = 48  # collectives that are marked one by one, and messages without a partner


@dataclass
class Scene:
    """What is to be drawn, computed before the figure, whose size depends on it.

    Attributes:
        view: first and last second that are seen. boxes: rectangles by look, of all lanes. columns: how many
            columns there are that stand for several bars.
    """

    view: tuple[float, float]
    lanes: dict[int, Lane]
    arrows: list[Arrow]
    lost: list[Message]
    collectives: list[Collective]
    failed: list[Event]
    boxes: dict[str, list[Box]] = field(default_factory=lambda: defaultdict(list))
    columns: int = 0

    @property
    def pixel(self) -> float:
        """Seconds of a pixel."""
        return (self.view[1] - self.view[0]) / WIDE

    @property
    def top(self) -> float:
        """Of the axes, with room for what is drawn above the first lane."""
        first = next(iter(self.lanes.values()))
        above = any((message.send or message.recv).rank == first.rank for message in self.lost)
        return first.top - (RANGE if first.ranges or above else 0) - 8

    @property
    def bottom(self) -> float:
        """Of the axes, with room for what is drawn below the last lane."""
        last = list(self.lanes.values())[-1]
        below = any((message.send or message.recv).rank == last.rank for message in self.lost)
        return last.bottom + (RANGE if below else 0) + 6

    def x(self, seconds: float) -> float:
        """A time as pixels from the left."""
        return (seconds - self.view[0]) / self.pixel

    def point(self, x: float, y: float) -> tuple[float, float]:
        """Pixels in the coordinates of the axes."""
        return 1e3 * (self.view[0] + x * self.pixel), y


def compose(
    ranks: Sequence[int],
    events: Sequence[Event],
    messages: Sequence[Message],
    collectives: Sequence[Collective],
    window: tuple[float, float] | None,
) -> Scene:
    """Lay out the lanes, and take together what would crowd."""
    last = max((event.end for event in events), default=1e-3)
    view = window or (-0.01 * last, 1.01 * last)
    seen = [event for event in events if event.rank in ranks and event.end >= view[0] and event.start <= view[1]]
    lanes = lay_out(ranks, seen)
    shown = {id(event) for event in seen}
    lost = [m for m in messages if not m.matched and id(m.send or m.recv) in shown]
    lost = [m for m in lost if m.traced][:MOST_MARKS] + [m for m in lost if not m.traced][:FEW]
    collectives = [c for c in collectives if len(c.group) > 1]
    marked = [c for c in collectives if c.came is not None and view[0] <= c.came <= view[1] and {*c.group} <= {*ranks}]
    failed = [event for event in seen if event.failed and event.blocking]
    scene = Scene(view, lanes, arrows(messages, lanes, view), lost, marked, failed)
    for lane in lanes.values():
        rows = [(lane.bars, lane.bar_span)]
        rows += [(row, lane.row_span(place)) for place, row in enumerate(lane.rows)]
        for row, span in rows:
            found, columns = boxes(row, span, view, scene.pixel)
            scene.columns += columns
            for look, rectangles in found.items():
                scene.boxes[look] += rectangles
    return scene


def remarks(scene: Scene) -> list[str]:
    """What the figure has to say of itself: sizes of messages, and what was taken together."""
    said = []
    count = sum(arrow.count for arrow in scene.arrows)
    if count:
        sizes = [format_bytes(size) for size in sizes_of(scene)]
        said.append(f"each message is {sizes[0]}" if len(sizes) == 1 else f"messages of {sizes[0]} to {sizes[-1]}")
    if count > len(scene.arrows):
        most = max(arrow.count for arrow in scene.arrows)
        said.append(f"{count:,} messages are drawn as {len(scene.arrows)} arrows, of which one stands for up to {most}")
    if scene.columns >= FEW:
        said.append("where bars would be too narrow, columns show what share of the time went where")
    crowd = max((lane.crowd for lane in scene.lanes.values()), default=0)
    if crowd:
        said.append(f"up to {crowd} calls of a rank are in flight at once, drawn on top of each other")
    if len(scene.collectives) > MOST_MARKS:
        said.append(f"{len(scene.collectives):,} collectives, too many to mark where their last rank came")
    return [". ".join(text[:1].upper() + text[1:] for text in said) + "."] if said else []


def sizes_of(scene: Scene) -> list[float]:
    """The sizes of the messages that are seen, in bytes."""
    return sorted({size for arrow in scene.arrows for size in arrow.sizes})
