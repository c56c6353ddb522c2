"""Computation as a person thinks of it: many torch calls of one rank taken together as forward, backward, optimizer.

Pure functions, called by trace/assemble.py. Times are ns of the trace's clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from distlab.trace.reading import FUNCTIONAL, Call, Row

GAP = 200_000  # ns of plain Python between two torch calls that count as one computation
SMALL = 100_000  # ns of other computation that does not divide a block
BACKWARD = ("autograd::engine::evaluate_function", "torch.distributed.ddp.reducer")
OPAQUE = {"DistributedDataParallel.forward": "forward", "Optimizer.": "optimizer"}  # shown whole, by how they begin


@dataclass
class Block:
    """Computation from `start` to `end`; `names` counts the ns of each torch call in it."""

    kind: str
    start: int
    end: int
    names: Counter[str]

    @property
    def op(self) -> str:
        """The one torch call that it is made of, if there is one; else its kind."""
        name, length = self.names.most_common(1)[0]
        one = self.kind == "compute" and length >= 0.8 * self.names.total()
        return name.removeprefix("aten::") if one else self.kind


def blocks_of(main: Sequence[Row], calls: Sequence[Call]) -> tuple[list[Block], list[Row]]:
    """The computation of the main thread as blocks, and the outermost ranges that the program named.

    Args:
        main: the main thread's rows, outer ones before inner ones.
        calls: this rank's calls that communicate; what they do inside is no computation.
    """
    rows, ranges = outermost(main, calls)
    kinds = kinds_of(rows, main)
    blocks = [Block(k, r.start, r.end, Counter({r.name: r.end - r.start})) for k, r in zip(kinds, rows, strict=True)]
    held = sorted([call.start for call in calls if call.blocking] + [start for c in calls for start, _ in c.waits])
    return merge(blocks, held), ranges


def outermost(main: Sequence[Row], calls: Sequence[Call]) -> tuple[list[Row], list[Row]]:
    """The torch calls that are in no other one, without those that communicate; and the outermost named ranges."""
    inside = [(call.start, call.posted) for call in calls if call.noted and not call.elsewhere]
    rows: list[Row] = []
    ranges: list[Row] = []
    covered, place = -1, 0
    for row in main:
        while place < len(inside) and inside[place][1] < row.start:
            place += 1
        by_python = place < len(inside) and inside[place][0] <= row.start
        communicates = by_python or row.name.startswith(("c10d::", "gloo:", FUNCTIONAL))
        if row.annotated and not communicates and not row.name.startswith(tuple(OPAQUE)):
            if not ranges or row.start >= ranges[-1].end:
                ranges.append(row)
        elif row.start >= covered:
            covered = row.end
            if not communicates:
                rows.append(row)
    return rows, ranges


def kinds_of(rows: Sequence[Row], main: Sequence[Row]) -> list[str]:
    """What each call is: a forward one is one whose gradient was computed later, as autograd's numbers tell."""
    backward = {row.number for row in main if row.name.startswith(BACKWARD) and row.number >= 0}
    # a call that leaves nothing for backward has the number of the next one
    last = {row.number: place for place, row in enumerate(rows) if not row.name.startswith(BACKWARD)}
    kinds = []
    for place, row in enumerate(rows):
        opaque = next((kind for start, kind in OPAQUE.items() if row.name.startswith(start)), None)
        if opaque or row.name.startswith(BACKWARD):
            kinds.append(opaque or "backward")
        else:
            kinds.append("forward" if row.number in backward and last[row.number] == place else "compute")
    return kinds


def merge(blocks: Sequence[Block], held: Sequence[int]) -> list[Block]:
    """Blocks of one kind that follow each other closely as one; never across a time in `held`, when a rank waited."""
    merged: list[Block] = []
    for block in blocks:
        if len(merged) > 1 and _is_between(merged[-2], merged[-1], block, held):
            _append(merged[-2], merged.pop())
        if merged and merged[-1].kind == block.kind and _touch(merged[-1], block, held):
            _append(merged[-1], block)
        else:
            merged.append(block)
    return merged


def _append(block: Block, other: Block) -> None:
    block.end, block.names = other.end, block.names + other.names


def _is_between(one: Block, trifle: Block, other: Block, held: Sequence[int]) -> bool:
    small = trifle.kind == "compute" and trifle.end - trifle.start <= SMALL
    return small and one.kind == other.kind and _touch(one, trifle, held) and _touch(trifle, other, held)


def _touch(one: Block, other: Block, held: Sequence[int]) -> bool:
    place = bisect_left(held, one.end)
    return other.start - one.end <= GAP and (place == len(held) or held[place] >= other.start)
