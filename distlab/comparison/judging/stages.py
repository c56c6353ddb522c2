"""Stages of a pipeline: which part of a model a rank has, where names and values do not say it.

Runs where a comparison is judged, called by matching.py and judge.py. Each stage counts its
layers from 0, and layers may begin with equal values, as norms do, and copies of one layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from distlab.comparison.judging.wholes import World
from distlab.comparison.records import RankRecord, SeenParameter

FEW = 8  # epsilons of float32, by which equal numbers may differ
EPSILON = 1.2e-7


def begin_alike(one: SeenParameter, other: SeenParameter) -> bool:
    """Whether two whole parameters have one shape and the same values."""
    if one.shape != other.shape:
        return False
    return (one.value - other.value).norm <= FEW * EPSILON * other.value.norm


def names_by_order(
    record: RankRecord, reference: World, alike: Callable[[str, str], bool]
) -> dict[str, str]:
    """The names in the reference of a stage whose values fit several parts of the model.

    The parameters of a stage follow each other in the reference, too. Where several parts begin
    with the stage's values, the directions of the first gradients tell which one it is.

    Args:
        record: what the rank did.
        reference: what one process did.
        alike: whether the rank's parameter of one name begins as that of another in the reference.

    Returns:
        The name in the reference by the rank's own; none unless several parts fit.
    """
    own = list(record.initial)
    names = list(reference.initial)
    if not record.model_parallel or len(own) >= len(names):
        return {}
    fitting = []
    for first in range(len(names) - len(own) + 1):
        part = names[first : first + len(own)]
        if all(alike(mine, name) for mine, name in zip(own, part, strict=True)):
            fitting.append(dict(zip(own, part, strict=True)))
    if len(fitting) < 2:
        return {}
    return max(fitting, key=lambda part: _agreement(part, record, reference))


def _agreement(part: dict[str, str], record: RankRecord, reference: World) -> float:
    """How well the first gradients point where those of a part of the reference do."""
    if not record.steps or not reference.steps:
        return 0.0
    total = 0.0
    for own, name in part.items():
        seen = record.steps[0].parameters.get(own)
        copies = reference.steps[0].get(name)
        expected = None if copies is None else copies.whole("gradient")
        if seen is None or seen.gradient is None or expected is None:
            continue
        norms = seen.gradient.norm * expected.norm
        if norms:
            total += seen.gradient.dot(expected) / norms
    return total


def with_names_of_stages(records: Sequence[RankRecord]) -> list[RankRecord]:
    """The records with other names on each stage, so that stages are not taken for replicas.

    Ranks are replicas if all their parameters begin alike. Where they do on every rank, and some
    ranks have rows and others only activations, no more is known, and each is a stage.
    """
    if not any(record.model_parallel for record in records) or not _are_whole(records):
        return list(records)
    stages: list[RankRecord] = []  # the first rank of each
    numbers = []
    for record in records:
        known = [number for number, one in enumerate(stages) if _are_replicas(one, record)]
        numbers.append(known[0] if known else len(stages))
        if not known:
            stages.append(record)
    have_rows = {any(forward.rows for forward in record.forwards) for record in records}
    if len(stages) == 1 and len(have_rows) == 2:
        numbers = list(range(len(records)))
    if len(set(numbers)) == 1:
        return list(records)
    return [_of_stage(record, number) for record, number in zip(records, numbers, strict=True)]


def _are_whole(records: Sequence[RankRecord]) -> bool:
    seen = [one for record in records for one in record.initial.values()]
    return all(one.piece.elements == one.piece.whole for one in seen)


def _are_replicas(one: RankRecord, other: RankRecord) -> bool:
    if one.initial.keys() != other.initial.keys():
        return False
    return all(begin_alike(seen, other.initial[name]) for name, seen in one.initial.items())


def _of_stage(record: RankRecord, number: int) -> RankRecord:
    """A record whose names say the stage."""

    def named(parameters: dict[str, SeenParameter]) -> dict[str, SeenParameter]:
        return {f"{name} of stage {number}": seen for name, seen in parameters.items()}

    steps = []
    for step in record.steps:
        steps.append(replace(step, parameters=named(step.parameters), others=named(step.others)))
    return replace(record, initial=named(record.initial), steps=steps)
