"""What each rank holds before a call and after it, rank x slot: of real values, and of every collective's definition.

Called by the notebooks, and by `make figs` as `python -m distlab.plotting.diagrams figs`.
Runs in the notebook's process. Lengths are in inches.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from distlab.errors import refuse
from distlab.plotting import cells
from distlab.plotting.cells import TEXT, Cell, Rows, text_width
from distlab.plotting.style import curve_color, rank_color, style

MOST_SLOTS = 8  # a longer row ends in "…"
WIDEST = 3.4  # of the cells that fit side by side at half a notebook's width
GAP, FLOWS = 0.44, 1.12  # between two panels side by side; the same with room for arrows
LANE, PITCH = 0.4, 0.464  # height of a lane; from one lane to the next
INSET = 0.032  # between a lane's edge, or a slot's, and its cell
EMPTY = Cell()

Values = Sequence[Sequence[float | str | None]]  # by rank


# --- of values that were pulled from the ranks ---


def before_after(
    before: Sequence[object], after: Sequence[object], title: str = "", slots: Sequence[str] | None = None
) -> Figure:
    """Draw what each rank held before and after a call, as cells on the lanes of the ranks.

    A value in `after` has the colour of the one rank that had this value before, light grey where several ranks had
    it, and dark grey where none had it (a sum). So give the ranks different values, whose sums are not among them.

    Runs on: client.

    Args:
        before: by rank, what it held: None, a number, a text, a tensor of any shape, or lists of these. Rows of
            nested lists and tensors are laid end to end; ranks may hold different numbers of values.
        after: the same after the call, for as many ranks.
        title: the call, for example "dist.all_gather(parts, t)".
        slots: names of the slots, written above them.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell.

    Raises:
        ArgumentError: if `before` and `after` are empty or of different lengths.
        ArgumentTypeError: if a value is no number, text, tensor or list of them.
    """
    befores, afters = by_rank("before", before), by_rank("after", after)
    if len(afters) != len(befores):
        refuse("after", f"a list of as many ranks as before ({len(before)})", after, "Pull both from the same ranks.")
    own, new = traced(befores, afters)
    names = tuple(slots or ())
    beside = (len(own[0]) + len(new[0])) * slot_width(own, new, names) <= WIDEST
    figure, ax, (left, right), middles = draw_panels(own, new, title, GAP if beside else None, slots=names)
    if beside:
        cells.draw_text(ax, (left + right) / 2, (middles[0] + middles[-1]) / 2, "→", fontsize=20)
    return figure


def by_rank(name: str, values: Any) -> Values:
    """What each rank held, laid end to end; an error where `values` are no list of at least one rank."""
    rule, advice = "a list by rank, of at least one", f'Give {name}=cluster.pull("t").'
    if not isinstance(values, (list, tuple)) or not values:
        refuse(name, rule, values, advice, wrong_type=not isinstance(values, (list, tuple)))
    return [flatten(held, f"{name}[{rank}]") for rank, held in enumerate(values)]


def flatten(values: object, name: str) -> list[float | str | None]:
    """The numbers and texts in a nested list or tensor, in order; None is an empty slot."""
    if hasattr(values, "tolist"):  # a tensor, without an import of torch; a NumPy array or number
        values = values.tolist()
    if values is None or isinstance(values, (Real, str)):
        return [values]
    if isinstance(values, (list, tuple)):
        return [value for part in values for value in flatten(part, name)]
    rule = "None, a number, a text, a tensor or a list of these"
    refuse(name, rule, values, "Give its .tolist().", wrong_type=True)


def traced(before: Values, after: Values) -> tuple[Rows, Rows]:
    """Both as cells: a value has the colour of its rank, and afterwards of the one rank that had it before."""
    own = [[EMPTY if value is None else Cell(value, rank) for value in row] for rank, row in enumerate(before)]
    return pad(own), pad([[cells.trace(value, before) for value in row] for row in after])


def pad(rows: Rows) -> Rows:
    """Rows of equal length: empty cells where a rank holds nothing, "…" where it holds more than are drawn."""
    shown = [row if len(row) <= MOST_SLOTS else [*row[: MOST_SLOTS - 1], Cell("…", "unknown")] for row in rows]
    length = max(1, *(len(row) for row in shown))
    return [row + [EMPTY] * (length - len(row)) for row in shown]


# --- panels ---


def slot_width(before: Rows, after: Rows, slots: Sequence[str]) -> float:
    """Width of a slot in both panels: that of the longest value or slot name; as its height for up to three digits."""
    texts = [cells.format_value(cell.value) for row in (*before, *after) for cell in row]
    return max([LANE] + [text_width(text, TEXT) + 0.16 for text in [*texts, *slots]])


def draw_panels(
    before: Rows,
    after: Rows,
    title: str,
    gap: float | None = None,
    family: str = cells.FONT,
    slots: Sequence[str] = (),
) -> tuple[Figure, Axes, tuple[float, float], list[float]]:
    """Draw the panels before and after on the lanes of the ranks: side by side, or without a `gap` below each other.

    Runs on: client.

    Returns:
        The figure, its axes, where the gap begins and ends, and the height of each lane's middle in the first panel.
    """
    width, head = slot_width(before, after, slots), 0.64 if slots else 0.36
    left, high = text_width(f"rank {len(before) - 1}", TEXT) + 0.32, head + len(before) * PITCH
    start = left + len(before[0]) * width
    x, y = (left, high + 0.08) if gap is None else (start + gap, 0.0)
    wide = max(start, x + len(after[0]) * width) + 0.08
    figure, ax = cells.canvas(wide, y + high - (PITCH - LANE), title, family)
    tops = [head + rank * PITCH for rank in range(len(before))]
    for down in sorted({0.0, y}):
        for rank, top in enumerate(tops):
            cells.draw_lane(ax, 0, down + top, wide, LANE, rank_color(rank), f"rank {rank}")
    for heading, rows, right, down in (("before", before, left, 0.0), ("after", after, x, y)):
        cells.draw_text(ax, right + len(rows[0]) * width / 2, down + 0.16, heading)
        for slot, name in enumerate(slots[: len(rows[0])]):
            cells.draw_text(ax, right + (slot + 0.5) * width, down + 0.46, name)
        for row, top in zip(rows, tops, strict=True):
            for slot, cell in enumerate(row):
                corner = right + slot * width + INSET, down + top + INSET
                cells.draw_cell(ax, *corner, width - 2 * INSET, LANE - 2 * INSET, cell)
    return figure, ax, (start, x), [top + LANE / 2 for top in tops]


# --- of the collectives, on small integers ---


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
DIAGRAMS = tuple(EXAMPLES)


def diagram(name: str) -> Figure:
    """Draw what a collective does on 4 ranks: each rank's cells before, where they travel, and each rank's cells after.

    A cell has the colour of the rank that its value came from; dark grey is a sum of several ranks' values, dashed a
    slot that holds nothing, "?" a value that is unspecified.

    Runs on: client.

    Args:
        name: one of `DIAGRAMS`.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell.

    Raises:
        ArgumentError: if `name` is none of these.
    """
    if name not in EXAMPLES:
        refuse("name", f"one of {', '.join(DIAGRAMS)}", name, 'Call it as diagram("all_reduce").')
    shown = EXAMPLES[name]
    before, after = traced(shown.before, shown.after)
    figure, ax, gap, lanes = draw_panels(before, after, shown.call, FLOWS, "DejaVu Sans Mono")
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
