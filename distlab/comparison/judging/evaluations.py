"""Findings about evaluation: rows that are counted twice, or not at all.

Runs where a comparison is judged, called by judge.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.judging.forward_passes import evaluated_rows, evaluating_passes
from distlab.comparison.judging.wholes import World
from distlab.comparison.judging.wording import different, row_list
from distlab.tables import count
from distlab.words import grouped


def find_evaluation(world: World, reference: World) -> list[Finding]:
    """The finding that the ranks together evaluate other rows than one process.

    Ranks that evaluate all rows, or none, do what one process does.
    """
    expected: Counter[bytes] = Counter()
    for record in reference.records:
        expected.update(evaluated_rows(record))
    parts = [Counter(evaluated_rows(record)) for record in world.records]
    used = sum(parts, Counter())
    if not expected or not used or world.is_model_parallel:
        return []
    if all(part == expected for part in parts if part) or set(used) - set(expected):
        return []
    words = _in_words(used, expected)
    if not words:
        return []
    lines = []
    for record in world.records:
        lines += [one.line for one in evaluating_passes(record)]
    finding = Finding(
        Cause.EVALUATION_ROWS,
        f"The evaluation {words}.",
        (_advice(world), "Rows are numbered in the order in which one process evaluates them."),
        world.size,
        lines=different(lines),
    )
    return [finding]


def _in_words(used: Mapping[bytes, int], expected: Mapping[bytes, int]) -> str:
    """Which rows are counted too often, or missed: "counts rows 0 and 1 twice"."""
    numbers = {row: number for number, row in enumerate(expected)}
    too_often = grouped(
        (many - expected[row], numbers[row]) for row, many in used.items() if many > expected[row]
    )
    words = []
    for more, rows in too_often.items():
        times = "twice" if more == 1 else f"{more + 1} times"
        words.append(f"counts {row_list(rows)} {times}")
    missed = [numbers[row] for row in expected if row not in used]
    if missed:
        words.append(f"misses {row_list(missed)}")
    return " and ".join(words)


def _advice(world: World) -> str:
    for record in world.records:
        for one in record.samplers:
            if one.padded:
                return (
                    f"DistributedSampler repeats {count(one.padded, 'sample')}, so that every rank "
                    "has as many. Let rank r evaluate rows[r::world_size] instead, and add up sums "
                    "and counts with all_reduce."
                )
    return "Look at which part of the rows each rank takes."
