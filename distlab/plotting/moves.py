"""States and messages of an algorithm as `stepping` and `player` draw them: checked, and in one form.

Runs anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from distlab.errors import refuse
from distlab.plotting.cells import format_value

MOST_RANKS, MOST_CHUNKS = 8, 16
EXAMPLE = "Call steps(algorithms.holdings(plan), plan.steps)."


@dataclass(frozen=True)
class Chunk:
    """What one rank holds in one chunk: the `ranks` whose numbers are added up in it, or else a `text`.

    `origin` is the rank in whose colour the text is shown, or "mixed", "shared" or "empty".
    """

    ranks: tuple[int, ...] = ()
    text: str = ""
    origin: int | str = "empty"


State = tuple[tuple[Chunk, ...], ...]  # by rank, by chunk


@dataclass(frozen=True)
class Move:
    """One chunk on its way; `adds` when dst adds it to its own. `origin`: the rank whose first chunk it is, or None."""

    src: int
    dst: int
    chunk: int
    adds: bool = False
    origin: int | None = None


def check_steps(
    states: Any, messages: Any, headings: Sequence[str] | None
) -> tuple[list[State], list[list[Move]], list[str]]:
    """States, moves and headings, or an ArgumentError that tells what does not fit."""
    grids = [_rows(state, f"states[{k}]") for k, state in enumerate(_listed(states, "states"))]
    shapes = {tuple(len(row) for row in grid) for grid in grids}
    ranks, chunks = len(grids[0]), len(grids[0][0])
    if shapes != {(chunks,) * ranks}:
        refuse("states", "of as many ranks, and chunks on each of them, in every step", sorted(shapes), EXAMPLE)
    for name, count, most in (("ranks", ranks, MOST_RANKS), ("chunks", chunks, MOST_CHUNKS)):
        if not 1 <= count <= most:
            refuse("states", f"states of 1 to {most} {name}", count, "Draw a smaller case: it shows the same.")
    moves = [_moves(step, f"messages[{k}]", ranks, chunks) for k, step in enumerate(_listed(messages, "messages", 0))]
    if len(moves) != len(grids) - 1:
        rule = f"one list of messages between each two of the {len(grids)} states ({len(grids) - 1})"
        refuse("messages", rule, len(moves), "Give the state before the first step as well as after each.")
    names = [f"step {k + 1}" for k in range(len(moves))] + ["end"] if headings is None else list(headings)
    if len(names) != len(grids):
        refuse("headings", f"as many as there are states ({len(grids)})", names, "Leave headings out.")
    first = grids[0]
    return [tuple(tuple(_chunk(v, first, ranks) for v in row) for row in grid) for grid in grids], moves, names


def _listed(values: Any, name: str, least: int = 1) -> list[Any]:
    """A list of `least` values or more; a tensor or an array counts as one."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, (list, tuple)) or len(values) < least:
        refuse(name, f"a list{' that is not empty' if least else ''}", values, EXAMPLE)
    return list(values)


def _rows(state: Any, name: str) -> list[list[Any]]:
    return [_listed(row, f"{name}[{rank}]") for rank, row in enumerate(_listed(state, name))]


def _chunk(value: Any, first: Sequence[Sequence[Any]], ranks: int) -> Chunk:
    if isinstance(value, (set, frozenset)):
        if not all(_is_rank(rank, ranks) for rank in value):
            refuse("states", f"of sets of ranks from 0 to {ranks - 1}", value, EXAMPLE)
        return Chunk(tuple(sorted(value)))
    if value is None:
        return Chunk()
    if not isinstance(value, (Real, str)):
        refuse("states", "of sets of ranks, numbers, texts or None", value, EXAMPLE, wrong_type=True)
    owners = [rank for rank, row in enumerate(first) if value in row]
    return Chunk(
        text=format_value(value), origin="mixed" if not owners else owners[0] if len(owners) == 1 else "shared"
    )


def _moves(step: Any, name: str, ranks: int, chunks: int) -> list[Move]:
    return [move for i, m in enumerate(_listed(step, name, 0)) for move in _split(m, f"{name}[{i}]", ranks, chunks)]


def _split(message: Any, name: str, ranks: int, chunks: int) -> list[Move]:
    """A message as a move for each of its chunks."""
    form = "(src, dst, chunks) or (src, dst, chunks, operation)"
    if hasattr(message, "src"):
        fields = tuple(getattr(message, field, None) for field in ("src", "dst", "chunks", "operation", "origin"))
    elif isinstance(message, (tuple, list)) and 3 <= len(message) <= 5:
        fields = (*message, *(None,) * (5 - len(message)))
    else:
        refuse(name, form, message, EXAMPLE)
    src, dst, carried, operation, origin = fields
    carried = list(carried) if isinstance(carried, Iterable) and not isinstance(carried, str) else [carried]
    if not (_is_rank(src, ranks) and _is_rank(dst, ranks) and src != dst):
        refuse(name, f"from one rank to another, of 0 to {ranks - 1}: {form}", message, EXAMPLE)
    if not carried or not all(_is_rank(chunk, chunks) for chunk in carried):
        refuse(name, f"of chunks from 0 to {chunks - 1}: {form}", message, EXAMPLE)
    if operation not in ("reduce", "copy", None) or not (origin is None or _is_rank(origin, ranks)):
        refuse(name, f'with the operation "reduce" or "copy": {form}', message, EXAMPLE)
    return [Move(src, dst, chunk, operation == "reduce", origin) for chunk in carried]


def _is_rank(value: Any, count: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count
