"""Gradients and values of two worlds side by side, with what rounding may change.

Runs where a comparison is judged, called by judge.py, gradients.py and movements.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distlab.comparison.judging.tolerances import Tolerances, exceeds
from distlab.comparison.judging.wholes import World
from distlab.comparison.records import Sketch

VAGUE = 0.1  # a bound above this share of the norm says little


@dataclass(frozen=True)
class Pair:
    """A parameter's gradient, its value, or its change in a step, in both worlds.

    Attributes:
        expected: of the reference.
        found: of the world that is compared.
        bound: what rounding may change.
    """

    expected: Sketch
    found: Sketch
    bound: float

    @property
    def distance(self) -> float:
        """How far they are apart."""
        return (self.found - self.expected).norm

    @property
    def differs(self) -> bool:
        """Whether they differ by more than rounding."""
        return exceeds(self.distance, self.bound)

    @property
    def is_noise(self) -> bool:
        """Whether neither is larger than what rounding may change."""
        return not (self.expected.norm > self.bound or exceeds(self.found.norm, self.bound))

    def is_times(self, factor: float) -> bool:
        """Whether the found one is a multiple of the expected one."""
        rest = (self.found - self.expected.scaled(factor)).norm
        return not exceeds(rest, self.bound * max(1.0, abs(factor)))


class Numbers:
    """The numbers of a world beside those of the reference.

    Attributes:
        world: what is compared.
        reference: with what.
        tolerances: what rounding may change.
        steps: how many both have made.
    """

    def __init__(self, world: World, tolerances: Tolerances):
        self.world = world
        self.reference = tolerances.reference
        self.tolerances = tolerances
        self.steps = min(len(world.steps), len(self.reference.steps))
        self._gradients: dict[int, dict[str, Pair]] = {}
        self._slack: dict[str, float] = {}
        self._slack_until = 0

    def gradients(self, step: int) -> dict[str, Pair]:
        """The gradients of a step by name; one that is not there counts as 0."""
        if step not in self._gradients:
            self._gradients[step] = dict(self._pairs_of_gradients(step))
        return self._gradients[step]

    def _pairs_of_gradients(self, step: int) -> Iterator[tuple[str, Pair]]:
        for name in self.names(step):
            right = self.reference.steps[step][name].whole("gradient")
            found = self.world.steps[step][name].mean_gradient()
            some = right if right is not None else found
            if some is None:
                continue
            zero = some.scaled(0.0)
            bound = self.tolerances.at(step, name).gradient
            yield name, Pair(right or zero, found or zero, bound)

    def values(self, step: int) -> dict[str, Pair]:
        """The values after a step by name."""
        self._add_slack(step)
        pairs = {}
        for name in self.names(step):
            right = self.reference.steps[step][name].whole("value")
            found = self.world.steps[step][name].mean_value()
            if right is not None and found is not None:
                bound = self.tolerances.at(step, name).value + self._slack.get(name, 0.0)
                pairs[name] = Pair(right, found, bound)
        return pairs

    def names(self, step: int) -> list[str]:
        """The parameters that both worlds have at a step, whole in the compared one."""
        names = []
        for name in self.reference.steps[step]:
            copies = self.world.steps[step].get(name)
            if copies is not None and copies.is_complete:
                names.append(name)
        return names

    def noise(self, step: int) -> list[str]:
        """The parameters whose gradients at a step are rounding, in both worlds."""
        return [name for name, pair in self.gradients(step).items() if pair.is_noise]

    def vagueness(self, step: int) -> float:
        """What share of the whole gradient of a step rounding explains."""
        bounds = 0.0
        norms = 0.0
        for pair in self.gradients(step).values():
            bounds += pair.bound**2
            norms += pair.expected.norm**2
        return (bounds / norms) ** 0.5 if norms else 0.0

    def _add_slack(self, step: int) -> None:
        """Note what steps have made of gradients that are rounding.

        An optimizer that divides by the size of a gradient makes full steps of it, and in any
        direction.
        """
        if step < self._slack_until:
            return
        for earlier in range(self._slack_until, step + 1):
            if self.reference.first_step(earlier).optimizer == "SGD":
                continue
            for name in self.noise(earlier):
                moved = 0.0
                for one in (self.reference, self.world):
                    before = one.previous_value(earlier, name)
                    after = one.steps[earlier][name].whole("value")
                    if before is not None and after is not None:
                        moved += (after - before).norm
                self._slack[name] = self._slack.get(name, 0.0) + moved
        self._slack_until = step + 1
