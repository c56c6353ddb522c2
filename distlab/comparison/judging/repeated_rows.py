"""The findings that rows are used too often, or never.

Runs where a comparison is judged, called by rows.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.judging.forward_passes import training_rows
from distlab.comparison.judging.wholes import World
from distlab.comparison.judging.wording import listed, row_list
from distlab.tables import count
from distlab.wire.source import Line
from distlab.words import grouped

if TYPE_CHECKING:
    from distlab.comparison.judging.rows import RowsOfStep

Rows = Counter[bytes]


def find_repeated(
    world: World, reference: World, seen: RowsOfStep, lines: tuple[Line, ...]
) -> Finding:
    """The finding about a step that has some rows too often, or not at all.

    A row that belongs to another step in one process is judged by how often all steps use it.
    """
    used = seen.used
    expected = seen.expected
    where = f"in step {seen.step}"
    if set(used) - set(expected):
        used = _of_all_steps(world)
        expected = _of_all_steps(reference)
        where = f"over all {len(world.steps)} steps"
    words = _in_words(used, expected, seen.numbers)
    hinders = _is_remainder(world, used, expected)
    if not words:
        words = "some rows belong to another step in one process"
    details = [
        _advice(world, expected, hinders),
        "Rows are numbered in the order in which one process uses them.",
    ]
    return Finding(
        Cause.ROWS_REPEATED,
        f"The ranks do not use each row once: {where}, {words}.",
        tuple(details),
        world.size,
        seen.step,
        lines=lines,
        hinders=hinders,
    )


def _of_all_steps(world: World) -> Rows:
    total: Rows = Counter()
    for record in world.records:
        total.update(training_rows(record))
    return total


def _in_words(used: Rows, expected: Rows, numbers: Mapping[bytes, int]) -> str:
    """Which rows are used too often, and which never: "row 3 is used twice".

    The others, which one process does not use, have no number.
    """
    too_often = grouped(
        (_times(many, expected[row]), numbers[row])
        for row, many in used.items()
        if many > expected[row] and row in numbers
    )
    parts = []
    for times, rows in too_often.items():
        parts.append(f"{row_list(rows)} {_is_or_are(rows)} used {times}")
    never = [numbers[row] for row in expected if not used[row]]
    if never:
        parts.append(f"{row_list(never)} {_is_or_are(never)} never used")
    unknown = sum(1 for row in used if row not in numbers)
    if unknown:
        verb = "is" if unknown == 1 else "are"
        parts.append(f"{count(unknown, 'row')} {verb} used that one process never uses")
    return listed(parts) if parts else ""


def _is_or_are(rows: Sequence[int]) -> str:
    return "is" if len(rows) == 1 else "are"


def _times(many: int, right: int) -> str:
    """How often a row is used, in words."""
    if right > 1:
        return f"{many} times instead of {right}"
    return "twice" if many == 2 else f"{many} times"


def _is_remainder(world: World, used: Rows, expected: Rows) -> bool:
    """Whether all that is missing are the few rows that are left over by a division."""
    missing = (expected - used).total()
    return 0 < missing < world.size and not used - expected


def _advice(world: World, expected: Rows, is_remainder: bool) -> str:
    for record in world.records:
        for one in record.samplers:
            if one.padded:
                return (
                    f"DistributedSampler repeats {count(one.padded, 'sample')}, so that every rank "
                    "has as many. A number of samples that the ranks divide needs no repetition, "
                    "and drop_last=True leaves the last ones out instead."
                )
    if is_remainder:
        return (
            f"{count(expected.total(), 'row')} cannot be divided by {world.size} ranks. Use a "
            "batch that they divide; or let rank r take rows[r::world_size], and weigh each rank "
            "by its number of rows."
        )
    return "Look at which part of the rows each rank takes."
