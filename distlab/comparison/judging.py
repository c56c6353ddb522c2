"""Findings from what was seen: is a world the same as the reference, and if not, why?

Pure functions of records, which need no torch. Called by verdict.py, on the notebook's kernel or
in pytest's process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from distlab.comparison.dropouts import find_dropouts
from distlab.comparison.evaluations import find_evaluation
from distlab.comparison.findings import Cause, Finding
from distlab.comparison.gradients import find_gradient
from distlab.comparison.hindrances import find_hindrances
from distlab.comparison.matching import names_in_reference
from distlab.comparison.movements import find_nothing_moved, find_step, is_noise
from distlab.comparison.orders import find_same_order
from distlab.comparison.records import RankRecord
from distlab.comparison.replicas import find_replicas
from distlab.comparison.rows import find_rows
from distlab.comparison.tolerances import Tolerances
from distlab.comparison.wholes import Kind, World

# with one of these, numbers of other trainings are compared, which says nothing
OTHER_TRAINING = {
    Cause.UNREPEATABLE,
    Cause.NO_STEP,
    Cause.RANDOM_DATA,
    Cause.UNDIVIDED,
    Cause.LARGER_BATCH,
    Cause.SAME_ROWS,
    Cause.ROWS_REPEATED,
    Cause.ROWS_DIFFER,
    Cause.NOTHING_MOVED,
    Cause.OTHER_INITIAL,
    Cause.NOT_AVERAGED,
    Cause.PARTLY_AVERAGED,
    Cause.REPLICAS_DIFFER,
}


@dataclass(frozen=True)
class Difference:
    """How far a parameter of a world is from that of the reference, at one step.

    All are relative to the norm in the reference.

    Attributes:
        step: counted from 0.
        parameter: its name.
        gradient, value: of the gradient, and of the value after the step.
        gradient_bound, value_bound: what rounding explains.
    """

    step: int
    parameter: str
    gradient: float
    gradient_bound: float
    value: float
    value_bound: float

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """Of the gradient and of the value, the difference and its bound."""
        return [(self.gradient, self.gradient_bound), (self.value, self.value_bound)]


class Judgement(NamedTuple):
    """What is said of one world.

    Attributes:
        findings: the most important first; none if it is the same.
        differences: of each step and parameter.
    """

    findings: list[Finding]
    differences: list[Difference]


def judge(
    reference: RankRecord | Sequence[RankRecord],
    perturbed: Sequence[RankRecord | Sequence[RankRecord]],
    ranks: Sequence[RankRecord],
) -> Judgement:
    """Compare a world with the reference.

    Runs on: anywhere.

    Args:
        reference: what each rank of the smallest world did.
        perturbed: the same world, each time with its numbers changed by one unit of rounding.
        ranks: what each rank of the world did.
    """
    right = World(_as_list(reference))
    names = [names_in_reference(record, right) for record in ranks]
    world = World(ranks, names)
    shaken = [World(_as_list(one)) for one in perturbed]
    tolerances = Tolerances(right, shaken, world.epsilon)
    findings = find_hindrances(world, right, tolerances)
    findings += find_rows(world, right)
    findings += find_same_order(world)
    findings += find_evaluation(world, right)
    findings += find_nothing_moved(world)
    findings += find_replicas(world, tolerances)
    findings += find_dropouts(world)
    findings += _find_numbers(world, right, tolerances, findings)
    return Judgement(in_order(findings), differences(world, tolerances))


def judge_ranks(ranks: Sequence[RankRecord]) -> Judgement:
    """Compare ranks with each other, without a run of one process.

    Runs on: anywhere.

    Args:
        ranks: what each rank did.
    """
    world = World(ranks)
    findings = find_same_order(world)
    findings += find_nothing_moved(world)
    findings += find_replicas(world, None)
    findings += find_dropouts(world)
    return Judgement(in_order(findings), [])


def _as_list(records: RankRecord | Sequence[RankRecord]) -> list[RankRecord]:
    return [records] if isinstance(records, RankRecord) else list(records)


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Mistakes before what cannot be compared, and each in the order of causes."""
    order = list(Cause)
    return sorted(findings, key=lambda one: (one.hinders, order.index(one.cause)))


def _find_numbers(
    world: World, reference: World, tolerances: Tolerances, known: Sequence[Finding]
) -> list[Finding]:
    """The first gradient, or step, that is another one, unless something known explains it."""
    explained = [one.step or 0 for one in known if one.cause in OTHER_TRAINING]
    if any(one.cause is Cause.LOCAL_STATISTICS for one in known):
        explained.append(0)
    steps = min([len(world.steps), len(reference.steps), *explained])
    for step in range(steps):
        finding = find_gradient(world, tolerances, step) or find_step(world, tolerances, step)
        if finding is not None:
            return [finding]
    return []


def differences(world: World, tolerances: Tolerances) -> list[Difference]:
    """The differences of all steps and parameters that both worlds have."""
    found = []
    for step in range(min(len(world.steps), len(tolerances.reference.steps))):
        for name in tolerances.reference.steps[step]:
            if name in world.steps[step] and not is_noise(world, tolerances, step, name):
                found.append(_difference(world, tolerances, step, name))
    return found


def _difference(world: World, tolerances: Tolerances, step: int, name: str) -> Difference:
    bounds = tolerances.at(step, name)
    gradient, gradient_norm = _distance(world, tolerances, step, name, "gradient")
    value, value_norm = _distance(world, tolerances, step, name, "value")
    return Difference(
        step,
        name,
        gradient / gradient_norm,
        bounds.gradient / gradient_norm,
        value / value_norm,
        bounds.value / value_norm,
    )


def _distance(
    world: World, tolerances: Tolerances, step: int, name: str, kind: Kind
) -> tuple[float, float]:
    """How far a sketch is from that of the reference, and the norm of that one."""
    expected = tolerances.reference.steps[step][name].whole(kind)
    copies = world.steps[step][name]
    found = copies.whole(kind)
    if expected is None or found is None:
        present = found or expected
        return (0.0, 1.0) if present is None else (present.norm, present.norm or 1.0)
    distance = max((found - expected).norm, copies.spread(kind))
    return distance, expected.norm or 1.0
