"""Where replicas drift apart: the first step after which they are not equal.

Runs where a comparison is judged, called by replicas.py and averages.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distlab.comparison.records import Sketch
from distlab.comparison.tolerances import COARSE, OF_FLOAT32, Bounds, Tolerances, exceeds
from distlab.comparison.wholes import Copies, World
from distlab.comparison.wording import number

PLAIN = 100  # times its bound must replicas differ for their mean to prove something
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
            bounds[name] = bounds_of(copies, step, world, tolerances).value + 2 * before
            if exceeds(copies.spread("value"), bounds[name]):
                values.append(name)
        if values:
            return _drift(step, values, bounds, world, tolerances)
    return None


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
    """Whether the mean of the replicas is right after every step: something averages the values.

    What the steps do must depend on the values, so one step proves nothing.
    """
    steps = len(tolerances.reference.steps)
    if steps < 2 or len(world.steps) != steps or tolerances.epsilon > COARSE:
        return False
    largest = 0.0
    for step in range(steps):
        for name, expected in tolerances.reference.steps[step].items():
            copies = world.steps[step].get(name)
            right = expected.whole("value")
            mean = None if copies is None else copies.mean_value()
            if right is None or mean is None or len(mean.sums) != len(right.sums):
                return False
            bound = tolerances.at(step, name).value
            if exceeds((mean - right).norm, bound):
                return False
            if copies is not None and bound:
                largest = max(largest, copies.spread("value") / bound)
    return largest > PLAIN


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
