"""Findings about steps: those that move nothing, and those that differ though gradients are equal.

Runs where a comparison is judged, called by judging.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from distlab.comparison.factors import Pair, common_factor, factor_words, meanings, meanings_of
from distlab.comparison.findings import Cause, Finding
from distlab.comparison.forward_passes import most_passes
from distlab.comparison.records import RankRecord
from distlab.comparison.tolerances import Tolerances
from distlab.comparison.wholes import World
from distlab.comparison.wording import different, name_list, number
from distlab.words import rank_list

BEFORE_SHARDING = (
    "They belong to no module that was called. Make the optimizer after what replaces the "
    "parameters: after fully_shard(model), after the model is moved or loaded anew."
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
    why, details = _why_still(first)
    where = ""
    if len(still) < world.size:
        where = f" on {rank_list(still)}"
    sentence = f"optimizer.step() changed no parameter{where}: {why}."
    finding = Finding(
        Cause.NOTHING_MOVED,
        sentence,
        details,
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
            if name not in before:
                if seen.gradient is not None:  # its value before is not known
                    return True
                continue
            if (seen.value - before[name].value).norm != 0:
                return True
        before = {**before, **step.parameters}
    return not elements


def _why_still(record: RankRecord) -> tuple[str, tuple[str, ...]]:
    """Why the steps of a rank move nothing, and further sentences."""
    gradients = []
    for step in record.steps:
        for seen in step.parameters.values():
            if seen.gradient is not None:
                gradients.append(seen.gradient)
    first = record.steps[0]
    if not gradients and first.strangers:
        of_how_many = f"{first.strangers} of its {len(first.parameters)} parameters"
        if first.strangers == len(first.parameters):
            of_how_many = "none of its parameters"
            return f"{of_how_many} has a gradient, and none is in the model", (BEFORE_SHARDING,)
        return "none of its parameters has a gradient", (f"{of_how_many} are strangers.",)
    if not gradients:
        return "none of its parameters has a gradient", (
            "Call loss.backward() before step(), and zero_grad() not in between.",
        )
    if not any(gradient.norm for gradient in gradients):
        return "every gradient is 0", (
            "Usual reasons: zero_grad() between backward() and step(), or a loss that does not "
            "depend on the parameters.",
        )
    rates = {rate for step in record.steps for rate in step.learning_rates}
    if rates == {0.0}:
        return "its learning rate is 0", ("Look at the scheduler's first value.",)
    return "the gradients are too small for the values' type", (
        "Keep the parameters in float32, or take a larger learning rate.",
    )


# --- equal gradients, and other steps ---


def find_step(world: World, tolerances: Tolerances, step: int) -> Finding | None:
    """What is wrong with a step before which all was right, and whose gradients are right."""
    pairs = _pairs_of_values(world, tolerances, step)
    wrong = {name: pair for name, pair in pairs.items() if pair.differs}
    if not wrong:
        return None
    passes = most_passes(world, step)
    numbers = meanings(world.size, passes, most_passes(tolerances.reference, step))
    rates = _rates(world, step)
    right_rates = _rates(tolerances.reference, step)
    for candidates in (pairs, wrong):
        changes = _pairs_of_changes(world, tolerances, step, candidates)
        ratio = _ratio(rates, right_rates)
        factor = common_factor(changes, [*numbers.values(), ratio])
        if factor is not None and factor != 1:
            names = () if len(candidates) == len(pairs) else tuple(wrong)
            return _step_factor(world, step, factor, numbers, names, tuple(pairs), tolerances)
    return _step_differs(world, tolerances, step, pairs, wrong)


def _pairs_of_values(world: World, tolerances: Tolerances, step: int) -> dict[str, Pair]:
    """The values after a step in both worlds, by name, without gradients that are rounding."""
    pairs = {}
    for name, expected in tolerances.reference.steps[step].items():
        found = world.steps[step].get(name)
        right = expected.whole("value")
        actual = None if found is None else found.whole("value")
        if right is not None and actual is not None and not is_noise(world, tolerances, step, name):
            pairs[name] = Pair(right, actual, tolerances.at(step, name).value)
    return pairs


def is_noise(world: World, tolerances: Tolerances, step: int, name: str) -> bool:
    """Whether the gradients of a parameter were but rounding in some step up to this one.

    An optimizer that divides by the size of a gradient makes full steps of it, in any direction.
    """
    for earlier in range(step + 1):
        for one in (tolerances.reference, world):
            copies = one.steps[earlier].get(name)
            gradient = None if copies is None else copies.whole("gradient")
            if gradient is not None and gradient.norm > tolerances.at(earlier, name).gradient:
                break
            if gradient is None:
                break
        else:
            return True
    return False


def _pairs_of_changes(
    world: World, tolerances: Tolerances, step: int, pairs: Mapping[str, Pair]
) -> dict[str, Pair]:
    """What a step added to the values in both worlds."""
    changes = {}
    for name, pair in pairs.items():
        before = tolerances.reference.previous_value(step, name)
        own_before = world.previous_value(step, name)
        if before is not None and own_before is not None:
            changes[name] = Pair(pair.expected - before, pair.found - own_before, pair.bound)
    return changes


def _rates(world: World, step: int) -> tuple[float, ...]:
    return world.records[world.made_step(step)[0]].steps[step].learning_rates


def _ratio(rates: tuple[float, ...], right: tuple[float, ...]) -> float:
    """The factor between learning rates; 1 if it is not the same for all groups."""
    if len(rates) != len(right) or not all(right):
        return 1.0
    ratios = [rate / other for rate, other in zip(rates, right, strict=True)]
    same = all(abs(ratio - ratios[0]) <= 1e-9 * abs(ratios[0]) for ratio in ratios)
    return ratios[0] if ratios and same else 1.0


def _step_factor(
    world: World,
    step: int,
    factor: float,
    numbers: Mapping[str, float],
    names: tuple[str, ...],
    all_names: tuple[str, ...],
    tolerances: Tolerances,
) -> Finding:
    """The finding that one factor explains the steps."""
    means = meanings_of(factor, numbers)
    rates = _rates(world, step)
    right = _rates(tolerances.reference, step)
    sentence = factor_words("step", factor, means, names)
    details = ["The gradients are equal, so the optimizer makes other steps of them."]
    if rates != right and rates and right:
        words = f"the learning rate is {number(rates[0], 4)} instead of {number(right[0], 4)}"
        sentence = f"{sentence[:-1]}, as {words}."
        details.append(
            "A learning rate that grows with the ranks belongs to a batch that grows with them. "
            "If a scheduler changes it, step it once for each optimizer.step()."
        )
    return Finding(
        Cause.STEP_FACTOR,
        sentence,
        tuple(details),
        world.size,
        step,
        names or all_names,
        factor,
        lines=step_lines(world, step),
        meanings=means,
    )


def _step_differs(
    world: World,
    tolerances: Tolerances,
    step: int,
    pairs: Mapping[str, Pair],
    wrong: Mapping[str, Pair],
) -> Finding:
    """The finding that equal gradients make other steps."""
    what = "every parameter" if len(wrong) == len(pairs) else name_list(list(wrong))
    sentence = f"The gradients are equal, and step {step} changes {what} in another way."
    details = [
        "Usual reasons: weight decay or another option that depends on world_size, an optimizer's "
        "state that was loaded on some ranks only, or values that are changed outside of step()."
    ]
    rates = _rates(world, step)
    right = _rates(tolerances.reference, step)
    if rates != right:
        details.insert(0, f"The learning rates are {list(rates)} instead of {list(right)}.")
    return Finding(
        Cause.STEP_DIFFERS,
        sentence,
        tuple(details),
        world.size,
        step,
        tuple(wrong),
        lines=step_lines(world, step),
    )


def step_lines(world: World, step: int):
    """The lines that called step()."""
    made = world.made_step(step)
    return different(world.records[rank].steps[step].line for rank in made)
