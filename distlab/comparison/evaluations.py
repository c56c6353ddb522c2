"""Findings about evaluation: rows that are counted twice, or not at all.

Runs where a comparison is judged, called by judging.py.
"""

from __future__ import annotations

from collections import Counter

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.records import RankRecord
from distlab.comparison.wholes import World
from distlab.comparison.wording import different, row_list
from distlab.tables import count
from distlab.words import grouped


def find_evaluation(world: World, reference: World) -> list[Finding]:
    """The finding that the ranks together evaluate other rows than one process.

    Ranks that evaluate all rows, or none, do what one process does.
    """
    expected: Counter[bytes] = Counter()
    for record in reference.records:
        expected.update(evaluated(record))
    parts = [Counter(evaluated(record)) for record in world.records]
    used = sum(parts, Counter())
    if not expected or not used or used == expected or world.is_model_parallel:
        return []
    if all(part == expected for part in parts if part) or set(used) - set(expected):
        return []
    numbers = {row: number for number, row in enumerate(expected)}
    words = []
    too_often = grouped(
        (many - expected[row], numbers[row]) for row, many in used.items() if many > expected[row]
    )
    for more, rows in too_often.items():
        times = "twice" if more == 1 else f"{more + 1} times"
        words.append(f"counts {row_list(rows)} {times}")
    never = [numbers[row] for row in expected if not used[row]]
    if never:
        words.append(f"misses {row_list(never)}")
    if not words:
        return []
    sentence = f"The evaluation {' and '.join(words)}."
    lines = []
    for record in world.records:
        lines += [one.line for one in record.forwards if not one.training]
    finding = Finding(
        Cause.EVALUATION_ROWS,
        sentence,
        (*_why(world), "Rows are numbered in the order in which one process evaluates them."),
        world.size,
        lines=different(lines),
    )
    return [finding]


def evaluated(record: RankRecord) -> list[bytes]:
    """The rows that a rank evaluated, in their order."""
    rows: list[bytes] = []
    for one in record.forwards:
        if not one.training:
            rows += one.rows
    return rows


def _why(world: World) -> list[str]:
    padded = [one for record in world.records for one in record.samplers if one.padded]
    if not padded:
        return ["Look at which part of the rows each rank takes."]
    return [
        f"DistributedSampler repeats {count(padded[-1].padded, 'sample')}, so that every rank has "
        "as many. Let rank r evaluate rows[r::world_size], and add up sums and counts with "
        "all_reduce."
    ]
