"""Why step() got another gradient than the backward passes of the ranks gave.

Runs where a comparison is judged, called by other_gradients.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from distlab.comparison.judging.factors import common_factor
from distlab.comparison.judging.forward_passes import most_passes
from distlab.comparison.judging.mixtures import (
    OWN,
    bound_of,
    find_multiple,
    find_weights,
    mean_pairs,
    own_gradients_of_reference,
)
from distlab.comparison.judging.pairs import Numbers
from distlab.comparison.judging.wording import listed, number
from distlab.comparison.records import Sketch
from distlab.words import rank_list

Why = tuple[str, list[str]]  # words that end the sentence, and further sentences
EQUAL = 0.02  # relative difference of numbers that are taken for equal
NOTHING = 1e-3  # a share that is taken for 0
AFTER_BACKWARD = (
    "The mean of the ranks' own gradients is that of one process, but step() got another one, so "
    "something changes it between backward() and step()."
)


def are_right(numbers: Numbers, step: int, own: OWN) -> bool:
    """Whether the ranks' own gradients together point where those of one process do."""
    return common_factor(mean_pairs(numbers, step, own), [1.0, 1 / numbers.world.size]) is not None


def why_changed(numbers: Numbers, step: int, own: OWN) -> Why:
    """Why step() got another gradient, though the ranks' own ones are right."""
    found = {name: numbers.gradients(step)[name].found for name in own}
    bounds = {name: numbers.gradients(step)[name].bound for name in own}
    weights = find_weights(found, own, bounds)
    if weights is not None:
        return _weighted(weights, own)
    kept = _kept(numbers, step, own, found, bounds)
    if kept:
        return f", because the gradient of step {step - 1} is still in it", [
            kept,
            "Call optimizer.zero_grad() before every backward(), on every rank.",
        ]
    passes = most_passes(numbers.world, step)
    if passes > 1:
        return f", because it is changed between its {passes} backward passes and step()", [
            AFTER_BACKWARD,
            "Usual reason: the gradients are reduced after every backward pass, so that what the "
            "first pass gave is reduced again. Reduce once, after the last pass.",
        ]
    return ", because it is changed between backward() and step()", [
        AFTER_BACKWARD,
        "Usual reasons: it is clipped or scaled by a number that is another one on several ranks, "
        "or what all_reduce gives is copied back in another order.",
    ]


def _weighted(weights: Mapping[int, float], own: OWN) -> Why:
    """Each rank's own gradient is in the sum with a weight of its own."""
    ranks = len(weights)
    shares = {rank: weight * ranks for rank, weight in weights.items()}
    largest = max(abs(share) for share in shares.values())
    absent = [rank for rank, share in shares.items() if abs(share) < NOTHING * largest]
    if absent:
        return f", because that of {rank_list(absent)} is left out", [
            "Let every rank take part in the reduction, with its own gradient."
        ]
    words = listed([number(share, 3) for share in shares.values()])
    details = [f"Before the average they are multiplied by {words} on ranks 0-{ranks - 1}."]
    norms = [share * _norm(own, rank) for rank, share in shares.items()]
    if max(norms) - min(norms) <= EQUAL * max(norms):
        return ", because each rank clips its own gradient before the average", [
            f"Each rank's own gradient is clipped to the norm {number(norms[0], 3)}.",
            *details,
            "Average first, and clip the average: every rank then clips by the same number.",
        ]
    return ", because each rank scales its own gradient before the average", [
        *details,
        "Usual reason: each rank clips or normalises its own gradient. Average first.",
    ]


def _norm(own: OWN, rank: int) -> float:
    """The norm of all that a rank's backward passes gave."""
    total = sum(seen[rank].norm ** 2 for seen in own.values())
    return float(total**0.5)


def _kept(
    numbers: Numbers,
    step: int,
    own: OWN,
    found: Mapping[str, Sketch],
    bounds: Mapping[str, float],
) -> str:
    """In words, that the gradient of the step before was not set to 0; "" if it was."""
    if step == 0:
        return ""
    earlier = {}
    rest = {}
    for name, right in own_gradients_of_reference(numbers, step).items():
        before = numbers.world.steps[step - 1].get(name)
        gradient = None if before is None else before.mean_gradient()
        if gradient is not None and name in own:
            earlier[name] = gradient
            rest[name] = found[name] - right
    wide = {name: bound_of(numbers, step, name, earlier[name]) + bounds[name] for name in earlier}
    times = find_multiple(rest, earlier, wide)
    if times is None or len(rest) < len(own) or abs(times) < NOTHING:
        return ""
    ranks = numbers.world.size
    some = round(times * ranks)
    if 0 < some < ranks and abs(times * ranks - some) < EQUAL:
        return f"It is in it {number(times)} times, as if {some} of {ranks} ranks had kept it."
    return f"It is in it {number(times)} times."
