"""Draws figs/*.svg and .png. Called by: make figs.

Every collective, on small integers, for the notebooks: what each rank holds before the call, where
it travels, and what each rank holds after it. The ring all-reduce in space and time, for
docs/course.md. And the maps of maps.py.
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from distlab.plotting import cells
from distlab.plotting.cells import INSET, LANE, PITCH, Rows, Values, draw_panels, traced
from distlab.plotting.style import FAINT, INK, MIXED, line_color, rank_color, style, text_color
from distlab.simulated import events
from distlab.simulated.network import Network
from distlab.simulated.simulation import simulate
from distlab.traces import virtual
from distlab.traces.trace import Trace
from distlab_course.algorithms import schedule
from tools import maps

FIGS = Path(__file__).resolve().parent.parent / "figs"
FLOWS = 1.12  # inches between the two panels, with room for arrows


class Example(NamedTuple):
    """A collective on small integers: what each rank holds before and after.

    `moved` are the ranks that get something.
    """

    call: str
    before: Values
    after: Values
    moved: Sequence[int]


RANKS = range(4)
ROW = [1, 2, 3, 4]
ONES = [[number] for number in ROW]
LISTS = [[10 * rank + slot for slot in RANKS] for rank in RANKS]  # tens: the rank, ones: the slot
COLUMNS = [list(column) for column in zip(*LISTS, strict=True)]
FIRST = [[1], [None], [None], [None]]
NO_LISTS = [[]] * 3
# every one, in the order of the course
EXAMPLES = {
    "send_recv": Example(
        "rank 0: dist.send(t, dst=1)\nrank 1: dist.recv(t, src=0)",
        [[1], [0], [0], [0]],
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
    "reduce_scatter": Example(
        "dist.reduce_scatter(t, parts)", LISTS, [[sum(column)] for column in COLUMNS], RANKS
    ),
    "all_to_all": Example("dist.all_to_all_single(out, t)", LISTS, COLUMNS, RANKS),
}
# the call, and how far from the left each rank comes to it, in inches; None for one that does not
# come
BARRIERS = {
    "barrier": ("dist.barrier()", [0.72, 1.28, 1.84, 2.4]),
    "monitored_barrier": ("dist.monitored_barrier(timeout)", [0.72, 1.28, None, 1.84]),
}
# from the left of the lanes: where waiting ends, and where they do
END = 2.4
MOST = 4.0
STRONG = 2  # the rank whose lines are strong where every rank has one from each slot
FAINT_LINE = 0.3


def diagram(name: str) -> Figure:
    """Draw what a call does on 4 ranks.

    It shows what each rank holds before and after, and what that is made of; or who waits.

    A cell has the colour of the rank that its value came from; dark grey is a sum of several ranks'
    values, dashed a tensor whose numbers do not matter, "?" a value that is unspecified.

    Args:
        name: one of `EXAMPLES` or `BARRIERS`.
    """
    if name in BARRIERS:
        return draw_barrier(name, *BARRIERS[name])
    shown = EXAMPLES[name]
    before, after = traced(shown.before, shown.after)
    # and so has the colour it had
    kept = [old == new for old, new in zip(shown.before, shown.after, strict=True)]
    after = [before[rank] if same else after[rank] for rank, same in enumerate(kept)]
    figure, ax, gap, lanes = draw_panels(before, after, shown.call, (), FLOWS, "DejaVu Sans Mono")
    draw_flows(ax, before, after, shown.moved, gap, lanes)
    return figure


def draw_flows(
    ax: Axes,
    before: Rows,
    after: Rows,
    moved: Sequence[int],
    gap: Sequence[float],
    lanes: Sequence[float],
) -> None:
    """Draw a line from each slot to each rank whose result is made of it.

    It has the slot's colour; a plus sign stands for a sum.

    A list has a slot for each rank. Its lines begin there, behind the cells, and only those to one
    rank are strong.
    """
    radius = 0.12
    edge = 0.048
    sums = [dst for dst in moved if after[dst][0].origin == "mixed"]
    slots = len(before[0])
    lists = len(before[1]) > 1
    for src, dst in product(range(len(lanes)), moved):
        sources = (
            list(range(len(lanes))) if dst in sums else sorted({cell.origin for cell in after[dst]})
        )
        if src in sources:
            # Arrows to one rank end above each other, so that every head is seen; those to a sum
            # end at its circle.
            spread = (
                0.0
                if dst in sums
                else (sources.index(src) - (len(sources) - 1) / 2) * 0.24 / len(sources)
            )
            end = gap[1] - edge - 2 * radius if dst in sums else gap[1] - edge
            head = "-" if dst in sums else "-|>,head_length=3.2,head_width=1.8"
            begin = (gap[0] + edge, lanes[src])
            if slots > 1:  # from the edge of the slot that is nearer to the other lane
                down = (dst > src) - (dst < src)
                begin = (
                    gap[0] - (slots - dst - 0.5) * LANE,
                    lanes[src] + down * (LANE / 2 - INSET),
                )
            points = {"posA": begin, "posB": (end, lanes[dst] + spread), "shrinkA": 0, "shrinkB": 0}
            look = {"color": line_color(src), "linewidth": 1.6, "zorder": 0.9}
            alpha = FAINT_LINE if lists and dst != STRONG else 1.0
            ax.add_patch(FancyArrowPatch(**points, arrowstyle=head, alpha=alpha, **look))
    for dst in sums:
        cells.draw_plus(ax, gap[1] - edge - radius, lanes[dst], radius, 14)


def draw_barrier(name: str, call: str, comes: Sequence[float | None]) -> Figure:
    """Draw how long each rank works and then waits, and what happens at the end."""
    left = cells.text_width("rank 0", cells.TEXT) + 0.32
    head = 0.36
    figure, ax = cells.canvas(left + MOST, head + len(comes) * PITCH, call, "DejaVu Sans Mono")
    middles = [head + rank * PITCH + LANE / 2 for rank in range(len(comes))]
    for rank, (middle, came) in enumerate(zip(middles, comes, strict=True)):
        cells.draw_lane(
            ax, 0, middle - LANE / 2, left + MOST, LANE, rank_color(rank), f"rank {rank}"
        )
        box = (middle - LANE / 2 + INSET, LANE - 2 * INSET)
        if came is None:
            cells.draw_text(ax, left, middle, "does not come", ha="left", va="center_baseline")
            continue
        cells.draw_box(ax, left, box[0], came - INSET, box[1], "works", MIXED, cells.TEXT)
        if came < END:
            look = {"facecolor": FAINT, "edgecolor": INK, "hatch": "///", "linewidth": 0.8}
            ax.add_patch(Rectangle((left + came, box[0]), END - came, box[1], **look))
        if came < END / 2:  # elsewhere there is no room
            label = {
                "bbox": {"facecolor": FAINT, "edgecolor": "none", "pad": 1.5},
                "color": text_color(FAINT),
            }
            cells.draw_text(
                ax, left + came + (END - came) / 3.4, middle, "waits", va="center_baseline", **label
            )
        if name == "monitored_barrier" and rank > 0:
            points = {
                "posA": (left + came, box[0]),
                "posB": (left + came, middles[0] + LANE / 2 - INSET),
            }
            arrow = "-|>,head_length=3.2,head_width=1.8"
            ax.add_patch(
                FancyArrowPatch(
                    **points, arrowstyle=arrow, color=line_color(rank), linewidth=1.6, shrinkA=0
                )
            )
    ax.plot(
        [left + END] * 2,
        [head, middles[-1] + LANE / 2],
        color=INK,
        linewidth=1.6,
        linestyle=(0, (3, 2)),
    )
    last = "after the timeout" if name == "monitored_barrier" else "the last one has come"
    cells.draw_text(ax, left + END, head / 2, last)
    for rank, middle in enumerate(middles):
        says = (
            "goes on"
            if name == "barrier"
            else "rank 2 missing"
            if rank == 0
            else ""
            if rank == 2
            else "fails"
        )
        cells.draw_text(ax, left + END + 0.12, middle, says, ha="left", va="center_baseline")
    return figure


def ring() -> Figure:
    """Draw the chunked ring all-reduce of 4 ranks in space and time, on a described network."""
    network = Network("5 us", "1 GB/s")
    steps = schedule("ring", len(RANKS)).steps
    size = 16_000
    programs = [[] for _ in RANKS]
    for number, step in enumerate(steps):
        for message in step:
            sends = 2 * number
            receives = 2 * number + 1
            programs[message.src].append(
                events.PointToPoint(sends, True, message.dst, size, ("ring", 0))
            )
            programs[message.dst].append(
                events.PointToPoint(receives, False, message.src, size, ("ring", 0))
            )
        for program in programs:
            program += [events.Wait(2 * number + 1), events.Wait(2 * number)]
    trace = Trace(RANKS, f"simulated: {len(RANKS)} ranks, {network}")
    trace.finish(virtual.read(simulate(programs, network), RANKS), {})
    return trace.plot()


def write_figs(folder: str | Path) -> list[Path]:
    """Write every diagram as `<folder>/<name>.svg` and `.png`; the bytes are the same on every run.

    Args:
        folder: made if it does not exist.

    Returns:
        The paths of the files.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    figures = {name: partial(diagram, name) for name in (*EXAMPLES, *BARRIERS)} | {"ring": ring}
    figures |= {name: partial(maps.draw, name) for name in maps.MAPS}
    for name, draw in figures.items():
        figure = draw()
        # Neither the date nor matplotlib's name, which would differ from run to run and from
        # version to version.
        for kind, metadata in (
            ("svg", {"Date": None, "Creator": None}),
            ("png", {"Software": None}),
        ):
            paths.append(folder / f"{name}.{kind}")
            with style():
                figure.savefig(paths[-1], dpi=150, metadata=metadata)
    return paths


if __name__ == "__main__":
    for path in write_figs(FIGS):
        print(path)
