"""Before/after grids: the values that each rank really had before and after a call, rank x slot.

Called by the notebooks. Runs in the notebook's process, on values that were pulled from the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

from matplotlib.figure import Figure

from distlab.errors import ArgumentError, ArgumentTypeError
from distlab.plotting.cells import Cell, draw_text, side_by_side, slot_width, stacked
from distlab.plotting.style import INK

MOST_SLOTS = 8  # a longer row ends in "…"
WIDEST = 8.5  # units of cells that fit side by side at half a notebook's width
GAP = 1.1  # between two panels side by side


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
    check_ranks(before, after)
    befores = [flatten(values, f"before[{rank}]") for rank, values in enumerate(before)]
    afters = [flatten(values, f"after[{rank}]") for rank, values in enumerate(after)]
    panels = pad(own_cells(befores)), pad(traced_cells(befores, afters))
    names = tuple(slots or ())
    if sum(len(rows[0]) for rows in panels) * slot_width(panels, names) > WIDEST:
        return stacked(*panels, title, "DejaVu Sans", names)
    figure, ax, (left, right), lanes = side_by_side(*panels, GAP, title, "DejaVu Sans", names)
    draw_text(ax, (left + right) / 2, (lanes[0] + lanes[-1]) / 2, "→", fontsize=20, color=INK)
    return figure


def check_ranks(before: Sequence[object], after: Sequence[object]) -> None:
    """Raise if `before` and `after` are not lists of as many ranks."""
    for name, values in (("before", before), ("after", after)):
        if not isinstance(values, (list, tuple)):
            kind = type(values).__name__
            raise ArgumentTypeError(f'{name} must be a list by rank, got {kind!r}. Give {name}=cluster.pull("t").')
    if not before:
        raise ArgumentError('before must be a list of at least one rank, got []. Give before=cluster.pull("t").')
    if len(after) != len(before):
        raise ArgumentError(
            f"after must be a list of as many ranks as before ({len(before)}), got {len(after)!r}. "
            "Pull both from the same ranks."
        )


def flatten(values: object, name: str) -> list[float | str | None]:
    """The numbers and texts in a nested list or tensor, in order; None is an empty slot."""
    if hasattr(values, "detach") and hasattr(values, "tolist"):  # a tensor, without an import of torch
        values = values.detach().tolist()
    elif hasattr(values, "tolist"):  # a NumPy array or number
        values = values.tolist()
    if values is None or isinstance(values, (Real, str)):
        return [values]
    if isinstance(values, (list, tuple)):
        return [value for part in values for value in flatten(part, name)]
    raise ArgumentTypeError(
        f"{name} must be None, a number, a text, a tensor or a list of these, got {values!r}. Give its .tolist()."
    )


def own_cells(rows: list[list[float | str | None]]) -> list[list[Cell]]:
    """Cells in the colour of the rank that holds them."""
    return [[Cell(value, rank) if value is not None else Cell() for value in row] for rank, row in enumerate(rows)]


def traced_cells(before: list[list[float | str | None]], after: list[list[float | str | None]]) -> list[list[Cell]]:
    """Cells in the colour of the one rank that had their value before, or neutral."""

    def origin(value: float | str | None) -> int | str:
        if value is None:
            return "empty"
        if value == "?":
            return "unknown"
        ranks = [rank for rank, row in enumerate(before) if value in row]
        return "mixed" if not ranks else ranks[0] if len(ranks) == 1 else "shared"

    return [[Cell(value, origin(value)) for value in row] for row in after]


def pad(rows: list[list[Cell]]) -> list[list[Cell]]:
    """Rows of equal length: empty cells where a rank holds nothing, "…" where it holds more than are drawn."""
    shown = [row if len(row) <= MOST_SLOTS else [*row[: MOST_SLOTS - 1], Cell("…", "unknown")] for row in rows]
    length = max(1, *(len(row) for row in shown))
    return [row + [Cell()] * (length - len(row)) for row in shown]
