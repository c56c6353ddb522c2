"""The words of a space-time diagram: what stands in bars and beside arrows, its head and its legend.

Called by `timelines`. Runs in the notebook's process. Of the axes, x is in milliseconds and y in pixels, downwards.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from distlab.plotting.lanes import RANGE, Lane, parts
from distlab.plotting.marks import DOTS, LOOKS, LOST
from distlab.plotting.scenes import MOST_MARKS, WIDE, Scene, sizes_of
from distlab.plotting.style import INK, curve_color, text_color
from distlab.plotting.units import format_bytes
from distlab.plotting.words import SMALL, TEXT, Words, text_pixels
from distlab.trace.events import COMPUTING, Event, Message

LINE, ROW = 15, 20  # heights of a note and of a row of the legend
MARGIN, SWATCH, SPACE = 10, 26, 16  # left of head and legend; from a swatch to its words, and to the next one
MEANING = {"compute": "computing", "move": "communicating", "wait": "waiting for a partner"}
FLAT = 2.5  # of an arrow with its label above it, pixels across for each pixel down
LEGIBLE = 13  # pixels of a row with words in it
MOST_LABELS = 8  # arrows that have their bytes beside them although all messages are of one size


def draw_lost(ax: Axes, scene: Scene, words: Words) -> None:
    """A cross beside a send that nobody received or a recv that nothing came for, on the side of the partner."""
    places = {rank: place for place, rank in enumerate(scene.lanes)}
    crosses = []
    for message in scene.lost:
        event, partner = (message.send, message.dst) if message.send else (message.recv, message.src)
        lane, color = scene.lanes[event.rank], LOST if message.traced else INK
        down = places.get(partner, -1) > places[event.rank]
        x = max(scene.x(event.start), 0) + 8
        ends = (lane.bottom + 2, lane.bottom + 9) if down else (lane.top - 2, lane.top - 9)
        points = [scene.point(x, y) for y in ends]
        ax.plot(*zip(*points, strict=True), color=color, linewidth=1.6, zorder=6)
        ax.plot(*points[1], marker="x", markersize=6, markeredgewidth=2, color=color, zorder=7)
        words.keep_clear(x - 5, ends[1], 10)
        crosses.append((x, ends[1], _lament(message), color))
    for x, y, text, color in crosses:
        if not words.write(x + 9, y, text, color):
            words.write(x - 9, y, text, color, ha="right")


def _lament(message: Message) -> str:
    if not message.traced:
        return f"rank {message.dst if message.send else message.src} was not traced"
    if message.send:
        return f"rank {message.dst} never received it"
    return f"rank {message.src} never sent it" if message.src is not None else "nobody sent anything"


def label_bars(scene: Scene, words: Words) -> None:
    """The name of each call in its bar, where it fits, with the partner or the bytes where that fits too."""
    for lane in scene.lanes.values():
        for event in lane.ranges:
            _label_range(scene, words, lane, event)
        rows = [(lane.bars, lane.bar_span, TEXT)]
        if not lane.crowd and lane.sizes.row >= LEGIBLE:
            rows += [(row, lane.row_span(place), SMALL) for place, row in enumerate(lane.rows)]
        for row, span, size in rows:
            for event in row:
                _label_bar(scene, words, event, sum(span) / 2, size)


def _label_range(scene: Scene, words: Words, lane: Lane, event: Event) -> None:
    left, right = max(0.0, scene.x(event.start)), min(WIDE, scene.x(event.end))
    points = [scene.point(x, lane.top - 4) for x in (left, right)]
    words.ax.plot(*zip(*points, strict=True), color=INK, linewidth=1.4, solid_capstyle="butt", zorder=3)
    if right - left > 20:
        words.write(left, lane.top - RANGE + 4, event.op, INK, SMALL)


def _label_bar(scene: Scene, words: Words, event: Event, y: float, size: float) -> None:
    pieces = [(look, max(0.0, scene.x(a)), min(float(WIDE), scene.x(b))) for look, a, b in parts(event)]
    look, left, right = max(pieces, key=lambda piece: piece[2] - piece[1])
    if right - left < 18:
        return
    for text in texts_of(event):
        if text_pixels(text, size) + 6 <= right - left:
            color, box = text_color(LOOKS[look]), LOOKS[look] if look == "wait" else ""
            words.write((left + right) / 2, y, text, color, size, ha="center", box=box)
            return


def texts_of(event: Event) -> list[str]:
    """What may stand in the bar of an event, the longest first."""
    if event.kind in COMPUTING:
        return [event.op]
    if event.kind == "wait":
        return [f"wait for {event.op}", "wait"]
    if event.kind == "collective":
        sized = [f"{event.op} {format_bytes(event.num_bytes)}"] if event.num_bytes else []
        return [*sized, event.op]
    arrow = "→" if event.kind == "send" else "←"
    return ([] if event.peer is None else [f"{event.op} {arrow} {event.peer}"]) + [event.op]


def label_arrows(scene: Scene, words: Words) -> None:
    """The bytes of each message beside its arrow, or how many messages it stands for, where there is room."""
    if len(sizes_of(scene)) == 1 and len(scene.arrows) > MOST_LABELS and all(a.count == 1 for a in scene.arrows):
        return
    bottoms = {rank: lane.bottom for rank, lane in scene.lanes.items()}
    tops = {rank: lane.top for rank, lane in scene.lanes.items()}
    ranks = list(scene.lanes)
    for arrow in scene.arrows:
        place = ranks.index(arrow.src)
        down = arrow.head > arrow.tail
        # in the room between the sender's lane and the next one
        upper, lower = (place, place + 1) if down else (place - 1, place)
        y = (bottoms[ranks[upper]] + tops[ranks[lower]]) / 2
        share = (y - arrow.tail) / (arrow.head - arrow.tail)
        x = scene.x(arrow.left + share * (arrow.arrived - arrow.left))
        flat = abs(scene.x(arrow.arrived) - scene.x(arrow.left)) > FLAT * abs(arrow.head - arrow.tail)
        text = format_bytes(arrow.sizes[0]) if arrow.count == 1 else f"×{arrow.count}"
        place = (x, y - 8) if flat else (x + 6, y)
        words.write(*place, text, curve_color(arrow.src), SMALL, ha="center" if flat else "left")


def write_head(figure: Figure, title: str, lines: Sequence[str]) -> None:
    """The title, and the notes below it."""
    wide, high = figure.bbox.width, figure.bbox.height
    y = 16
    if title:
        figure.text(MARGIN / wide, 1 - y / high, title, fontsize=12, va="center_baseline", parse_math=False)
        y += 21
    for line in lines:
        look = {"fontsize": SMALL + 0.5, "color": INK, "va": "center_baseline", "parse_math": False}
        figure.text(MARGIN / wide, 1 - y / high, line, **look)
        y += LINE


def legend_rows(scene: Scene) -> list[list[tuple[str, str]]]:
    """What the legend explains, as (look, words), in rows that are not wider than the axes."""
    entries = [(look, MEANING.get(look, look)) for look in LOOKS if scene.boxes.get(look)]
    if any(lane.rows for lane in scene.lanes.values()):
        entries.append(("flight", "in flight, not blocking"))
    if scene.arrows:
        entries.append(("arrow", "message, coloured by sender"))
    if scene.collectives and len(scene.collectives) <= MOST_MARKS:
        entries.append(("mark", "everybody has come"))
    if any(message.traced for message in scene.lost):
        entries.append(("lost", "without a partner"))
    if scene.failed:
        entries.append(("failed", "raised an error"))
    rows: list[list[tuple[str, str]]] = [[]]
    width = 0.0
    for entry in entries:
        wide = SWATCH + text_pixels(entry[1], TEXT) + SPACE
        if rows[-1] and width + wide > WIDE + SWATCH:
            rows.append([])
            width = 0.0
        rows[-1].append(entry)
        width += wide
    return rows


def draw_legend(figure: Figure, rows: Sequence[Sequence[tuple[str, str]]]) -> None:
    """The legend at the foot of the figure."""
    ax = figure.add_axes((0, 0, 1, (ROW * len(rows) + 4) / figure.bbox.height))
    ax.set(xlim=(0, figure.bbox.width), ylim=(ROW * len(rows) + 4, 0))
    ax.set_axis_off()
    for place, row in enumerate(rows):
        x, y = float(MARGIN), ROW * place + ROW / 2
        for look, text in row:
            _draw_swatch(ax, look, x, y)
            ax.text(x + SWATCH, y, text, fontsize=TEXT, va="center_baseline")
            x += SWATCH + text_pixels(text, TEXT) + SPACE


def _draw_swatch(ax: Axes, look: str, x: float, y: float) -> None:
    if look in LOOKS:
        edge = {"edgecolor": INK, "hatch": "////"} if look == "wait" else {"edgecolor": "none"}
        ax.add_patch(Rectangle((x, y - 6), 20, 12, facecolor=LOOKS[look], linewidth=0.7, **edge))
    elif look == "flight":
        ax.add_patch(Rectangle((x, y - 3), 20, 6, facecolor=LOOKS["move"], edgecolor="none"))
    elif look == "arrow":
        ax.plot([x, x + 13], [y, y], color=curve_color(0), linewidth=1.4)
        ax.plot([x + 16], [y], marker=">", markersize=5, color=curve_color(0))
    elif look == "mark":
        ax.plot([x + 10, x + 10], [y - 8, y + 8], color=INK, linewidth=1, linestyle=DOTS)
    elif look == "failed":
        ax.add_patch(Rectangle((x, y - 6), 20, 12, facecolor="none", edgecolor=LOST, linewidth=1.8))
    else:
        ax.plot([x + 10], [y], marker="x", markersize=6, markeredgewidth=2, color=LOST)
