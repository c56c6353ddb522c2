"""Findings from what was seen: is a world the same as the reference, and if not, why?

Pure functions of records, which need no torch. Called by verdict.py, on the notebook's kernel or
in pytest's process. The questions are asked in this order, because an answer makes later questions
pointless, or explains what they would find:

    does the reference do the same twice?   hindrances.py    if not, nothing can be compared
    does anything step?                     hindrances.py    without a step there are no numbers
    what could not be looked at?            hindrances.py    so that nobody says "the same" of it
    does each epoch have its own order?     orders.py        asked of samplers, not of numbers
    does evaluation count each row once?    evaluations.py   likewise
    does step() change anything?            movements.py     two worlds that stand still are equal
    are masks of dropout independent?       dropouts.py      numbers are compared without dropout
    does rounding leave anything to see?    hindrances.py    a bound may be as large as a mistake
    are all numbers finite?                 finiteness.py    nan is larger than every bound
    which rows did each step use?           rows.py          other rows make other gradients
    are replicas equal?                     replicas.py      if not, there is no one gradient
    is the first gradient that differs      gradients.py     its values were still right
      a multiple, a mean of means, ...?
    or the first step, of right gradients?  movements.py     what an optimizer makes of them
    or the loss, if types are coarse?       loss_values.py   more exact than gradients are then

Findings about rows are kept only if numbers differ as well, and not in an earlier step: rows that
a model makes, and parts of rows, are never equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.judging.drifts import first_drift
from distlab.comparison.judging.dropouts import find_dropouts
from distlab.comparison.judging.evaluations import find_evaluation
from distlab.comparison.judging.finiteness import find_not_finite
from distlab.comparison.judging.forward_passes import lines_of_step
from distlab.comparison.judging.gradients import find_gradient, is_compensated
from distlab.comparison.judging.hand_made import with_pieces
from distlab.comparison.judging.hindrances import (
    excuse,
    find_blindness,
    find_hindrances,
    find_no_step_on_ranks,
    first_blind_step,
    strangers_of_ranks,
)
from distlab.comparison.judging.loss_values import find_loss
from distlab.comparison.judging.matching import renamed, without_strangers
from distlab.comparison.judging.movements import find_nothing_moved, find_other_steps, find_step
from distlab.comparison.judging.orders import find_same_order
from distlab.comparison.judging.pairs import Numbers
from distlab.comparison.judging.rank_rows import find_rows_of_ranks
from distlab.comparison.judging.replicas import find_replicas
from distlab.comparison.judging.rows import find_rows, lines_of_forward
from distlab.comparison.judging.stages import with_names_of_stages
from distlab.comparison.judging.tolerances import Tolerances
from distlab.comparison.judging.wholes import World
from distlab.comparison.records import RankRecord

# with one of these, the numbers of two different trainings are compared, which says nothing
OTHER_TRAINING = (
    Cause.UNREPEATABLE,
    Cause.NO_STEP,
    Cause.LARGER_BATCH,
    Cause.OTHER_STEPS,
    Cause.NOTHING_MOVED,
    Cause.OTHER_INITIAL,
)
# these only explain other numbers
EXPLAINS = (Cause.RANDOM_DATA, Cause.SAME_ROWS, Cause.ROWS_REPEATED, Cause.ROWS_DIFFER)
UNEXPLAINED = (Cause.GRADIENT_DIFFERS, Cause.STEP_DIFFERS, Cause.LOSS_DIFFERS)


@dataclass(frozen=True)
class Difference:
    """How far a parameter of a world is from that of the reference, at one step.

    All are relative to the norm in the reference.

    Attributes:
        step: counted from 0.
        parameter: its name.
        gradient, value: of the gradient, and of the value after the step. The gradient is not a
            number where the optimizer itself averages, so that only the value can be compared.
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
        """Of the gradient, if it can be compared, and the value: the difference and its bound."""
        of_value = (self.value, self.value_bound)
        if math.isnan(self.gradient):
            return [of_value]
        return [(self.gradient, self.gradient_bound), of_value]


class Judgement(NamedTuple):
    """What is said of one world.

    Attributes:
        findings: the most important first; none if it is the same.
        differences: of each step and parameter.
        noise: parameters whose gradients were never larger than rounding.
        vagueness: what share of the gradient rounding explains, at most.
    """

    findings: list[Finding]
    differences: list[Difference]
    noise: list[str]
    vagueness: float


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
    with np.errstate(all="ignore"):  # numbers that are not finite are found, and said
        return _judged(_as_list(reference), [_as_list(one) for one in perturbed], ranks)


def _judged(
    reference: Sequence[RankRecord],
    perturbed: Sequence[Sequence[RankRecord]],
    ranks: Sequence[RankRecord],
) -> Judgement:
    right = World(reference)
    records, left_out = with_pieces([renamed(record, right) for record in ranks], right)
    world = World(records)
    shaken = [World(one) for one in perturbed]
    numbers = Numbers(world, Tolerances(right, shaken, world))
    findings = find_hindrances(numbers, left_out)
    findings += find_same_order(world)
    findings += find_evaluation(world, right)
    findings += find_nothing_moved(world)
    findings += find_nothing_moved(right)
    findings += find_dropouts(world)
    findings += find_blindness(numbers, findings)
    findings += _find_trainings(numbers, shaken, findings)
    noise = [name for name in numbers.names(0) if _is_noise(numbers, name)] if numbers.steps else []
    vagueness = max([0.0, *[numbers.vagueness(step) for step in range(numbers.steps)]])
    findings = [with_lines(finding, world) for finding in findings]
    return Judgement(in_order(findings), differences(numbers), noise, vagueness)


def judge_ranks(ranks: Sequence[RankRecord]) -> Judgement:
    """Compare ranks with each other, without a run of one process.

    Runs on: anywhere.

    Args:
        ranks: what each rank did.
    """
    known, left_out = without_strangers(ranks)
    with np.errstate(all="ignore"):
        world = World(with_names_of_stages(known))
        findings = find_nothing_moved(World(ranks))
        if left_out and not findings:
            findings.append(strangers_of_ranks(world))
        findings += find_no_step_on_ranks(world)
        findings += find_rows_of_ranks(world)
        findings += find_same_order(world)
        findings += find_not_finite(world, None) or find_replicas(world, None)
        findings += find_dropouts(world)
    findings = [with_lines(finding, world) for finding in findings]
    return Judgement(in_order(findings), [], [], 0.0)


def with_lines(finding: Finding, world: World) -> Finding:
    """A finding with some line to look at: that of a forward pass or of a step, if no other."""
    if finding.lines or not finding.world_size:
        return finding
    step = finding.step or 0
    lines = lines_of_forward(world, step)
    if step < len(world.steps) and not lines:
        lines = lines_of_step(world, step)
    return replace(finding, lines=lines[:1])


def _as_list(records: RankRecord | Sequence[RankRecord]) -> list[RankRecord]:
    return [records] if isinstance(records, RankRecord) else list(records)


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Findings in the order of their causes; of one cause, mistakes before what hinders."""
    order = list(Cause)
    return sorted(findings, key=lambda one: (order.index(one.cause), one.hinders))


# --- rows, replicas and numbers, which explain each other ---


def _find_trainings(
    numbers: Numbers, perturbed: Sequence[World], known: Sequence[Finding]
) -> list[Finding]:
    """Findings about rows, replicas and numbers, without those that others explain."""
    causes = {finding.cause for finding in known}
    if causes & {Cause.UNREPEATABLE, Cause.NO_STEP}:
        return []
    not_finite = find_not_finite(numbers.world, numbers.reference)
    rows = find_rows(numbers.world, numbers.reference, perturbed)
    replicas = [] if not_finite else find_replicas(numbers.world, numbers.tolerances)
    drifts = [finding for finding in replicas if finding.step is not None]
    begins = [finding.step for finding in [*not_finite, *drifts] if finding.step is not None]
    is_other = causes & set(OTHER_TRAINING) or any(
        finding.cause in OTHER_TRAINING for finding in [*rows, *replicas]
    )
    number = None
    if not is_other:
        blind = first_blind_step(numbers)
        if blind is not None:
            begins.append(blind)
        number = _find_number(numbers, min(begins, default=numbers.steps))
    number = _excused(numbers, number, causes)
    first = min([one.step or 0 for one in [*drifts, *not_finite, number] if one], default=None)
    rows = _that_explain(numbers, rows, first)
    if any(finding.ranks and not finding.parameters for finding in drifts):
        rows = []  # of ranks that do not step as often
    if not rows and not replicas and not not_finite:
        rows = find_other_steps(numbers)
    if number is not None and any(_explain(finding, number) for finding in rows):
        number = None
    return [*not_finite, *rows, *replicas, *([] if number is None else [number])]


def _explain(rows: Finding, number: Finding) -> bool:
    """Whether other rows explain other numbers: only rows of the same step, or an earlier one."""
    return rows.cause is not Cause.UNDIVIDED and (rows.step or 0) <= (number.step or 0)


def _find_number(numbers: Numbers, until: int) -> Finding | None:
    """The first gradient, step or loss that is another one."""
    for step in range(min(numbers.steps, until)):
        finding = (
            find_gradient(numbers, step) or find_step(numbers, step) or find_loss(numbers, step)
        )
        if finding is not None:
            return finding
    return None


def _excused(numbers: Numbers, number: Finding | None, causes: set[Cause]) -> Finding | None:
    """A finding about numbers; nothing, or what hinders, if they prove no mistake."""
    if number is None or number.cause not in UNEXPLAINED:
        return number
    if Cause.LOCAL_STATISTICS in causes:
        return None
    return excuse(numbers.world, numbers.reference) or number


def _that_explain(numbers: Numbers, rows: Sequence[Finding], first: int | None) -> list[Finding]:
    """Findings about rows, without those that explain nothing.

    Where all numbers agree, other rows are none that matter: parts of rows, or rows of a model.
    Rows that become others after the numbers did are made by them.

    Args:
        numbers: of both worlds.
        rows: the findings about rows.
        first: the first step in which numbers differ; None if they agree.
    """
    found = []
    have_as_many_steps = len(numbers.world.steps) == len(numbers.reference.steps)
    for finding in rows:
        if finding.cause is Cause.UNDIVIDED and numbers.world.is_in_pieces:
            continue
        if finding.cause in EXPLAINS:
            if first is None and have_as_many_steps:
                continue
            is_late = first is not None and first < (finding.step or 0)
            if is_late and finding.cause is Cause.RANDOM_DATA:
                continue
        found.append(finding)
    return found


# --- how far numbers are apart ---


def _is_noise(numbers: Numbers, name: str) -> bool:
    """Whether the gradients of a parameter were never larger than rounding."""
    return all(name in numbers.noise(step) for step in range(numbers.steps))


def differences(numbers: Numbers) -> list[Difference]:
    """The differences of all steps and parameters that both worlds have."""
    found = []
    # replicas that are averaged after each step are not equal when they are seen
    are_apart = first_drift(numbers.world, numbers.tolerances) is not None
    for step in range(numbers.steps):
        values = numbers.values(step)
        pairs = numbers.gradients(step)
        wrong = {name: pair for name, pair in pairs.items() if pair.differs}
        compensated = wrong if wrong and is_compensated(numbers, step, wrong) else {}
        for name, pair in pairs.items():
            if name not in values:
                continue
            copies = numbers.world.steps[step][name]
            norm = pair.expected.norm or 1.0
            gradient = pair.distance / norm
            if name in compensated:
                gradient = math.nan
            value = values[name]
            value_norm = value.expected.norm or 1.0
            distance = value.distance
            if are_apart:
                distance = max(distance, copies.spread("value"))
            found.append(
                Difference(
                    step,
                    name,
                    gradient,
                    pair.bound / norm,
                    distance / value_norm,
                    value.bound / value_norm,
                )
            )
    return found
