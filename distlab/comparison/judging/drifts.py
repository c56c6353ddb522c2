"""Where replicas drift apart: the first step after which they are not equal.

Runs where a comparison is judged, called by replicas.py and averages.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distlab.comparison.judging.tolerances import COARSE, OF_FLOAT32, Bounds, Tolerances, exceeds
from distlab.comparison.judging.wholes import Copies, World
from distlab.comparison.judging.wording import number
from distlab.comparison.records import Sketch

PLAIN = 4  # times its bound must replicas differ to be equal again later
SHOWN = 0.1  # of what gradients take replicas apart
EQUAL = 64  # epsilons of the norm by which replicas may differ where there is no reference


@dataclass(frozen=True)
class Drift:
    """The first step after which replicas are not equal.

    Attributes:
        step: counted from 0.
        values: names of the parameters whose values differ.
        gradients: names of those whose gradients differ between replicas.
        averaged: names of those whose gradients are equal, and are not 0.
        bounds: by which a value may differ, by name.
    """

    step: int
    values: tuple[str, ...]
    gradients: tuple[str, ...]
    averaged: tuple[str, ...]
    bounds: Mapping[str, float]

    def in_words(self, world: World) -> str:
        """By how much replicas differ after the first step and after the last one."""
        last = len(world.steps) - 1
        name = max(self.values, key=lambda one: self._relative(world, self.step, one))
        first_size = self._relative(world, self.step, name)
        words = (
            f"After step {self.step} the replicas of {name} differ by {number(first_size)} times "
            "their norm"
        )
        last_size = self._relative(world, last, name)
        if last > self.step and last_size:
            words += f", and after step {last} by {number(last_size)} times"
        return f"{words}."

    def _relative(self, world: World, step: int, name: str) -> float:
        copies = world.steps[step].get(name)
        value = None if copies is None else copies.whole("value")
        if copies is None or value is None:
            return 0.0
        return copies.spread("value") / (value.norm or 1.0)


def first_drift(world: World, tolerances: Tolerances | None) -> Drift | None:
    """The first step after which values of replicas differ by more than rounding, or None.

    A distance that replicas have from the beginning is no drift.
    """
    if tolerances is not None and _are_averaged_later(world, tolerances):
        return None
    for step, parameters in enumerate(world.steps):
        values = []
        bounds = {}
        for name, copies in parameters.items():
            before = world.initial[name].spread("value") if name in world.initial else 0.0
            bound = bounds_of(copies, step, world, tolerances)
            bounds[name] = bound.value + 2 * before
            if exceeds(copies.spread("value"), bounds[name]) or (
                not before and _drifts_slowly(world, step, copies, bound.gradient)
            ):
                values.append(name)
        if values:
            return _drift(step, values, bounds, world, tolerances)
    return None


def _drifts_slowly(world: World, step: int, copies: Copies, bound: float) -> bool:
    """Whether replicas get different gradients, and small steps take them a little apart.

    Replicas whose optimizers average have different gradients as well, but stay equal.

    Args:
        world: what was seen.
        step: of which.
        copies: a parameter after it.
        bound: by which gradients may differ.
    """
    gradient = copies.whole("gradient")
    value = copies.whole("value")
    before = world.previous_value(step, copies.name)
    spread = copies.spread("gradient")
    if gradient is None or value is None or before is None or not spread > bound:
        return False
    expected = (value - before).norm * min(1.0, spread / (gradient.norm or 1.0))
    return copies.spread("value") > SHOWN * expected


def _drift(
    step: int,
    values: list[str],
    bounds: Mapping[str, float],
    world: World,
    tolerances: Tolerances | None,
) -> Drift:
    """The drift of these values, with what the gradients were."""
    gradients = []
    averaged = []
    for name, copies in world.steps[step].items():
        bound = bounds_of(copies, step, world, tolerances).gradient
        gradient = copies.whole("gradient")
        if gradient is None:
            continue
        if exceeds(copies.spread("gradient"), bound):
            gradients.append(name)
        elif len(copies.by_rank) > len(copies.groups) and gradient.norm > 4 * bound:
            averaged.append(name)
    return Drift(step, tuple(values), tuple(gradients), tuple(averaged), bounds)


def _are_averaged_later(world: World, tolerances: Tolerances) -> bool:
    """Whether something makes the replicas equal again between a step and the next one.

    What they were before a step is known of plain gradient descent: what the step took away, added
    again. So only that is recognised, and only if there is a next step.
    """
    apart = 0
    for step in range(1, len(world.steps)):
        for name, copies in world.steps[step].items():
            if name not in world.steps[step - 1]:
                return False
            bound = bounds_of(copies, step, world, tolerances).value
            before = _spread_before(world, step, copies)
            if before is None or exceeds(before, bound):
                return False
            if world.steps[step - 1][name].spread("value") > PLAIN * bound:
                apart += 1
    return apart > 0


def _spread_before(world: World, step: int, copies: Copies) -> float | None:
    """How far apart replicas were before a step of plain gradient descent; None if unknown."""
    largest = 0.0
    for ranks in copies.groups:
        first = None
        for rank in ranks:
            seen = copies.by_rank[rank]
            made = world.records[rank].steps[step]
            if made.optimizer != "SGD" or len(set(made.learning_rates)) != 1:
                return None
            if seen.gradient is None:
                return None
            before = seen.value + seen.gradient.scaled(made.learning_rates[0])
            first = before if first is None else first
            largest = max(largest, (before - first).norm)
    return largest


def bounds_of(copies: Copies, step: int, world: World, tolerances: Tolerances | None) -> Bounds:
    """The bounds by which replicas of a parameter may differ.

    They get the same gradients, in whichever type these were computed, so a coarse type is no
    excuse.
    """
    if tolerances is not None and world.epsilon <= COARSE:
        steps = tolerances.reference.steps
        if step < len(steps) and copies.name in steps[step]:
            return tolerances.at(step, copies.name)
    return Bounds(small(copies.whole("gradient")), small(copies.whole("value")))


def small(sketch: Sketch | None) -> float:
    """What equal numbers may differ by where nothing was measured."""
    return 0.0 if sketch is None else EQUAL * OF_FLOAT32 * sketch.norm


# --- which ranks ---


def alike(copies: Copies, bound: float) -> list[list[int]]:
    """Replicas with the same values, in lists, for each piece."""
    found: list[list[int]] = []
    for ranks in copies.groups:
        values = copies.sketches("value", ranks)
        of_piece: list[list[int]] = []
        for rank, value in values.items():
            for others in of_piece:
                if not exceeds((values[others[0]] - value).norm, bound):
                    others.append(rank)
                    break
            else:
                of_piece.append([rank])
        found += of_piece
    return found


def odd_ranks(copies: Copies, bound: float) -> set[int]:
    """The ranks that are unlike most others: all of them if no two are alike."""
    lists = alike(copies, bound)
    most = max(lists, key=len)
    if len(most) == 1:
        return set(copies.by_rank)
    return {rank for ranks in lists for rank in ranks if ranks is not most}
