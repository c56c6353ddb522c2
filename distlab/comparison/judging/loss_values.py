"""Findings about losses, where types are so coarse that gradients say little.

Runs where a comparison is judged, called by judge.py.
"""

from __future__ import annotations

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.judging.forward_passes import lines_of_backward, losses_of, unequal_weights
from distlab.comparison.judging.pairs import VAGUE, Numbers
from distlab.comparison.judging.tolerances import COARSE
from distlab.comparison.judging.wording import number

LARGER = 3  # times what rounding changes must a loss differ


def find_loss(numbers: Numbers, step: int) -> Finding | None:
    """The finding that losses are others, if gradients are too vague to show it."""
    is_coarse = numbers.tolerances.epsilon > COARSE
    if not is_coarse or not numbers.vagueness(step) > VAGUE:
        return None
    losses = losses_of(numbers.world, step)
    expected = losses_of(numbers.reference, step)
    if len(expected) != 1 or not losses:
        return None
    (right,) = expected.values()
    bound = _bound(numbers, step, right)
    total = sum(losses.values())
    possible = [total, total / len(losses), *losses.values()]
    for weights in unequal_weights(numbers.world, step).values():
        weight = sum(weights[rank] for rank in losses)
        possible.append(sum(losses[rank] * weights[rank] for rank in losses) / (weight or 1.0))
    if any(abs(one - right) <= bound for one in possible):
        return None
    mean = total / len(losses)
    return Finding(
        Cause.LOSS_DIFFERS,
        f"The loss is another one: in step {step} the mean of the ranks' losses is "
        f"{number(mean, 4)}, and {number(right, 4)} in one process.",
        (
            f"Rounding explains {number(bound)}. The gradients say nothing, because rounding "
            "changes them as much as a mistake would: compare in float32.",
        ),
        numbers.world.size,
        step,
        lines=lines_of_backward(numbers.world, step),
    )


def _bound(numbers: Numbers, step: int, right: float) -> float:
    """What rounding may change in the loss of a step."""
    changed = numbers.tolerances.epsilon * abs(right)
    for other in numbers.tolerances.perturbed:
        for loss in losses_of(other, step).values():
            changed = max(changed, abs(loss - right))
    return LARGER * changed
