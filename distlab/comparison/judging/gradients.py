"""Findings about gradients that are equal on all replicas, and not those of one process.

Runs where a comparison is judged, called by judge.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.judging.factors import (
    ORDINARY,
    common_factor,
    factor_words,
    meanings,
    meanings_of,
)
from distlab.comparison.judging.forward_passes import lines_of_backward, most_passes
from distlab.comparison.judging.other_gradients import (
    find_other_gradient,
    find_scaled_parts,
    find_unequal_parts,
)
from distlab.comparison.judging.pairs import Numbers, Pair
from distlab.comparison.judging.reasons import reason_for_factor

# optimizers whose steps do not depend on the size of the gradient
SCALE_FREE = (
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "RAdam",
    "SparseAdam",
    "Adagrad",
    "Adadelta",
    "RMSprop",
    "Rprop",
    "Adafactor",
    "Muon",
)


def find_gradient(numbers: Numbers, step: int) -> Finding | None:
    """What is wrong with the gradients of a step before which all values were right, or None."""
    pairs = numbers.gradients(step)
    wrong = {name: pair for name, pair in pairs.items() if pair.differs}
    if not wrong:
        return None
    factor = _find_factor(numbers, step, wrong)
    if is_compensated(numbers, step, wrong):
        if not _is_hidden(numbers, step):
            return None
        return factor or find_scaled_parts(numbers, step, wrong)
    if factor is not None and factor.meanings:
        return factor
    return find_unequal_parts(numbers, step) or factor or find_other_gradient(numbers, step, wrong)


# --- gradients that differ, and steps that do not ---


def is_compensated(numbers: Numbers, step: int, wrong: Mapping[str, Pair]) -> bool:
    """Whether the values after the step are right, although they would show the difference."""
    values = numbers.values(step)
    shown = 0
    for name, pair in wrong.items():
        before = numbers.reference.previous_value(step, name)
        if name not in values or before is None or values[name].differs:
            return False
        moved = (values[name].expected - before).norm
        share = pair.distance / (pair.expected.norm or 1.0)
        if moved * min(share, 1.0) > 4 * values[name].bound:
            shown += 1
    return 2 * shown >= len(wrong)


def _is_hidden(numbers: Numbers, step: int) -> bool:
    """Whether the optimizer divides by the size of the gradient, and takes the same steps."""
    seen = numbers.world.first_step(step)
    right = numbers.reference.first_step(step)
    return seen.optimizer in SCALE_FREE and seen.learning_rates == right.learning_rates


# --- one factor ---


def _find_factor(numbers: Numbers, step: int, wrong: Mapping[str, Pair]) -> Finding | None:
    """The finding that one factor explains all gradients, or those of some parameters."""
    pairs = numbers.gradients(step)
    world = numbers.world
    likely = meanings(world.size, most_passes(world, step), most_passes(numbers.reference, step))
    for candidates in (pairs, wrong):
        factor = common_factor(candidates, list(likely.values()))
        if factor is None or factor in (0.0, 1.0):
            continue
        if len(candidates) == 1 < len(pairs) and factor not in (*likely.values(), *ORDINARY):
            continue  # one tensor, of few elements, is nearly a multiple of another one by chance
        names = () if len(candidates) == len(pairs) else tuple(wrong)
        means = meanings_of(factor, likely)
        details = [reason_for_factor(factor, means, bool(names))]
        if is_compensated(numbers, step, wrong):
            details.insert(0, _hidden_words(world.first_step(step).optimizer))
        return Finding(
            Cause.GRADIENT_FACTOR,
            factor_words("gradient", factor, means, names),
            tuple(details),
            world.size,
            step,
            names or tuple(pairs),
            factor,
            lines=lines_of_backward(world, step),
            meanings=means,
        )
    return None


def _hidden_words(optimizer: str) -> str:
    return (
        f"{optimizer} divides by the size of the gradient, so its steps are right all the same. "
        "Clipping, weight decay or another optimizer would show the factor."
    )
