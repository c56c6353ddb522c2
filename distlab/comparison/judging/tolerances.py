"""How much of a difference is rounding: what changes if every number is changed by its last digit.

Runs where a comparison is judged, called by judge.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distlab.comparison.judging.wholes import Copies, Kind, World
from distlab.comparison.records import Sketch

SAFETY = 16  # times what the perturbed runs have changed
FEW = 16  # epsilons of the norm: never less than that
# a coarse type hides the order of sums: products are added up in float32, and rounded once
COARSE = 1e-4
SAFETY_IF_COARSE = 3
FEW_IF_COARSE = 1
FEW_OF_MESSAGES = 8  # if what travels is coarse: the sum of rounded gradients is smaller
OF_FLOAT32 = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Bounds:
    """What rounding may change in one parameter, as norms of differences.

    Attributes:
        gradient, value: of the gradient, and of the value after the step.
    """

    gradient: float
    value: float


class Tolerances:
    """Bounds for each parameter and step of the reference."""

    def __init__(self, reference: World, perturbed: Sequence[World], world: World):
        """Measure them.

        Args:
            reference: the world that others are compared with.
            perturbed: the same world, with its numbers changed by one unit of rounding.
            world: what is compared, where coarser types may be in use.
        """
        self.reference = reference
        self.perturbed = list(perturbed)
        self.epsilon = max(world.epsilon, reference.epsilon)
        self.coarser = self.epsilon / reference.epsilon if reference.epsilon else 1.0
        self.safety = SAFETY
        self.few = FEW * self.epsilon
        if self.epsilon > COARSE:
            self.safety = SAFETY_IF_COARSE
            are_sent = self.coarser > 1 or any(record.compression for record in world.records)
            few = FEW_OF_MESSAGES if are_sent else FEW_IF_COARSE
            self.few = few * self.epsilon
        self._bounds: dict[tuple[int, str], Bounds] = {}
        self._roughness: dict[int, float] = {}

    def at(self, step: int, name: str) -> Bounds:
        """The bounds of a parameter that the reference has at a step."""
        key = step, name
        if key not in self._bounds:
            copies = self.reference.steps[step][name]
            gradient = self._bound(copies, step, "gradient", self.few)
            gradient += self._noise(step, copies)
            if self.epsilon > COARSE:
                value = self._of_gradients(step, name, gradient)
            else:
                value = self._bound(copies, step, "value", self.few)
            self._bounds[key] = Bounds(gradient, value)
        return self._bounds[key]

    def of_initial(self, name: str) -> float:
        """What equal initial values may differ by."""
        value = self.reference.initial[name].whole("value")
        return 0.0 if value is None else FEW * OF_FLOAT32 * value.norm

    def _of_gradients(self, step: int, name: str, bound: float) -> float:
        """What a bound of the gradient lets a step change, and the steps before it.

        The values of perturbed runs would say too much: they begin with other last digits, which
        are large ones of a coarse type.
        """
        gradient = self.reference.steps[step][name].whole("gradient")
        value = self.reference.steps[step][name].whole("value")
        before = self.reference.previous_value(step, name)
        change = 0.0 if value is None else FEW * OF_FLOAT32 * value.norm
        if gradient is not None and value is not None and before is not None and gradient.norm:
            change += 2 * (value - before).norm * min(1.0, bound / gradient.norm)
        if step and name in self.reference.steps[step - 1]:
            change += self.at(step - 1, name).value
        return change

    def _bound(self, copies: Copies, step: int, kind: Kind, few: float) -> float:
        """A multiple of what the perturbed runs change, and not below FEW epsilons of the norm."""
        plain = copies.whole(kind)
        if plain is None:
            return 0.0
        changed = 0.0
        for world in self.perturbed:
            if step < len(world.steps) and copies.name in world.steps[step]:
                other = world.steps[step][copies.name].whole(kind)
                if other is not None:
                    changed = max(changed, (other - plain).norm)
        coarser = self.coarser if kind == "gradient" else 1.0
        return max(self.safety * coarser * changed, few * plain.norm)

    def _noise(self, step: int, copies: Copies) -> float:
        """What rounding leaves where a gradient is a sum of large numbers that cancel.

        Such a gradient, as that of a key's bias, may be exactly 0 in one process. It is compared
        with the largest gradients of the model.
        """
        if step not in self._roughness:
            largest = 0.0
            for other in self.reference.steps[step].values():
                gradient = other.whole("gradient")
                if gradient is not None and np.isfinite(gradient.norm):
                    largest = max(largest, _typical(gradient))
            self._roughness[step] = largest
        gradient = copies.whole("gradient")
        if gradient is None:
            return 0.0
        return self.few / 4 * self._roughness[step] * float(np.sqrt(gradient.elements))


def _typical(sketch: Sketch) -> float:
    """The root of the mean square of the elements."""
    return sketch.norm / float(np.sqrt(max(sketch.elements, 1)))


def exceeds(difference: float, bound: float) -> bool:
    """Whether a difference is more than rounding; also if it is not a number."""
    return not difference <= bound
