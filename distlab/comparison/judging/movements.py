"""Findings about steps: those that move nothing, and those that differ though gradients are equal.

Runs where a comparison is judged, called by judge.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.judging.factors import common_factor, factor_words, meanings, meanings_of
from distlab.comparison.judging.forward_passes import lines_of_step, most_passes
from distlab.comparison.judging.pairs import Numbers, Pair
from distlab.comparison.judging.wholes import World
from distlab.comparison.judging.wording import different, name_list, number
from distlab.comparison.records import RankRecord
from distlab.tables import count
from distlab.words import rank_list

AFTER_SHARDING = (
    "The optimizer has parameters that are in no module that was called. Make it after whatever "
    "replaces the parameters: fully_shard(model), to_empty, or a model that is loaded."
)


# --- steps that move nothing ---


def find_nothing_moved(world: World) -> list[Finding]:
    """The finding that step() changes no parameter, on some ranks or on all."""
    still = {}
    for rank, record in enumerate(world.records):
        if record.steps and not _moves(record):
            still[rank] = record
    if not still:
        return []
    if world.is_model_parallel and len(still) < world.size:
        return []
    first = next(iter(still.values()))
    why, advice = _why_still(first)
    where = ""
    if len(still) < world.size:
        where = f" on {rank_list(still)}"
    finding = Finding(
        Cause.NOTHING_MOVED,
        f"optimizer.step() changed no parameter{where}: {why}.",
        (advice,),
        world.size,
        0,
        tuple(first.steps[0].parameters),
        ranks=tuple(still),
        lines=different(record.steps[0].line for record in still.values()),
    )
    return [finding]


def _moves(record: RankRecord) -> bool:
    """Whether some step changed some parameter that has elements."""
    before = record.initial
    elements = 0
    for step in record.steps:
        for name, seen in step.parameters.items():
            elements += seen.piece.elements
            if name in before and (seen.value - before[name].value).norm != 0:
                return True
            if name not in before and seen.gradient is not None:  # what it was is not known
                return True
        before = {**before, **step.parameters}
    return not elements


def _why_still(record: RankRecord) -> tuple[str, str]:
    """Why the steps of a rank move nothing, and what to do."""
    gradients = []
    for step in record.steps:
        for seen in step.parameters.values():
            if seen.gradient is not None:
                gradients.append(seen.gradient)
    if not gradients:
        advice = "Call backward() before step(), and zero_grad() before backward() or after step()."
        if record.steps[0].strangers:
            advice = AFTER_SHARDING
        return "none of its parameters has a gradient", advice
    if not any(gradient.norm for gradient in gradients):
        return "every gradient is 0", (
            "Usual reasons: zero_grad(set_to_none=False) between backward() and step(), or a loss "
            "that does not depend on the parameters."
        )
    rates = {rate for step in record.steps for rate in step.learning_rates}
    if rates == {0.0}:
        return "its learning rate is 0", "Look at the first number of the scheduler."
    return "the steps are smaller than the last digit of the parameters", (
        "Keep the parameters in float32, or take a larger learning rate."
    )


def find_other_steps(numbers: Numbers) -> list[Finding]:
    """The finding that the ranks make more steps than one process, or fewer."""
    steps = len(numbers.world.steps)
    right = len(numbers.reference.steps)
    if steps == right or not steps or not right:
        return []
    finding = Finding(
        Cause.OTHER_STEPS,
        f"The ranks make {count(steps, 'step')}, and one process makes {right:,}.",
        (
            f"Only the first {numbers.steps:,} could be compared. Look at what the number of "
            "batches depends on: drop_last, or a batch size that does not follow world_size.",
        ),
        numbers.world.size,
        lines=lines_of_step(numbers.world, 0),
        hinders=True,
    )
    return [finding]


# --- equal gradients, and other steps ---


def find_step(numbers: Numbers, step: int) -> Finding | None:
    """What is wrong with a step before which all was right, and whose gradients are right."""
    pairs = numbers.values(step)
    wrong = {name: pair for name, pair in pairs.items() if pair.differs}
    if not wrong:
        return None
    world = numbers.world
    likely = meanings(world.size, most_passes(world, step), most_passes(numbers.reference, step))
    ratio = _ratio_of_rates(numbers, step)
    for candidates in (pairs, wrong):
        changes = _changes(numbers, step, candidates)
        factor = common_factor(changes, [*likely.values(), ratio])
        if factor is not None and factor != 1:
            names = () if len(candidates) == len(pairs) else tuple(wrong)
            return _step_factor(numbers, step, factor, meanings_of(factor, likely), names)
    return _step_differs(numbers, step, wrong)


def _changes(numbers: Numbers, step: int, pairs: Mapping[str, Pair]) -> dict[str, Pair]:
    """What a step added to the values in both worlds."""
    changes = {}
    for name, pair in pairs.items():
        before = numbers.reference.previous_value(step, name)
        own_before = numbers.world.previous_value(step, name)
        if before is not None and own_before is not None:
            changes[name] = Pair(pair.expected - before, pair.found - own_before, pair.bound)
    return changes


def _ratio_of_rates(numbers: Numbers, step: int) -> float:
    """The factor between learning rates; 1 if it is not the same for all groups."""
    rates = numbers.world.first_step(step).learning_rates
    right = numbers.reference.first_step(step).learning_rates
    if len(rates) != len(right) or not all(right):
        return 1.0
    ratios = [rate / other for rate, other in zip(rates, right, strict=True)]
    is_one = all(abs(ratio - ratios[0]) <= 1e-9 * abs(ratios[0]) for ratio in ratios)
    return ratios[0] if ratios and is_one else 1.0


def _rates_in_words(numbers: Numbers, step: int) -> str:
    """The learning rates, where they are others than in one process; "" otherwise."""
    rates = numbers.world.first_step(step).learning_rates
    right = numbers.reference.first_step(step).learning_rates
    if rates == right:
        return ""
    if len(rates) != len(right):
        return f"there are {len(rates)} learning rates instead of {len(right)}"
    for rate, other in zip(rates, right, strict=True):
        if rate != other:
            return f"the learning rate is {number(rate, 4)} instead of {number(other, 4)}"
    return ""


def _step_factor(
    numbers: Numbers, step: int, factor: float, means: tuple[str, ...], names: tuple[str, ...]
) -> Finding:
    """The finding that one factor explains the steps."""
    sentence = factor_words("step", factor, means, names)
    details = ["The gradients are equal, so the optimizer makes other steps of them."]
    rates = _rates_in_words(numbers, step)
    if rates:
        sentence = f"{sentence[:-1]}, because in step {step} {rates}."
        details.append(
            "A learning rate that grows with the ranks belongs to a batch that grows with them. "
            "If a scheduler sets it, call scheduler.step() as often as in one process."
        )
    return Finding(
        Cause.STEP_FACTOR,
        sentence,
        tuple(details),
        numbers.world.size,
        step,
        names or tuple(numbers.values(step)),
        factor,
        lines=lines_of_step(numbers.world, step),
        meanings=means,
    )


def _step_differs(numbers: Numbers, step: int, wrong: Mapping[str, Pair]) -> Finding:
    """The finding that equal gradients make other steps."""
    whom = "every parameter"
    if len(wrong) < len(numbers.values(step)):
        whom = name_list(list(wrong))
    sentence = f"The gradients are equal, but step {step} changes {whom} in another way."
    details = []
    rates = _rates_in_words(numbers, step)
    if rates:
        sentence = f"{sentence[:-1]}, as {rates}."
    details.append(
        "Usual reasons: weight decay or another option that depends on world_size, optimizer "
        "states that are missing or were loaded from elsewhere, or values that something other "
        "than step() changes."
    )
    return Finding(
        Cause.STEP_DIFFERS,
        sentence,
        tuple(details),
        numbers.world.size,
        step,
        tuple(wrong),
        lines=lines_of_step(numbers.world, step),
    )
