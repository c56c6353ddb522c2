"""The space-time diagram of a trace: a lane for each rank, bars for what it did, an arrow for each message.

Called by `Trace.plot`. Runs in the notebook's process.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.figure import Figure

from distlab.plotting.captions import (
    LINE,
    ROW,
    draw_legend,
    draw_lost,
    label_arrows,
    label_bars,
    legend_rows,
    write_head,
)
from distlab.plotting.marks import draw_arrows, draw_axes, draw_bars, draw_collectives, draw_lanes
from distlab.plotting.scenes import WIDE, compose, remarks
from distlab.plotting.style import new_figure, style
from distlab.plotting.words import DPI, Words
from distlab.trace.events import Collective, Event, Message

LEFT, RIGHT, FOOT = 74, 16, 44  # pixels beside the axes, and below for the axis of time


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
    legend = legend_rows(scene)
    head, foot = 14 + 22 * bool(title) + LINE * len(lines), FOOT + ROW * len(legend)
    height = scene.bottom - scene.top
    size = (LEFT + WIDE + RIGHT, head + height + foot)
    figure = new_figure(size[0] / DPI, size[1] / DPI)
    with style():
        ax = figure.add_axes((LEFT / size[0], foot / size[1], WIDE / size[0], height / size[1]))
        draw_axes(ax, scene)
        draw_lanes(ax, scene)
        draw_bars(ax, scene)
        draw_collectives(ax, scene)
        draw_arrows(ax, scene)
        words = Words(ax, WIDE)
        draw_lost(ax, scene, words)
        label_bars(scene, words)
        label_arrows(scene, words)
        write_head(figure, title, lines)
        draw_legend(figure, legend)
    return figure
