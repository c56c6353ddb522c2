"""Draws figs/*.svg and .png. Called by: make figs.

Every collective, on small integers, for the notebooks: what each rank holds before the call, where
it travels, and what each rank holds after it. The ring all-reduce in space and time, for
docs/course.md. What a comparison has found, for docs/silent_mistakes.md. The pipeline of
staircase.py, for the README. And the maps of maps.py.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from distlab.plotting.canvas import (
    draw_box,
    draw_lane,
    draw_plus,
    draw_text,
    new_canvas,
    text_width,
)
from distlab.plotting.cells import (
    CELL_INSET,
    PANEL_LANE,
    PANEL_PITCH,
    Panels,
    Rows,
    Slot,
    Values,
    draw_panels,
    with_origins,
)
from distlab.plotting.differences import differences_by_step
from distlab.plotting.style import (
    FAINT,
    INK,
    MIXED,
    TEXT_SIZE,
    line_color,
    rank_color,
    style,
    text_color,
)
from distlab.simulated import events
from distlab.simulated.network import Network
from distlab.simulated.simulation import simulate
from distlab.traces import virtual
from distlab.traces.trace import Trace
from distlab_course.algorithms import schedule
from tools import maps
from tools.staircase import staircase

FIGS = Path(__file__).resolve().parent.parent / "figs"
FLOWS = 1.12  # inches between the two panels, with room for arrows
CODE_FONT = "DejaVu Sans Mono"


class Example(NamedTuple):
    """A collective on small integers.

    Attributes:
        call: as the ranks write it.
        before: by rank, what it holds before the call.
        after: by rank, what it holds after the call.
        moved: the ranks that get something.
    """

    call: str
    before: Values
    after: Values
    moved: Sequence[int]


# What distlab.compare finds in the last program of docs/silent_mistakes.md; a test runs it.
VERDICT = (
    "Not the same as one process, on 4 ranks: the step is a multiple of the right one: 0.729 for "
    "every parameter, because in step 1 the learning rate is 0.06561 instead of 0.09."
)
FOUND = {0: 2.1e-7, 1: 0.067, 2: 0.145}
ROUNDING = {0: 6.0e-6, 1: 2.4e-6, 2: 1.9e-6}

RANKS = range(4)
ROW = [1, 2, 3, 4]
ONES = [[1], [2], [3], [4]]
# tens: the rank, ones: the slot
LISTS = [[0, 1, 2, 3], [10, 11, 12, 13], [20, 21, 22, 23], [30, 31, 32, 33]]
COLUMNS = [[0, 10, 20, 30], [1, 11, 21, 31], [2, 12, 22, 32], [3, 13, 23, 33]]
SUMS = [[60], [64], [68], [72]]  # of the columns
FIRST = [[1], [0], [0], [0]]  # what the others hold is overwritten
NO_LISTS = [[]] * 3
# every one, in the order of the course
EXAMPLES = {
    "send_recv": Example(
        "rank 0: dist.send(t, dst=1)\nrank 1: dist.recv(t, src=0)",
        FIRST,
        [[1], [1], [0], [0]],
        [1],
    ),
    "broadcast": Example("dist.broadcast(t, src=0)", FIRST, [[1]] * 4, RANKS),
    "scatter": Example("dist.scatter(t, parts, src=0)", [ROW, *NO_LISTS], ONES, RANKS),
    "gather": Example("dist.gather(t, parts, dst=0)", ONES, [ROW, *NO_LISTS], [0]),
    # what the others hold afterwards is unspecified
    "reduce": Example("dist.reduce(t, dst=0)", ONES, [[10], ["?"], ["?"], ["?"]], [0]),
    "all_reduce": Example("dist.all_reduce(t)", ONES, [[10]] * 4, RANKS),
    "all_gather": Example("dist.all_gather(parts, t)", ONES, [ROW] * 4, RANKS),
    "reduce_scatter": Example("dist.reduce_scatter(t, parts)", LISTS, SUMS, RANKS),
    "all_to_all": Example("dist.all_to_all_single(out, t)", LISTS, COLUMNS, RANKS),
}


class Barrier(NamedTuple):
    """A call in which ranks wait for each other.

    Attributes:
        call: as the ranks write it.
        arrivals: by rank, how far from the left it arrives at the call, in inches; None for never.
        end: what ends the wait.
        afterwards: by rank, what happens then.
        reports: whether the other ranks tell rank 0 that they have arrived.
    """

    call: str
    arrivals: Sequence[float | None]
    end: str
    afterwards: Sequence[str]
    reports: bool


BARRIERS = {
    "barrier": Barrier(
        "dist.barrier()",
        arrivals=[0.72, 1.28, 1.84, 2.4],
        end="the last rank arrives",
        afterwards=["continues"] * 4,
        reports=False,
    ),
    "monitored_barrier": Barrier(
        "dist.monitored_barrier(timeout)",
        arrivals=[0.72, 1.28, None, 1.84],
        end="after the timeout",
        afterwards=["rank 2 missing", "fails", "", "fails"],
        reports=True,
    ),
}
# of a barrier's lanes, from their left: where waiting ends, and how wide they are
WAIT_END = 2.4
LANES_WIDTH = 4.0
ARROW = "-|>,head_length=3.2,head_width=1.8"
RADIUS = 0.12  # of a plus sign
EDGE = 0.048  # between a line's end and the cells
STRONG = 2  # the rank whose lines are strong where every rank has one from each slot
FAINT_LINE = 0.3


def diagram(name: str) -> Figure:
    """Draw what a call does on 4 ranks.

    It shows what each rank holds before and after, and what that is made of; or who waits.

    A cell has the colour of the rank that its value came from; dark grey is a sum of several ranks'
    values, "?" a value that is unspecified.

    Args:
        name: one of `EXAMPLES` or `BARRIERS`.
    """
    if name in BARRIERS:
        return draw_barrier(BARRIERS[name])
    shown = EXAMPLES[name]
    before, after = with_origins(shown.before, shown.after)
    for rank, (old, new) in enumerate(zip(shown.before, shown.after, strict=True)):
        if old == new:  # what a rank keeps has the colour that it had
            after[rank] = before[rank]
    panels = draw_panels(before, after, shown.call, gap=FLOWS, family=CODE_FONT)
    draw_flows(panels, before, after, shown.moved)
    return panels.figure


def draw_flows(panels: Panels, before: Rows, after: Rows, moved: Sequence[int]) -> None:
    """Draw a line from each slot to each rank whose result is made of it.

    It has the slot's colour; a plus sign stands for a sum.

    A list has a slot for each rank. Its lines begin there, behind the cells, and only those to one
    rank are strong.
    """
    every_rank_has_a_list = len(before[1]) > 1
    for src in range(len(before)):
        for dst in moved:
            if _is_sum(after[dst]):
                # it ends at the circle of the plus sign
                end = (panels.gap_right - EDGE - 2 * RADIUS, panels.middles[dst])
                head = "-"
            elif src in _sources_of(after[dst]):
                end = _end_of_flow(panels, src, dst, _sources_of(after[dst]))
                head = ARROW
            else:
                continue
            line = FancyArrowPatch(
                _begin_of_flow(panels, src, dst, slots=len(before[0])),
                end,
                shrinkA=0,
                shrinkB=0,
                arrowstyle=head,
                alpha=FAINT_LINE if every_rank_has_a_list and dst != STRONG else 1.0,
                color=line_color(src),
                linewidth=1.6,
                zorder=0.9,
            )
            panels.ax.add_patch(line)
    for dst in moved:
        if _is_sum(after[dst]):
            x = panels.gap_right - EDGE - RADIUS
            draw_plus(panels.ax, x, panels.middles[dst], RADIUS, 14)


def _is_sum(row: Sequence[Slot]) -> bool:
    """Whether what a rank holds after the call is a sum of several ranks' values."""
    return row[0].origin == "mixed"


def _sources_of(row: Sequence[Slot]) -> list[int]:
    """The ranks that had what another one holds after the call, ascending."""
    return sorted({slot.origin for slot in row})


def _begin_of_flow(panels: Panels, src: int, dst: int, slots: int) -> tuple[float, float]:
    """Where a line begins: beside the cells, or at the edge of its slot towards the other lane."""
    y = panels.middles[src]
    if slots == 1:
        return panels.gap_left + EDGE, y
    x = panels.gap_left - (slots - dst - 0.5) * PANEL_LANE
    if dst > src:
        return x, y + (PANEL_LANE / 2 - CELL_INSET)
    if dst < src:
        return x, y - (PANEL_LANE / 2 - CELL_INSET)
    return x, y


def _end_of_flow(panels: Panels, src: int, dst: int, sources: Sequence[int]) -> tuple[float, float]:
    """Where an arrow ends: those to one rank end above each other, so that every head is seen."""
    place = sources.index(src) - (len(sources) - 1) / 2
    return panels.gap_right - EDGE, panels.middles[dst] + place * 0.24 / len(sources)


def draw_barrier(shown: Barrier) -> Figure:
    """Draw how long each rank works and then waits, and what happens at the end."""
    left = text_width("rank 0", TEXT_SIZE) + 0.32
    head = 0.36
    width = left + LANES_WIDTH
    figure, ax = new_canvas(width, head + len(shown.arrivals) * PANEL_PITCH, shown.call, CODE_FONT)
    tops = [head + rank * PANEL_PITCH for rank in range(len(shown.arrivals))]
    middles = [top + PANEL_LANE / 2 for top in tops]
    for rank, arrival in enumerate(shown.arrivals):
        draw_lane(ax, 0, tops[rank], width, PANEL_LANE, rank_color(rank), f"rank {rank}")
        if arrival is None:
            draw_text(ax, left, middles[rank], "does not arrive", ha="left", va="center_baseline")
            continue
        _draw_work_and_wait(ax, left, middles[rank], arrival)
        if shown.reports and rank > 0:
            report = FancyArrowPatch(
                (left + arrival, tops[rank] + CELL_INSET),
                (left + arrival, tops[0] + PANEL_LANE - CELL_INSET),
                arrowstyle=ARROW,
                color=line_color(rank),
                linewidth=1.6,
                shrinkA=0,
            )
            ax.add_patch(report)
    end = left + WAIT_END
    bottom = tops[-1] + PANEL_LANE
    ax.plot([end, end], [head, bottom], color=INK, linewidth=1.6, linestyle=(0, (3, 2)))
    draw_text(ax, end, head / 2, shown.end)
    for middle, words in zip(middles, shown.afterwards, strict=True):
        draw_text(ax, end + 0.12, middle, words, ha="left", va="center_baseline")
    return figure


def _draw_work_and_wait(ax: Axes, left: float, middle: float, arrival: float) -> None:
    """Draw the box of a rank's work, and after it, until the end, the hatched one of its wait."""
    top = middle - PANEL_LANE / 2 + CELL_INSET
    height = PANEL_LANE - 2 * CELL_INSET
    draw_box(ax, left, top, arrival - CELL_INSET, height, "works", MIXED, TEXT_SIZE)
    wait = WAIT_END - arrival
    if wait > 0:
        box = Rectangle(
            (left + arrival, top),
            wait,
            height,
            facecolor=FAINT,
            edgecolor=INK,
            hatch="///",
            linewidth=0.8,
        )
        ax.add_patch(box)
    if arrival < WAIT_END / 2:  # elsewhere there is no room
        draw_text(
            ax,
            left + arrival + wait / 3.4,
            middle,
            "waits",
            va="center_baseline",
            bbox={"facecolor": FAINT, "edgecolor": "none", "pad": 1.5},
            color=text_color(FAINT),
        )


def ring() -> Figure:
    """Draw the chunked ring all-reduce of 4 ranks in space and time, on a described network."""
    network = Network("5 us", "1 GB/s")
    steps = schedule("ring", len(RANKS)).steps
    size = 16_000
    programs = [[] for _ in RANKS]
    for number, step in enumerate(steps):
        send = 2 * number
        receive = send + 1
        key = ("ring", 0)
        for message in step:
            sent = events.PointToPoint(send, True, message.dst, size, key)
            programs[message.src].append(sent)
        for message in step:
            received = events.PointToPoint(receive, False, message.src, size, key)
            programs[message.dst] += [received, events.Wait(receive)]
        for program in programs:
            program.append(events.Wait(send))
    trace = Trace(RANKS, f"simulated: {len(RANKS)} ranks, {network}")
    trace.finish(virtual.from_simulation(simulate(programs, network), RANKS), {})
    return trace.plot()


def comparison() -> Figure:
    """Draw the differences that a comparison has found in docs/silent_mistakes.md."""
    return differences_by_step({"4 ranks": FOUND}, ROUNDING, VERDICT)


def write_figs(folder: str | Path) -> list[Path]:
    """Write every diagram as `<folder>/<name>.svg` and `.png`; the bytes are the same on every run.

    Args:
        folder: made if it does not exist.

    Returns:
        The paths of the files.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    figures = {name: partial(diagram, name) for name in (*EXAMPLES, *BARRIERS)}
    figures["ring"] = ring
    figures["comparison"] = comparison
    figures["staircase"] = staircase
    for name in maps.MAPS:
        figures[name] = partial(maps.draw, name)
    # Neither the date nor matplotlib's name, which would differ from run to run and from version to
    # version.
    kinds = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
    paths = []
    for name, draw in figures.items():
        figure = draw()
        for kind, metadata in kinds.items():
            path = folder / f"{name}.{kind}"
            with style():
                figure.savefig(path, dpi=150, metadata=metadata)
            paths.append(path)
    return paths


if __name__ == "__main__":
    for path in write_figs(FIGS):
        print(path)
