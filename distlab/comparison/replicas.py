"""Findings about replicas: whether ranks with the same parameters keep the same values.

Runs where a comparison is judged, called by judging.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.forward_passes import (
    are_unequal,
    training_passes,
    weights_by_rows,
    weights_by_targets,
)
from distlab.comparison.records import SeenForward
from distlab.comparison.tolerances import Bounds, Tolerances, exceeds
from distlab.comparison.wholes import Copies, World
from distlab.comparison.wording import different, name_list, number
from distlab.words import rank_list

EQUAL = 64  # epsilons by which replicas may differ where there is no reference
NOT_WRAPPED = (
    "Wrap the model in DistributedDataParallel, or average every gradient between backward() and "
    "step(): dist.all_reduce(parameter.grad), then parameter.grad /= world_size."
)
CALL_THE_WRAPPER = (
    "DistributedDataParallel averages in a backward pass only if the forward pass was made by the "
    "wrapper: call model(x), and not model.module(x) or the module itself."
)
LAST_PASS_SYNCS = (
    "Leave no_sync() for the last backward pass before step(): that pass averages what has "
    "accumulated."
)


@dataclass(frozen=True)
class Drift:
    """The first step after which replicas are not equal.

    Attributes:
        step: counted from 0.
        values: names of the parameters whose values differ.
        gradients: of those, the names whose gradients differ between replicas.
        averaged: names whose gradients are equal, and are not 0.
    """

    step: int
    values: tuple[str, ...]
    gradients: tuple[str, ...]
    averaged: tuple[str, ...]


def find_replicas(world: World, tolerances: Tolerances | None) -> list[Finding]:
    """Findings about replicas of one world; at most one about their beginning, one about steps.

    Args:
        world: what was seen.
        tolerances: those of the reference; None where the ranks are compared with each other.
    """
    beginning = _other_initial(world, tolerances)
    drift = first_drift(world, tolerances)
    if drift is None:
        return beginning
    proof = _proof(world, drift, tolerances)
    explained = _not_averaged(world, drift, proof)
    if explained is not None:
        return [*beginning, explained]
    if beginning:
        return beginning
    return [_differ(world, drift)]


# --- their beginning ---


def _other_initial(world: World, tolerances: Tolerances | None) -> list[Finding]:
    """Replicas that begin with other values."""
    names = []
    ranks: set[int] = set()
    largest = 0.0
    for name, copies in world.initial.items():
        value = copies.whole("value")
        if value is None:
            continue
        if not exceeds(copies.spread("value"), EQUAL * world.epsilon * value.norm):
            continue
        names.append(name)
        ranks |= _odd_ranks(copies, EQUAL * world.epsilon * value.norm)
        largest = max(largest, copies.spread("value") / (value.norm or 1.0))
    if not names:
        return []
    others = [rank for rank in range(world.size) if rank not in ranks]
    which = f"{rank_list(ranks)} from {rank_list(others)}" if others else "every rank from others"
    what = _of_names(names, len(world.initial))
    sentence = f"The replicas begin with other values: {what} differ, {which}."
    details = (
        f"They differ by up to {number(largest)} of their norm before the first forward pass.",
        "Averaged gradients keep such a distance for ever. Make the model with the same seed on "
        "every rank, load a checkpoint on every rank, or broadcast: "
        "dist.broadcast(parameter.data, src=0). DistributedDataParallel does that once, when it is "
        "made.",
    )
    finding = Finding(
        Cause.OTHER_INITIAL,
        sentence,
        details,
        world.size,
        parameters=tuple(names),
        ranks=tuple(sorted(ranks)),
    )
    return [finding]


def _odd_ranks(copies: Copies, bound: float) -> set[int]:
    """The ranks that are unlike most others: the smaller sets of equal replicas."""
    odd: set[int] = set()
    for ranks in copies.groups:
        values = copies.sketches("value", ranks)
        alike: list[list[int]] = []
        for rank, value in values.items():
            for others in alike:
                if not exceeds((values[others[0]] - value).norm, bound):
                    others.append(rank)
                    break
            else:
                alike.append([rank])
        most = max(alike, key=len)
        if len(most) == 1:
            most = []
        odd |= {rank for rank in values if rank not in most}
    return odd


# --- their steps ---


def first_drift(world: World, tolerances: Tolerances | None) -> Drift | None:
    """The first step after which values of replicas differ by more than rounding, or None."""
    for step, parameters in enumerate(world.steps):
        values = []
        for name, copies in parameters.items():
            bounds = _bounds(copies, step, world, tolerances)
            already = _initial_spread(world, name)
            if exceeds(copies.spread("value"), bounds.value + 2 * already):
                values.append(name)
        if values:
            return _drift(step, values, parameters, world, tolerances)
    return None


def _initial_spread(world: World, name: str) -> float:
    return world.initial[name].spread("value") if name in world.initial else 0.0


def _drift(
    step: int,
    values: Sequence[str],
    parameters: Mapping[str, Copies],
    world: World,
    tolerances: Tolerances | None,
) -> Drift:
    """The drift of these values, with what their gradients were."""
    gradients = []
    averaged = []
    for name, copies in parameters.items():
        bounds = _bounds(copies, step, world, tolerances)
        gradient = copies.whole("gradient")
        if gradient is None:
            continue
        if exceeds(copies.spread("gradient"), bounds.gradient):
            gradients.append(name)
        elif len(copies.by_rank) > 1 and gradient.norm > 4 * bounds.gradient:
            averaged.append(name)
    return Drift(step, tuple(values), tuple(gradients), tuple(averaged))


def _bounds(copies: Copies, step: int, world: World, tolerances: Tolerances | None) -> Bounds:
    """The bounds of a parameter, also of one that the reference does not have."""
    if tolerances is not None:
        steps = tolerances.reference.steps
        if step < len(steps) and copies.name in steps[step]:
            return tolerances.at(step, copies.name)
    norms = []
    for kind in ("gradient", "value"):
        sketch = copies.whole(kind)
        norms.append(0.0 if sketch is None else EQUAL * world.epsilon * sketch.norm)
    return Bounds(*norms)


def _proof(world: World, drift: Drift, tolerances: Tolerances | None) -> str:
    """How the ranks' different gradients make that of one process, in words; "" if they do not."""
    if tolerances is None or drift.step >= len(tolerances.reference.steps):
        return ""
    ways: dict[str, dict[int, float] | None] = {"mean": None, "sum": None}
    for noun, unequal in _weights(world, drift.step).items():
        ways[f"mean weighted by {noun}"] = unequal
    for way, weights in ways.items():
        scale = world.size if way == "sum" else 1
        if _is_right(world, drift, tolerances, weights, scale):
            return f"their {way} is that of one process"
    return ""


def _weights(world: World, step: int) -> dict[str, dict[int, float]]:
    """Unequal weights of the ranks that were seen, by what was counted."""
    found = {}
    candidates = {"rows": weights_by_rows(world, step), "tokens": weights_by_targets(world, step)}
    for noun, weights in candidates.items():
        if are_unequal(weights):
            found[noun] = weights
    return found


def _is_right(
    world: World,
    drift: Drift,
    tolerances: Tolerances,
    weights: Mapping[int, float] | None,
    scale: int,
) -> bool:
    """Whether the ranks' gradients together are those of the reference."""
    expected = tolerances.reference.steps[drift.step]
    for name in drift.gradients:
        if name not in expected:
            return False
        right = expected[name].whole("gradient")
        mean = world.steps[drift.step][name].mean("gradient", weights)
        if right is None or mean is None:
            return False
        distance = (mean.scaled(scale) - right).norm
        if exceeds(distance, tolerances.at(drift.step, name).gradient):
            return False
    return bool(drift.gradients)


# --- why nothing averages ---


def _not_averaged(world: World, drift: Drift, proof: str) -> Finding | None:
    """The finding that gradients are not averaged, if that is what happened."""
    if not drift.gradients:
        return None
    passes = []
    for record in world.records:
        passes += training_passes(record, drift.step)
    past_ddp = [one for one in passes if one.bypassed]
    unsynchronised = [one for one in passes if one.wrapper and not one.averages]
    if drift.averaged:
        if proof or _is_own(world, drift):
            return _partly(world, drift, proof, past_ddp)
        return None
    if past_ddp:
        why = "the forward pass goes past DistributedDataParallel"
        return _nothing(world, drift, why, proof, CALL_THE_WRAPPER, past_ddp)
    if unsynchronised:
        return _in_no_sync(world, drift, proof, unsynchronised)
    if proof or _is_own(world, drift):
        why = "each rank keeps its own"
        return _nothing(world, drift, why, proof, NOT_WRAPPED, [])
    return None


def _is_own(world: World, drift: Drift) -> bool:
    """Whether each rank's gradient is what its own backward passes gave."""
    for name in drift.gradients:
        for seen in world.steps[drift.step][name].by_rank.values():
            if seen.gradient is None:
                continue
            if seen.own_gradient is None:
                return False
            distance = (seen.gradient - seen.own_gradient).norm
            if exceeds(distance, EQUAL * world.epsilon * seen.gradient.norm):
                return False
    return bool(drift.gradients)


def _nothing(
    world: World, drift: Drift, why: str, proof: str, advice: str, passes: Sequence[SeenForward]
) -> Finding:
    """Nothing averages any gradient."""
    sentence = f"In step {drift.step} nothing averaged the gradients: {why}."
    return _finding(world, drift, Cause.NOT_AVERAGED, sentence, proof, advice, passes)


def _in_no_sync(world: World, drift: Drift, proof: str, passes: Sequence[SeenForward]) -> Finding:
    """The last passes before a step were inside of no_sync()."""
    made = training_passes(world.records[0], drift.step)
    inside = [one for one in made if one.wrapper and not one.averages]
    which = "the forward pass"
    if len(made) > 1:
        which = f"{len(inside)} of {len(made)} forward passes"
        if made and made[-1] in inside:
            which += ", the last one among them,"
    sentence = (
        f"In step {drift.step} nothing averaged the gradients: {which} "
        f"{'were' if len(inside) > 1 else 'was'} made inside of no_sync()."
    )
    last = passes[-1:]
    return _finding(world, drift, Cause.NOT_AVERAGED, sentence, proof, LAST_PASS_SYNCS, last)


def _partly(world: World, drift: Drift, proof: str, passes: Sequence[SeenForward]) -> Finding:
    """Some parameters are averaged, others are not."""
    names = name_list(drift.gradients)
    verb = "is" if len(drift.gradients) == 1 else "are"
    sentence = (
        f"Some gradients are averaged and others are not: in step {drift.step} {names} {verb} not."
    )
    advice = (
        "DistributedDataParallel averages what the module had when it was wrapped, and what its "
        "forward pass uses; a loop over parameters, only those that it goes over."
    )
    return _finding(world, drift, Cause.PARTLY_AVERAGED, sentence, proof, advice, passes)


def _finding(
    world: World,
    drift: Drift,
    cause: Cause,
    sentence: str,
    proof: str,
    advice: str,
    passes: Sequence[SeenForward],
) -> Finding:
    """A finding about gradients that are not averaged."""
    details = []
    if proof:
        details.append(f"Each rank kept its own gradient: {proof}, so nothing averaged them.")
    details += [_distance(world, drift), advice]
    return Finding(
        cause,
        sentence,
        tuple(details),
        world.size,
        drift.step,
        drift.gradients,
        lines=different(one.line for one in passes),
    )


def _distance(world: World, drift: Drift) -> str:
    """By how much the replicas differ after the first step and after the last one."""
    first = _largest_spread(world, drift.step, drift.values)
    last = _largest_spread(world, len(world.steps) - 1, drift.values)
    words = f"After step {drift.step} the replicas differ by up to {number(first)} of their norm"
    if drift.step < len(world.steps) - 1:
        words += f", and after step {len(world.steps) - 1} by {number(last)}"
    return f"{words}."


def _largest_spread(world: World, step: int, names: Sequence[str]) -> float:
    """The largest spread of these parameters after a step, relative to the norm."""
    largest = 0.0
    for name in names:
        copies = world.steps[step].get(name)
        value = None if copies is None else copies.whole("value")
        if copies is not None and value is not None:
            largest = max(largest, copies.spread("value") / (value.norm or 1.0))
    return largest


def _differ(world: World, drift: Drift) -> Finding:
    """Replicas differ, and not because nothing averages."""
    what = _of_names(drift.values, len(world.steps[drift.step]))
    odd: set[int] = set()
    for name in drift.values:
        odd |= _odd_ranks(world.steps[drift.step][name], 0.0)
    gradients = "although their gradients were equal"
    if drift.gradients:
        gradients = "and so do their gradients"
    sentence = (
        f"The replicas are not equal: after step {drift.step} {what} differ between ranks, "
        f"{gradients}."
    )
    details = [_distance(world, drift), *_rates(world, drift.step)]
    lines = different(
        record.steps[drift.step].line for record in world.records if drift.step < len(record.steps)
    )
    return Finding(
        Cause.REPLICAS_DIFFER,
        sentence,
        tuple(details),
        world.size,
        drift.step,
        drift.values,
        ranks=tuple(sorted(odd)),
        lines=lines,
    )


def _rates(world: World, step: int) -> list[str]:
    """That the learning rates differ, if they do."""
    rates = {}
    for rank in world.made_step(step):
        rates[rank] = world.records[rank].steps[step].learning_rates
    if len(set(rates.values())) < 2:
        return []
    words = [f"{number(rate[0], 4)} on rank {rank}" for rank, rate in rates.items() if rate]
    return [f"The learning rates are {', '.join(words)}."]


def _of_names(names: Sequence[str], total: int) -> str:
    """Parameters in words: "all 4 parameters", or their names."""
    if len(names) == total and total > 3:
        return f"all {total} parameters"
    return name_list(list(names))
