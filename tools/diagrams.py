"""Draws figs/*.svg and .png. Called by: make figs.

Every collective, on small integers, for the notebooks: what each rank holds before the call, where it travels, and what
each rank holds after it. And the ring all-reduce in space and time, for the README.
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from distlab.course.algorithms import schedule
from distlab.measure.trace import Trace, virtual
from distlab.plotting import cells
from distlab.plotting.cells import Rows
from distlab.plotting.grids import Values, draw_panels, traced
from distlab.plotting.style import curve_color, style
from distlab.simulated import events
from distlab.simulated.network import Network
from distlab.simulated.simulation import simulate

FIGS = Path(__file__).resolve().parent.parent / "figs"
FLOWS = 1.12  # inches between the two panels, with room for arrows


class Example(NamedTuple):
    """A collective on small integers: what each rank holds before and after. `moved`: the ranks that get something."""

    call: str
    before: Values
    after: Values
    moved: Sequence[int]


RANKS = range(4)
ROW = [1, 2, 3, 4]
ONES = [[number] for number in ROW]
LISTS = [[10 * rank + slot for slot in RANKS] for rank in RANKS]  # tens: the rank, ones: the slot
COLUMNS = [list(column) for column in zip(*LISTS, strict=True)]
FIRST, REST = [[1], [None], [None], [None]], [[None] * 4] * 3
# every one, in the order of the course
EXAMPLES = {
    "send_recv": Example(
        "rank 0: dist.send(t, dst=1)\nrank 1: dist.recv(t, src=0)", FIRST, [[1], [1], [None], [None]], [1]
    ),
    "broadcast": Example("dist.broadcast(t, src=0)", FIRST, [[1]] * 4, RANKS),
    "scatter": Example("dist.scatter(t, parts, src=0)", [ROW, *REST], ONES, RANKS),
    "gather": Example("dist.gather(t, parts, dst=0)", ONES, [ROW, *REST], [0]),
    # what the others hold afterwards is unspecified
    "reduce": Example("dist.reduce(t, dst=0)", ONES, [[10], ["?"], ["?"], ["?"]], [0]),
    "all_reduce": Example("dist.all_reduce(t)", ONES, [[10]] * 4, RANKS),
    "all_gather": Example("dist.all_gather(parts, t)", ONES, [ROW] * 4, RANKS),
    "reduce_scatter": Example("dist.reduce_scatter(t, parts)", LISTS, [[sum(column)] for column in COLUMNS], RANKS),
    "all_to_all": Example("dist.all_to_all_single(out, t)", LISTS, COLUMNS, RANKS),
}


def diagram(name: str) -> Figure:
    """Draw what a collective does on 4 ranks: each rank's cells before, where they travel, and each rank's cells after.

    A cell has the colour of the rank that its value came from; dark grey is a sum of several ranks' values, dashed a
    slot that holds nothing, "?" a value that is unspecified.

    Args:
        name: one of `EXAMPLES`.
    """
    shown = EXAMPLES[name]
    before, after = traced(shown.before, shown.after)
    figure, ax, gap, lanes = draw_panels(before, after, shown.call, (), FLOWS, "DejaVu Sans Mono")
    draw_flows(ax, after, shown.moved, (gap[0] + 0.048, gap[1] - 0.048), lanes)
    return figure


def draw_flows(ax: Axes, after: Rows, moved: Sequence[int], gap: Sequence[float], lanes: Sequence[float]) -> None:
    """Draw an arrow for each flow to `moved`, in the colour of the rank it leaves; where they add up, a plus sign."""
    radius = 0.12
    sums = [dst for dst in moved if after[dst][0].origin == "mixed"]
    for src, dst in product(range(len(lanes)), moved):
        sources = list(range(len(lanes))) if dst in sums else sorted({cell.origin for cell in after[dst]})
        if src in sources:
            # Arrows to one rank end above each other, so that every head is seen; those to a sum end at its circle.
            spread = 0.0 if dst in sums else (sources.index(src) - (len(sources) - 1) / 2) * 0.24 / len(sources)
            end = gap[1] - 2 * radius if dst in sums else gap[1]
            head = "-" if dst in sums else "-|>,head_length=3.2,head_width=1.8"
            points = {"posA": (gap[0], lanes[src]), "posB": (end, lanes[dst] + spread), "shrinkA": 0, "shrinkB": 0}
            ax.add_patch(FancyArrowPatch(**points, arrowstyle=head, color=curve_color(src), linewidth=1.6))
    for dst in sums:
        cells.draw_plus(ax, gap[1] - radius, lanes[dst], radius, 14)


def ring() -> Figure:
    """Draw the chunked ring all-reduce of 4 ranks in space and time, as its schedule goes on a described network."""
    network, steps, size = Network("5 us", "1 GB/s"), schedule("ring", len(RANKS)).steps, 16_000
    programs = [[] for _ in RANKS]
    for number, step in enumerate(steps):
        for message in step:
            sends, receives = 2 * number, 2 * number + 1
            programs[message.src].append(events.Message(sends, True, message.dst, size, ("ring", 0)))
            programs[message.dst].append(events.Message(receives, False, message.src, size, ("ring", 0)))
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
    for name, draw in {**{name: partial(diagram, name) for name in EXAMPLES}, "ring": ring}.items():
        figure = draw()
        # Neither the date nor matplotlib's name, which would differ from run to run and from version to version.
        for kind, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
            paths.append(folder / f"{name}.{kind}")
            with style():
                figure.savefig(paths[-1], dpi=150, metadata=metadata)
    return paths


if __name__ == "__main__":
    for path in write_figs(FIGS):
        print(path)
