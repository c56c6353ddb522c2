"""Diagrams of the collectives: what each rank holds before and after, computed from the collective's definition.

Called by the notebooks, and by `make figs` as `python -m distlab.plotting.diagrams figs`.
Runs in the notebook's process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch

from distlab.errors import ArgumentError
from distlab.plotting.cells import Cell, draw_text, side_by_side
from distlab.plotting.style import MIXED, curve_color, style

GAP = 2.8  # width of the arrows' room, in units
EMPTY = Cell()
UNKNOWN = Cell("?", "unknown")


@dataclass(frozen=True)
class Example:
    """A collective on small integers.

    Rows are by rank. `flows` are the pairs (from rank, to rank) whose data travel; at a rank in `adds` they are summed.
    """

    call: str
    before: list[list[Cell]]
    after: list[list[Cell]]
    flows: list[tuple[int, int]]
    adds: tuple[int, ...] = ()


def one_each(n: int) -> list[list[Cell]]:
    """Rank r holds the number r+1."""
    return [[Cell(rank + 1, rank)] for rank in range(n)]


def list_each(n: int) -> list[list[Cell]]:
    """Rank r holds a list of n numbers, 10 r + slot: the tens say the rank, the ones the slot."""
    return [[Cell(10 * rank + slot, rank) for slot in range(n)] for rank in range(n)]


def only(root: int, row: list[Cell], n: int) -> list[list[Cell]]:
    """The root's row, and as many empty cells on every other rank."""
    return [row if rank == root else [EMPTY] * len(row) for rank in range(n)]


def add(cells: list[Cell]) -> Cell:
    """The sum of the values of several ranks."""
    return Cell(sum(cell.value for cell in cells), "mixed")


def all_pairs(n: int) -> list[tuple[int, int]]:
    """Every rank to every rank, itself included."""
    return [(src, dst) for src in range(n) for dst in range(n)]


def send_recv(n: int) -> Example:
    """Rank 0's number goes to rank 1."""
    before = only(0, [Cell(1, 0)], n)
    after = [before[0] if rank == 1 else before[rank] for rank in range(n)]
    return Example("rank 0: dist.send(t, dst=1)\nrank 1: dist.recv(t, src=0)", before, after, [(0, 1)])


def broadcast(n: int) -> Example:
    """Rank 0's number goes to every rank."""
    before = only(0, [Cell(1, 0)], n)
    return Example("dist.broadcast(t, src=0)", before, [before[0]] * n, [(0, rank) for rank in range(n)])


def scatter(n: int) -> Example:
    """Slot r of rank 0's list goes to rank r."""
    before = only(0, [Cell(slot + 1, 0) for slot in range(n)], n)
    after = [[before[0][rank]] for rank in range(n)]
    return Example("dist.scatter(t, parts, src=0)", before, after, [(0, rank) for rank in range(n)])


def gather(n: int) -> Example:
    """Rank r's number goes to slot r of rank 0's list."""
    before = one_each(n)
    after = only(0, [row[0] for row in before], n)
    return Example("dist.gather(t, parts, dst=0)", before, after, [(rank, 0) for rank in range(n)])


def reduce(n: int) -> Example:
    """The sum of all numbers goes to rank 0; what the others' tensors hold afterwards is unspecified."""
    before = one_each(n)
    after = [[add([row[0] for row in before]) if rank == 0 else UNKNOWN] for rank in range(n)]
    return Example("dist.reduce(t, dst=0)", before, after, [(rank, 0) for rank in range(n)], (0,))


def all_reduce(n: int) -> Example:
    """The sum of all numbers goes to every rank."""
    before = one_each(n)
    total = add([row[0] for row in before])
    return Example("dist.all_reduce(t)", before, [[total]] * n, all_pairs(n), tuple(range(n)))


def all_gather(n: int) -> Example:
    """Rank r's number goes to slot r of every rank's list."""
    before = one_each(n)
    return Example("dist.all_gather(parts, t)", before, [[row[0] for row in before]] * n, all_pairs(n))


def reduce_scatter(n: int) -> Example:
    """The sum of all ranks' slots r goes to rank r."""
    before = list_each(n)
    after = [[add([row[rank] for row in before])] for rank in range(n)]
    return Example("dist.reduce_scatter(t, parts)", before, after, all_pairs(n), tuple(range(n)))


def all_to_all(n: int) -> Example:
    """Slot s of rank r's list goes to slot r of rank s's list."""
    before = list_each(n)
    after = [[row[rank] for row in before] for rank in range(n)]
    return Example("dist.all_to_all_single(out, t)", before, after, all_pairs(n))


# In the order of the course.
EXAMPLES: tuple[Callable[[int], Example], ...] = (
    send_recv,
    broadcast,
    scatter,
    gather,
    reduce,
    all_reduce,
    all_gather,
    reduce_scatter,
    all_to_all,
)
DIAGRAMS = tuple(function.__name__ for function in EXAMPLES)


def example(name: str, world_size: int = 4) -> Example:
    """The numbers of a diagram.

    Runs on: anywhere.

    Args:
        name: one of `DIAGRAMS`.
        world_size: number of ranks, 2 to 8.

    Raises:
        ArgumentError: if `name` or `world_size` is none of these.
    """
    if name not in DIAGRAMS:
        raise ArgumentError(
            f'name must be one of {", ".join(DIAGRAMS)}, got {name!r}. Call it as diagram("all_reduce").'
        )
    if isinstance(world_size, bool) or not isinstance(world_size, int) or not 2 <= world_size <= 8:
        raise ArgumentError(
            f"world_size must be an integer from 2 to 8, got {world_size!r}. "
            f'Call it as diagram("{name}", world_size=4).'
        )
    return EXAMPLES[DIAGRAMS.index(name)](world_size)


def diagram(name: str, world_size: int = 4) -> Figure:
    """Draw what a collective does: each rank's cells before, where they travel, and each rank's cells after.

    A cell has the colour of the rank that its value came from; dark grey is a sum of several ranks' values, dashed a
    slot that holds nothing, "?" a value that is unspecified.

    Runs on: client.

    Args:
        name: one of `DIAGRAMS`.
        world_size: number of ranks, 2 to 8.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell.

    Raises:
        ArgumentError: if `name` or `world_size` is none of these.
    """
    shown = example(name, world_size)
    figure, ax, gap, lanes = side_by_side(shown.before, shown.after, GAP, shown.call, "DejaVu Sans Mono")
    draw_flows(ax, shown, (gap[0] + 0.12, gap[1] - 0.12), lanes)
    return figure


def draw_flows(ax: Axes, shown: Example, gap: tuple[float, float], lanes: list[float]) -> None:
    """Draw an arrow for each flow, in the colour of the rank it leaves, and a plus sign where flows are added."""
    radius = 0.3
    for src, dst in shown.flows:
        sources = [pair[0] for pair in shown.flows if pair[1] == dst]
        # Arrows to one rank end above each other, so that every head is seen; those to a sum end at its circle.
        spread = 0.0 if dst in shown.adds else (sources.index(src) - (len(sources) - 1) / 2) * 0.6 / len(sources)
        end = gap[1] - 2 * radius if dst in shown.adds else gap[1]
        head = "-" if dst in shown.adds else "-|>,head_length=3.2,head_width=1.8"
        points = {"posA": (gap[0], lanes[src]), "posB": (end, lanes[dst] + spread), "shrinkA": 0, "shrinkB": 0}
        ax.add_patch(FancyArrowPatch(**points, arrowstyle=head, color=curve_color(src), linewidth=1.6))
    for rank in shown.adds:
        center = (gap[1] - radius, lanes[rank])
        ax.add_patch(Circle(center, radius, facecolor=MIXED, edgecolor="none", zorder=3))
        draw_text(ax, *center, "+", color="#FFFFFF", va="center_baseline", fontsize=14, zorder=4)


def write_figs(folder: str | Path) -> list[Path]:
    """Write every diagram as `<folder>/<name>.svg` and `.png`; the bytes are the same on every run.

    Runs on: anywhere.

    Args:
        folder: made if it does not exist.

    Returns:
        The paths of the files.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in DIAGRAMS:
        figure = diagram(name)
        # Neither the date nor matplotlib's name, which would differ from run to run and from version to version.
        for kind, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
            paths.append(folder / f"{name}.{kind}")
            with style():
                figure.savefig(paths[-1], dpi=150, metadata=metadata)
    return paths


if __name__ == "__main__":
    for path in write_figs(sys.argv[1] if len(sys.argv) > 1 else "figs"):
        print(path)
