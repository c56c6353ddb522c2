"""Findings about replicas whose gradients nothing averages, or not all of them.

Runs where a comparison is judged, called by replicas.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.judging.drifts import Drift, bounds_of, small
from distlab.comparison.judging.forward_passes import (
    lines_of_step,
    training_passes,
    unequal_weights,
)
from distlab.comparison.judging.tolerances import Tolerances, exceeds
from distlab.comparison.judging.wholes import World
from distlab.comparison.judging.wording import different, listed, name_list
from distlab.comparison.records import SeenForward, Sketch
from distlab.wire.source import Line
from distlab.words import rank_list

NOT_WRAPPED = (
    "Wrap the model in DistributedDataParallel, or average every gradient between backward() and "
    "step(): dist.all_reduce(parameter.grad), and then parameter.grad /= world_size."
)
CALL_THE_WRAPPER = (
    "DistributedDataParallel averages only what a forward pass of its own prepares. Call model(x), "
    "and not model.module(x) or the module that it wraps."
)
LAST_PASS_SYNCS = (
    "Leave no_sync() for the last backward pass before step(): that pass averages all that the "
    "others have added up."
)
WHAT_WAS_WRAPPED = (
    "DistributedDataParallel averages what the module had when it was wrapped, and a loop only the "
    "parameters that it goes over."
)
WHOLE_GROUP = (
    "Average over all ranks that have the same parameters: look at the process group that "
    "DistributedDataParallel, fully_shard or all_reduce gets."
)


def find_not_averaged(world: World, drift: Drift, tolerances: Tolerances | None) -> Finding | None:
    """The finding that gradients are not averaged, if that is what drives replicas apart."""
    if not drift.gradients:
        return None
    proof = _proof(world, drift, tolerances)
    is_known = bool(proof) or _are_own(world, drift)
    passes: list[SeenForward] = []
    for record in world.records:
        passes += training_passes(record, drift.step)
    past_wrapper = [one for one in passes if one.bypassed]
    if drift.averaged:
        return _partly(world, drift, proof, past_wrapper) if is_known else None
    if past_wrapper:
        why = "the forward pass goes past DistributedDataParallel"
        return _nothing(world, drift, why, [proof, CALL_THE_WRAPPER], past_wrapper)
    unsynchronised = [one for one in passes if one.wrapper and not one.averages]
    if unsynchronised:
        why = _no_sync_words(world, drift)
        return _nothing(world, drift, why, [proof, LAST_PASS_SYNCS], unsynchronised[-1:])
    if not is_known:
        return None
    subgroups = _subgroups(world, drift, tolerances)
    if subgroups:
        return _within_groups(world, drift, subgroups, proof)
    name = drift.gradients[0]
    copies = world.steps[drift.step][name]
    if copies.is_in_pieces:
        partners = next(ranks for ranks in copies.groups if len(ranks) > 1)
        why = f"{rank_list(partners)} have the same part, and each keeps its own gradient of it"
        return _nothing(world, drift, why, [proof, WHOLE_GROUP], [])
    return _nothing(world, drift, "each rank keeps its own", [proof, NOT_WRAPPED], [])


# --- proofs ---


def _proof(world: World, drift: Drift, tolerances: Tolerances | None) -> str:
    """That the ranks' gradients together are that of one process; "" if they are not."""
    if tolerances is None or drift.step >= len(tolerances.reference.steps):
        return ""
    if _is_right(world, drift, tolerances, None, 1):
        way = "mean"
    elif _is_right(world, drift, tolerances, None, world.size):
        way = "sum"
    else:
        way = ""
        for noun, weights in unequal_weights(world, drift.step).items():
            if _is_right(world, drift, tolerances, weights, 1):
                way = f"mean, weighted by {noun},"
                break
    if not way:
        return ""
    return (
        f"Each rank kept its own gradient: their {way} is that of one process, so nothing averaged "
        "them."
    )


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
        mean = world.steps[drift.step][name].mean_gradient(weights)
        if right is None or mean is None:
            return False
        bound = tolerances.at(drift.step, name).gradient
        if exceeds((mean.scaled(scale) - right).norm, bound):
            return False
    return True


def _are_own(world: World, drift: Drift) -> bool:
    """Whether each rank's gradient is what its own backward passes gave."""
    for name in drift.gradients:
        for seen in world.steps[drift.step][name].by_rank.values():
            if seen.gradient is None:
                continue
            own = seen.own_gradient
            if own is None or len(own.sums) != len(seen.gradient.sums):
                return False
            if exceeds((seen.gradient - own).norm, small(seen.gradient)):
                return False
    return True


def _subgroups(world: World, drift: Drift, tolerances: Tolerances | None) -> list[list[int]]:
    """Ranks with equal gradients, in lists, if there are several lists of several ranks."""
    name = drift.gradients[0]
    copies = world.steps[drift.step][name]
    bound = bounds_of(copies, drift.step, world, tolerances).gradient
    found: list[list[int]] = []
    for ranks in copies.groups:
        sketches: dict[int, Sketch] = copies.sketches("gradient", ranks)
        lists: list[list[int]] = []
        for rank, sketch in sketches.items():
            for others in lists:
                if not exceeds((sketches[others[0]] - sketch).norm, bound):
                    others.append(rank)
                    break
            else:
                lists.append([rank])
        found += lists
    if len(found) < 2 or max(map(len, found)) < 2:
        return []
    return found


# --- findings ---


def _no_sync_words(world: World, drift: Drift) -> str:
    """Which forward passes of a step were made inside of no_sync()."""
    for record in world.records:
        passes = training_passes(record, drift.step)
        inside = [one for one in passes if one.wrapper and not one.averages]
        if not inside:
            continue
        if len(passes) == 1:
            return "the forward pass is made inside of no_sync()"
        if len(inside) == len(passes):
            many = "both" if len(passes) == 2 else f"all {len(passes)}"
            return f"{many} forward passes are made inside of no_sync()"
        if passes[-1] in inside:
            return f"the last of {len(passes)} forward passes is made inside of no_sync()"
        break
    return "a forward pass is made inside of no_sync()"


def _nothing(
    world: World,
    drift: Drift,
    why: str,
    details: Sequence[str],
    passes: Sequence[SeenForward],
) -> Finding:
    """Nothing averages any gradient."""
    whose = ""
    if len(drift.gradients) < len(world.steps[drift.step]):
        whose = f" of {name_list(drift.gradients)}"
    sentence = f"In step {drift.step} nothing averaged the gradients{whose}: {why}."
    lines = different(one.line for one in passes) or lines_of_step(world, drift.step)
    return _finding(world, drift, Cause.NOT_AVERAGED, sentence, details, lines)


def _within_groups(
    world: World, drift: Drift, subgroups: Sequence[Sequence[int]], proof: str
) -> Finding:
    within = listed([f"within {rank_list(ranks)}" for ranks in subgroups])
    sentence = (
        f"In step {drift.step} nothing averaged the gradients over all ranks: they are equal "
        f"{within} only."
    )
    lines = lines_of_step(world, drift.step)
    details = [proof.replace("Each rank kept its own gradient: their", "Their"), WHOLE_GROUP]
    return _finding(world, drift, Cause.NOT_AVERAGED, sentence, details, lines)


def _partly(world: World, drift: Drift, proof: str, passes: Sequence[SeenForward]) -> Finding:
    """Some parameters are averaged, others are not."""
    verb = "is" if len(drift.gradients) == 1 else "are"
    sentence = (
        f"Some gradients are averaged and others are not: in step {drift.step} that of "
        f"{name_list(drift.gradients)} {verb} not."
    )
    if len(drift.gradients) > 1:
        sentence = sentence.replace(" that of ", " those of ")
    lines = different(one.line for one in passes) or lines_of_step(world, drift.step)
    return _finding(world, drift, Cause.PARTLY_AVERAGED, sentence, [proof, WHAT_WAS_WRAPPED], lines)


def _finding(
    world: World,
    drift: Drift,
    cause: Cause,
    sentence: str,
    details: Sequence[str],
    lines: tuple[Line, ...],
) -> Finding:
    proof, advice = details
    return Finding(
        cause,
        sentence,
        tuple(text for text in (proof, drift.in_words(world), advice) if text),
        world.size,
        drift.step,
        drift.gradients,
        lines=lines,
    )
