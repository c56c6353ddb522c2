"""Findings about gradients that are equal on all replicas, and not those of one process.

Runs where a comparison is judged, called by judging.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distlab.comparison.factors import Pair, common_factor, factor_words, meanings, meanings_of
from distlab.comparison.findings import Cause, Finding
from distlab.comparison.forward_passes import (
    are_unequal,
    most_passes,
    weights_by_rows,
    weights_by_targets,
)
from distlab.comparison.records import Sketch
from distlab.comparison.tolerances import Tolerances, exceeds
from distlab.comparison.wholes import World
from distlab.comparison.wording import different, listed, name_list, number

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
ALMOST = 1e-3  # relative difference of numbers that are taken for equal


def pairs_of_gradients(world: World, tolerances: Tolerances, step: int) -> dict[str, Pair]:
    """The gradients of a step in both worlds, by name; one that is not there counts as 0."""
    pairs = {}
    for name, expected in tolerances.reference.steps[step].items():
        found = world.steps[step].get(name)
        if found is None:
            continue
        right = expected.whole("gradient")
        actual = found.mean("gradient")
        template = right if right is not None else actual
        if template is None:
            continue
        zero = template.scaled(0.0)
        bound = tolerances.at(step, name).gradient
        pairs[name] = Pair(right or zero, actual or zero, bound)
    return pairs


def find_gradient(world: World, tolerances: Tolerances, step: int) -> Finding | None:
    """What is wrong with the gradients of a step before which all values were right, or None."""
    pairs = pairs_of_gradients(world, tolerances, step)
    wrong = {name: pair for name, pair in pairs.items() if pair.differs}
    if not wrong:
        return None
    finding = _factor(world, tolerances, step, pairs, wrong)
    compensated = _is_compensated(world, tolerances, step, wrong)
    if compensated and (finding is None or not _is_hidden(world, tolerances, step)):
        return None
    if finding is not None:
        return finding
    return _unequal_parts(world, tolerances, step, pairs) or _differs(
        world, tolerances, step, pairs, wrong
    )


# --- gradients that differ, and steps that do not ---


def _is_compensated(
    world: World, tolerances: Tolerances, step: int, wrong: Mapping[str, Pair]
) -> bool:
    """Whether the values after the step are right, although they would show the difference."""
    shown = 0
    for name, pair in wrong.items():
        value = tolerances.reference.steps[step][name].whole("value")
        before = tolerances.reference.previous_value(step, name)
        found = world.steps[step][name].whole("value")
        if value is None or before is None or found is None:
            return False
        bound = tolerances.at(step, name).value
        if exceeds((found - value).norm, bound):
            return False
        share = (pair.found - pair.expected).norm / (pair.expected.norm or 1.0)
        if (value - before).norm * min(share, 1.0) > 4 * bound:
            shown += 1
    return 2 * shown >= len(wrong)


def _is_hidden(world: World, tolerances: Tolerances, step: int) -> bool:
    """Whether the optimizer divides by the size of the gradient, and takes the same steps."""
    seen = _first_step(world, step)
    right = _first_step(tolerances.reference, step)
    return seen.optimizer in SCALE_FREE and seen.learning_rates == right.learning_rates


def _first_step(world: World, step: int):
    """The step as the first rank that made it has seen it."""
    return world.records[world.made_step(step)[0]].steps[step]


# --- one factor ---


def _factor(
    world: World,
    tolerances: Tolerances,
    step: int,
    pairs: Mapping[str, Pair],
    wrong: Mapping[str, Pair],
) -> Finding | None:
    """The finding that one factor explains all gradients, or those of some parameters."""
    passes = most_passes(world, step)
    passes_of_reference = most_passes(tolerances.reference, step)
    numbers = meanings(world.size, passes, passes_of_reference)
    for candidates in (pairs, wrong):
        factor = common_factor(candidates, [*numbers.values(), 0.0, 2.0, -1.0])
        if factor is None or factor == 1:
            continue
        names = () if len(candidates) == len(pairs) else tuple(wrong)
        means = meanings_of(factor, numbers)
        details = [*_causes(factor, means, names)]
        if _is_compensated(world, tolerances, step, wrong):
            details.insert(0, _hidden_words(_first_step(world, step).optimizer))
        return Finding(
            Cause.GRADIENT_FACTOR,
            factor_words("gradient", factor, means, names),
            tuple(details),
            world.size,
            step,
            names or tuple(pairs),
            factor,
            lines=_lines(world, step),
            meanings=means,
        )
    return None


def _hidden_words(optimizer: str) -> str:
    return (
        f"{optimizer} divides by the size of the gradient, so the parameters are right all the "
        "same; clipping, weight decay and another optimizer would show it."
    )


def _causes(factor: float, means: Sequence[str], names: Sequence[str]) -> list[str]:
    """The usual reasons for a factor, and what to do."""
    if names and factor > 1:
        return [
            "Usual reasons: these parameters are reduced twice, as a tied weight is by a loop over "
            "modules, or they are replicated where the others are sharded, and their gradients are "
            "summed over ranks that computed the same."
        ]
    if factor == 0:
        return ["No gradient arrives: look for detach(), no_grad() or a tensor that was received."]
    for meaning, words in REASONS.items():
        if meaning in means:
            return [words]
    return ["Usual reasons: another scale of the loss, or clipping by another norm."]


REASONS = {
    "passes": (
        "Usual reason: the loss of each backward pass is a mean over its micro-batch, and nothing "
        "divides it by the number of passes: loss = loss / passes."
    ),
    "1 / ranks": (
        "Usual reasons: the loss is divided by world_size although DistributedDataParallel divides "
        "the gradients too, or a sum over all ranks' rows is averaged: leave one division out, or "
        "multiply the loss by world_size."
    ),
    "ranks": (
        "Usual reason: the gradients are summed and nobody divides by world_size: "
        "parameter.grad /= world_size after all_reduce, or ReduceOp.AVG."
    ),
    "1 / ranks²": "Usual reason: the gradients are divided by world_size three times.",
    "ranks²": (
        "Usual reason: the loss is multiplied by world_size, and the gradients are summed instead "
        "of averaged."
    ),
    "backward passes per step": (
        "Usual reason: the gradients of several backward passes are added up and not divided: "
        "loss = loss / passes."
    ),
    "ranks x backward passes per step": (
        "Usual reason: the gradients are summed over ranks and over backward passes, and divided "
        "by neither."
    ),
}


def _lines(world: World, step: int):
    """The lines of the last backward passes before a step."""
    lines = []
    for record in world.records:
        lines += [one.line for one in record.backwards if one.step == step][-1:]
    return different(lines)


# --- means of unequal parts ---


def _unequal_parts(
    world: World, tolerances: Tolerances, step: int, pairs: Mapping[str, Pair]
) -> Finding | None:
    """The finding that weights by rows, or by tokens, would make the gradient right."""
    weights_by_noun = {
        "tokens": weights_by_targets(world, step),
        "rows": weights_by_rows(world, step),
    }
    for noun, weights in weights_by_noun.items():
        if not are_unequal(weights):
            continue
        proof = _weighted_gradients(world, step, pairs, weights, noun)
        proof = proof or _weighted_losses(world, tolerances, step, weights, noun)
        if proof:
            return _unequal(world, step, tuple(pairs), weights, noun, proof)
    return None


def _weighted_gradients(
    world: World,
    step: int,
    pairs: Mapping[str, Pair],
    weights: Mapping[int, float],
    noun: str,
) -> str:
    """The proof by the ranks' own gradients; "" if it fails."""
    tried = 0
    for name, pair in pairs.items():
        own = world.steps[step][name].mean("own_gradient", weights)
        if own is None:
            continue
        tried += 1
        if exceeds((own - pair.expected).norm, pair.bound):
            return ""
    if not tried:
        return ""
    return (
        f"Weighted by their {noun}, the ranks' own gradients would be that of one process; their "
        "plain mean is not."
    )


def _weighted_losses(
    world: World,
    tolerances: Tolerances,
    step: int,
    weights: Mapping[int, float],
    noun: str,
) -> str:
    """The proof by the losses, where every rank made one backward pass; "" if it fails."""
    losses = losses_of(world, step)
    expected = losses_of(tolerances.reference, step)
    if len(expected) != 1 or len(losses) != world.size:
        return ""
    if len(weights) != world.size:
        return ""
    (right,) = expected.values()
    plain = sum(losses.values()) / len(losses)
    total = sum(weights.values())
    weighted = sum(losses[rank] * weights[rank] for rank in losses) / total
    close = ALMOST * abs(plain - right)
    if not abs(weighted - right) <= close:
        return ""
    return (
        f"The mean of the ranks' losses is {number(plain, 4)}, and weighted by their {noun} it "
        f"would be {number(weighted, 4)}, as in one process."
    )


def losses_of(world: World, step: int) -> dict[int, float]:
    """The loss of each rank in a step, added up over its backward passes, by rank."""
    losses = {}
    for rank, record in enumerate(world.records):
        seen = [one.loss for one in record.backwards if one.step == step]
        known = [loss for loss in seen if loss is not None]
        if known and len(known) == len(seen):
            losses[rank] = sum(known)
    return losses


def _unequal(
    world: World,
    step: int,
    names: tuple[str, ...],
    weights: Mapping[int, float],
    noun: str,
    proof: str,
) -> Finding:
    counts = listed([f"{round(weights[rank]):,}" for rank in sorted(weights)])
    sentence = (
        f"The gradient is a mean of means over unequal parts: in step {step} the ranks have "
        f"{counts} {noun}."
    )
    advice = (
        f"Add the losses up, divide by the {noun} of all ranks, which all_reduce counts, and "
        "multiply by world_size where DistributedDataParallel averages."
    )
    return Finding(
        Cause.UNEQUAL_PARTS,
        sentence,
        (proof, advice),
        world.size,
        step,
        names,
        lines=_lines(world, step),
    )


# --- anything else ---


def _differs(
    world: World,
    tolerances: Tolerances,
    step: int,
    pairs: Mapping[str, Pair],
    wrong: Mapping[str, Pair],
) -> Finding:
    """The gradient is another one, and nothing simple explains it."""
    what = "every parameter" if len(wrong) == len(pairs) else name_list(list(wrong))
    first, worst = _largest(wrong)
    losses = _losses_in_words(world, tolerances, step)
    noun = "The gradient and the loss are others" if losses else "The gradient is another one"
    sentence = f"{noun} than in one process, from step {step} on, for {what}."
    share = (worst.found - worst.expected).norm / (worst.expected.norm or 1.0)
    details = [
        f"It differs most in {first}, by {number(share)} of its norm; rounding explains up to "
        f"{number(worst.bound / (worst.expected.norm or 1.0))}.",
        *losses,
        *_own_in_words(world, step, pairs),
    ]
    return Finding(
        Cause.GRADIENT_DIFFERS,
        sentence,
        tuple(details),
        world.size,
        step,
        tuple(wrong),
        lines=_lines(world, step),
    )


def _largest(pairs: Mapping[str, Pair]) -> tuple[str, Pair]:
    """The parameter that differs most, relative to its bound."""

    def excess(name: str) -> float:
        pair = pairs[name]
        return (pair.found - pair.expected).norm / (pair.bound or 1.0)

    name = max(pairs, key=excess)
    return name, pairs[name]


def _losses_in_words(world: World, tolerances: Tolerances, step: int) -> list[str]:
    """That the losses, however they are put together, are not that of one process."""
    losses = losses_of(world, step)
    expected = losses_of(tolerances.reference, step)
    if not losses or not expected:
        return []
    right = sum(expected.values()) / len(expected)
    total = sum(losses.values())
    possible = [total, total / len(losses), *losses.values()]
    for weights in (weights_by_rows(world, step), weights_by_targets(world, step)):
        known = [rank for rank in losses if rank in weights]
        weight = sum(weights[rank] for rank in known)
        if weight:
            possible.append(sum(losses[rank] * weights[rank] for rank in known) / weight)
    if any(abs(one - right) <= ALMOST * abs(right) for one in possible):
        return []
    mean = number(total / len(losses), 4)
    return [f"The mean of the ranks' losses is {mean}, and {number(right, 4)} in one process."]


def _own_in_words(world: World, step: int, pairs: Mapping[str, Pair]) -> list[str]:
    """Whether the ranks' own gradients were right before anything averaged them."""
    right = 0
    seen = 0
    for name, pair in pairs.items():
        own: Sketch | None = world.steps[step][name].mean("own_gradient")
        if own is None:
            continue
        seen += 1
        if not exceeds((own - pair.expected).norm, pair.bound):
            right += 1
    if not seen:
        return []
    if right == seen:
        return [
            "The mean of the ranks' own gradients is that of one process, so what changes them "
            "comes after the backward pass: look at what adds or averages them, and at clipping."
        ]
    return [
        "The ranks' own gradients are not parts of that of one process already, so look at the "
        "forward and the backward pass: targets of other rows, a part of the loss that is missing, "
        "or gradients of an earlier step that nobody set to zero."
    ]
