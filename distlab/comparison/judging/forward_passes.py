"""What the forward and backward passes of a step say: rows, lines, losses, and how many they were.

Runs where a comparison is judged, called by rows.py, replicas.py, gradients.py and movements.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from distlab.comparison.judging.wholes import World
from distlab.comparison.judging.wording import different
from distlab.comparison.records import RankRecord, SeenBackward, SeenForward
from distlab.wire.source import Line


def training_passes(record: RankRecord, step: int) -> list[SeenForward]:
    """The forward passes that a step is made of.

    Those are passes in training mode. If there are none, passes in evaluation mode count, if they
    have gradients and a step follows.
    """
    passes = [one for one in record.forwards if one.step == step and one.has_gradients]
    in_training = [one for one in passes if one.training]
    if in_training or step >= len(record.steps):
        return in_training
    return passes


def backward_passes(record: RankRecord, step: int) -> list[SeenBackward]:
    """The backward passes before a step."""
    return [one for one in record.backwards if one.step == step]


def rows_of(record: RankRecord, step: int) -> list[bytes]:
    """The rows that a rank used for a step, in their order."""
    rows: list[bytes] = []
    for one in training_passes(record, step):
        rows += one.rows
    return rows


def training_rows(record: RankRecord) -> list[bytes]:
    """The rows that a rank used for all steps, in their order."""
    rows: list[bytes] = []
    for step in range(len(record.steps) + 1):  # a pass may have no step
        rows += rows_of(record, step)
    return rows


def evaluated_rows(record: RankRecord) -> list[bytes]:
    """The rows that a rank evaluated, in their order."""
    rows: list[bytes] = []
    for one in evaluating_passes(record):
        rows += one.rows
    return rows


def evaluating_passes(record: RankRecord) -> list[SeenForward]:
    """The forward passes that no step is made of."""
    found = []
    for one in record.forwards:
        is_of_step = any(one is other for other in training_passes(record, one.step))
        if not is_of_step and not one.training:
            found.append(one)
    return found


def most_passes(world: World, step: int) -> int:
    """The most backward passes of a rank before a step; 1 if none was seen."""
    return max([1, *[len(backward_passes(record, step)) for record in world.records]])


def lines_of_backward(world: World, step: int) -> tuple[Line, ...]:
    """The lines of the last backward passes before a step."""
    lines = []
    for record in world.records:
        lines += [one.line for one in backward_passes(record, step)[-1:]]
    return different(lines)


def lines_of_step(world: World, step: int) -> tuple[Line, ...]:
    """The lines that called step()."""
    return different(world.records[rank].steps[step].line for rank in world.made_step(step))


def losses_of(world: World, step: int) -> dict[int, float]:
    """The loss of each rank in a step, added up over its backward passes, by rank."""
    losses = {}
    for rank, record in enumerate(world.records):
        seen = [one.loss for one in backward_passes(record, step)]
        known = [loss for loss in seen if loss is not None]
        if known and len(known) == len(seen):
            losses[rank] = sum(known)
    return losses


def unequal_weights(world: World, step: int) -> dict[str, dict[int, float]]:
    """How many tokens and rows each rank had in a step, where these differ, by what was counted."""
    candidates = {"tokens": _tokens(world, step), "rows": _rows(world, step)}
    if candidates["tokens"] == candidates["rows"]:  # a label for each row
        del candidates["tokens"]
    return {noun: found for noun, found in candidates.items() if are_unequal(found)}


def _rows(world: World, step: int) -> dict[int, float]:
    return {rank: float(len(rows_of(one, step))) for rank, one in enumerate(world.records)}


def _tokens(world: World, step: int) -> dict[int, float]:
    """{} if it is not known."""
    weights: dict[int, float] = {}
    for rank, record in enumerate(world.records):
        counts = [one.targets for one in backward_passes(record, step)]
        known = [count for count in counts if count is not None]
        if counts and len(known) < len(counts):
            return {}
        weights[rank] = float(sum(known))
    return weights


def are_unequal(weights: Mapping[int, float]) -> bool:
    """Whether ranks have different shares."""
    return len(set(weights.values())) > 1
