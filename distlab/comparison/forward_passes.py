"""What the forward and backward passes of a step say: rows, lines, and how many there were.

Runs where a comparison is judged, called by rows.py, replicas.py, gradients.py and movements.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from distlab.comparison.records import RankRecord, SeenForward
from distlab.comparison.wholes import World


def training_passes(record: RankRecord, step: int) -> list[SeenForward]:
    """The forward passes in training before a step."""
    return [one for one in record.forwards if one.training and one.step == step]


def rows_of(record: RankRecord, step: int) -> list[bytes]:
    """The rows that a rank used for a step, in their order."""
    rows: list[bytes] = []
    for one in training_passes(record, step):
        rows += one.rows
    return rows


def rows_of_all(records: Sequence[RankRecord], step: int) -> Counter[bytes]:
    """The rows that the ranks used for a step, with how often."""
    counted: Counter[bytes] = Counter()
    for record in records:
        counted.update(rows_of(record, step))
    return counted


def most_passes(world: World, step: int) -> int:
    """The most backward passes of a rank before a step; 1 if none was seen."""
    passes = [sum(one.step == step for one in record.backwards) for record in world.records]
    return max([1, *passes])


def weights_by_rows(world: World, step: int) -> dict[int, float]:
    """How many rows each rank had in a step."""
    return {rank: float(len(rows_of(one, step))) for rank, one in enumerate(world.records)}


def weights_by_targets(world: World, step: int) -> dict[int, float]:
    """How many targets the losses of each rank counted in a step; {} if that is not known."""
    weights: dict[int, float] = {}
    for rank, record in enumerate(world.records):
        counts = [one.targets for one in record.backwards if one.step == step]
        known = [count for count in counts if count is not None]
        if not known:
            return {}
        weights[rank] = float(sum(known))
    return weights


def are_unequal(weights: dict[int, float]) -> bool:
    """Whether ranks have different shares."""
    return len(set(weights.values())) > 1
