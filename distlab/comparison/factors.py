"""One number that explains how a gradient, or a step, is too large: which, and what it may mean.

Runs where a comparison is judged, called by gradients.py, movements.py and verdict.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distlab.comparison.records import Sketch
from distlab.comparison.tolerances import exceeds
from distlab.comparison.wording import name_list, number

SURE = 20  # times its bound must a gradient be for its factor to count
CLOSE = 2e-3  # relative distance of a factor from the number that it is taken for


@dataclass(frozen=True)
class Pair:
    """A parameter's gradient, or its change in a step, in both worlds.

    Attributes:
        expected: of the reference.
        found: of the world that is compared.
        bound: what rounding may change.
    """

    expected: Sketch
    found: Sketch
    bound: float

    @property
    def differs(self) -> bool:
        """Whether they differ by more than rounding."""
        return exceeds((self.found - self.expected).norm, self.bound)

    def is_times(self, factor: float) -> bool:
        """Whether the found one is a multiple of the expected one."""
        rest = (self.found - self.expected.scaled(factor)).norm
        return not exceeds(rest, self.bound * max(1.0, abs(factor)))


def common_factor(pairs: Mapping[str, Pair], numbers: Sequence[float]) -> float | None:
    """The one number by which all are multiplied, or None.

    Args:
        pairs: by name.
        numbers: likely ones, which are preferred to the measured number.
    """
    sure = [pair for pair in pairs.values() if pair.expected.norm > SURE * pair.bound]
    if not sure:
        return None
    measured = float(np.median([_factor_of(pair) for pair in sure]))
    if not np.isfinite(measured):
        return None
    likely = sorted(numbers, key=lambda likely_one: abs(likely_one - measured))
    for factor in [*likely[:1], measured]:
        is_close = abs(factor - measured) <= CLOSE * max(abs(factor), abs(measured), CLOSE)
        if is_close and all(pair.is_times(factor) for pair in pairs.values()):
            return factor
    return None


def _factor_of(pair: Pair) -> float:
    return pair.found.dot(pair.expected) / pair.expected.dot(pair.expected)


def meanings(ranks: int, passes: int, passes_of_reference: int) -> dict[str, float]:
    """Numbers that come from the ranks and the backward passes, by what they mean.

    Args:
        ranks: how many.
        passes: backward passes for each step of a rank.
        passes_of_reference: of one process.
    """
    numbers: dict[str, float] = {}
    if passes != passes_of_reference:
        numbers[_passes_words(passes, passes_of_reference)] = passes / passes_of_reference
    if ranks > 1:
        numbers |= {"1 / ranks": 1 / ranks, "ranks": ranks}
    if passes > 1:
        numbers |= {"backward passes per step": passes, "1 / backward passes per step": 1 / passes}
    if ranks > 1:
        numbers |= {"ranks²": ranks**2, "1 / ranks²": 1 / ranks**2}
    if ranks > 1 and passes > 1:
        numbers["ranks x backward passes per step"] = ranks * passes
        numbers["1 / (ranks x backward passes per step)"] = 1 / (ranks * passes)
        numbers["ranks / backward passes per step"] = ranks / passes
        numbers["backward passes per step / ranks"] = passes / ranks
    return numbers


def _passes_words(passes: int, passes_of_reference: int) -> str:
    return f"{passes} / {passes_of_reference} backward passes per step"


def meanings_of(factor: float, numbers: Mapping[str, float]) -> tuple[str, ...]:
    """What a factor may mean, the likeliest first."""
    return tuple(
        meaning for meaning, value in numbers.items() if abs(value - factor) <= 1e-9 * abs(value)
    )


def factor_words(
    noun: str, factor: float, means: Sequence[str], names: Sequence[str], others: str = ""
) -> str:
    """A factor in a sentence.

    Args:
        noun: what is multiplied, "gradient" or "step".
        factor: by which.
        means: what it may mean; the first is said.
        names: of the parameters that show it; none for all.
        others: of other worlds, such as " (0.5 on 2 ranks)".
    """
    value = number(factor, 4)
    if means:
        value = f"{value} = {means[0]}"
    whom = f"for {name_list(list(names))} only" if names else "for every parameter"
    return f"The {noun} is a multiple of the right one: {value} {whom}{others}."
