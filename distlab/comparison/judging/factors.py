"""One number that explains how a gradient, or a step, is too large: which, and what it may mean.

Runs where a comparison is judged, called by gradients.py, movements.py and verdict.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from distlab.comparison.judging.pairs import Pair
from distlab.comparison.judging.wording import name_list, number

NEAR_ONE = 0.01  # a factor that is so near to 1 is written with more digits
CLOSE = 2e-3  # relative distance of a factor from the number that it is taken for
VAGUEST = 0.1  # relative error of a factor that is still one
ORDINARY = (0.0, 2.0, 0.5, -1.0)  # numbers that factors often are


def common_factor(pairs: Mapping[str, Pair], numbers: Sequence[float]) -> float | None:
    """The one number by which all are multiplied, or None.

    Args:
        pairs: by name.
        numbers: likely ones, which are preferred to the measured number.
    """
    measured, error = _measured(list(pairs.values()))
    if not error <= VAGUEST:
        return None
    likely = sorted([*numbers, *ORDINARY], key=lambda likely_one: abs(likely_one - measured))
    for factor in [*likely[:1], measured]:
        distance = abs(factor - measured)
        is_close = distance <= max(CLOSE, error) * max(abs(factor), abs(measured), CLOSE)
        if is_close and all(pair.is_times(factor) for pair in pairs.values()):
            return factor
    return None


def _measured(pairs: Sequence[Pair]) -> tuple[float, float]:
    """The factor of the parameters that say it best, and its relative error."""
    errors = []
    factors = []
    for pair in pairs:
        size = pair.expected.dot(pair.expected)
        if size and np.isfinite(size):
            factors.append(pair.found.dot(pair.expected) / size)
            errors.append(pair.bound / np.sqrt(size))
    if not errors:
        return 0.0, np.inf
    best = min(errors)
    sharp = [one for one, error in zip(factors, errors, strict=True) if error <= 4 * best]
    return float(np.median(sharp)), float(best)


def meanings(ranks: int, passes: int, passes_of_reference: int) -> dict[str, float]:
    """Numbers that come from the ranks and the backward passes, by what they mean.

    Args:
        ranks: how many.
        passes: backward passes for each step of a rank.
        passes_of_reference: of one process.
    """
    numbers: dict[str, float] = {}
    if passes != passes_of_reference:  # which is seldom so without a reason
        words = f"{passes} / {passes_of_reference} backward passes per step"
        numbers[words] = passes / passes_of_reference
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
    value = number(factor, 7 if abs(factor - 1) < NEAR_ONE else 4)
    if means:
        value = f"{value} = {means[0]}"
    whom = f"for {name_list(list(names))} only" if names else "for every parameter"
    return f"The {noun} is a multiple of the right one: {value} {whom}{others}."
