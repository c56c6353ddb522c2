"""Which parameter of one process a rank's parameter is: stages of a pipeline rename theirs.

Runs where a comparison is judged, called by judge.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from distlab.comparison.judging.stages import names_by_order
from distlab.comparison.judging.wholes import Copies, World
from distlab.comparison.records import RankRecord, SeenParameter, Sketch

STRANGER = re.compile(r"parameter \d+ of ")  # see naming.py
FEW = 8  # epsilons, by which equal numbers may differ


def renamed(record: RankRecord, reference: World) -> RankRecord:
    """A rank's record with the names of the reference."""
    names = names_in_reference(record, reference)
    if not names:
        return record
    steps = []
    for step in record.steps:
        parameters = _with_names(step.parameters, names)
        steps.append(replace(step, parameters=parameters, others=_with_names(step.others, names)))
    return replace(record, initial=_with_names(record.initial, names), steps=steps)


def without_strangers(records: Sequence[RankRecord]) -> tuple[list[RankRecord], list[str]]:
    """Records without those parameters of no module that begin with other values on each rank.

    They have a number in the place of a name. Without one process it is not known whether they are
    replicas, or parts made by hand.

    Returns:
        The records, and what was left out.
    """
    left_out = []
    for name, copies in World(records).initial.items():
        value = copies.whole("value")
        if value is None or not STRANGER.match(name):
            continue
        lengths = {len(seen.value.sums) for seen in copies.by_rank.values()}
        if len(lengths) > 1 or copies.spread("value") > FEW * 1.2e-7 * value.norm:
            left_out.append(name)
    if not left_out:
        return list(records), []
    changed = []
    for record in records:
        steps = []
        for step in record.steps:
            steps.append(replace(step, parameters=_without(step.parameters, left_out)))
        changed.append(replace(record, initial=_without(record.initial, left_out), steps=steps))
    return changed, left_out


def _without(
    parameters: Mapping[str, SeenParameter], names: Sequence[str]
) -> dict[str, SeenParameter]:
    return {name: seen for name, seen in parameters.items() if name not in names}


def _with_names(
    parameters: Mapping[str, SeenParameter], names: Mapping[str, str]
) -> dict[str, SeenParameter]:
    return {names.get(own, own): seen for own, seen in parameters.items()}


def names_in_reference(record: RankRecord, reference: World) -> dict[str, str]:
    """Find the names in the reference of those parameters that a rank calls otherwise.

    A parameter that has its name's values is what it is called. Only if some parameter begins with
    the values of another name, and of no other one, the rank renames. Then the other parameters of
    a renamed module go with it. Where several have the same values, as biases of zeros, the first
    gradient decides.

    Returns:
        The name in the reference by the rank's own name, without those that are the same.
    """
    stage = names_by_order(
        record, reference, lambda own, name: _begins_as(record.initial[own], reference, name)
    )
    if stage:
        return {own: name for own, name in stage.items() if own != name}
    sure = _sure_renames(record, reference)
    if not sure:
        return {}
    modules = _renamed_modules(sure)
    names = dict(sure)
    for own in record.initial:
        if own in names:
            continue
        module, _, leaf = own.rpartition(".")
        if module in modules:
            target = f"{modules[module]}.{leaf}".lstrip(".")
            if target in reference.initial:
                names[own] = target
                continue
        names[own] = _nearest(own, record, reference, set(names.values()))
    return {own: name for own, name in names.items() if own != name}


def _sure_renames(record: RankRecord, reference: World) -> dict[str, str]:
    """Parameters with the initial values of exactly one other name, by their own name."""
    sure = {}
    for own, seen in record.initial.items():
        if seen.piece.elements != seen.piece.whole or _is_constant(seen.value):
            continue
        alike = _same_values(seen, reference)
        if own not in alike and len(alike) == 1:
            sure[own] = alike[0]
    return sure


def _same_values(seen: SeenParameter, reference: World) -> list[str]:
    """Names in the reference of parameters that begin with the same values."""
    return [name for name, copies in reference.initial.items() if begins_alike(seen, copies)]


def _begins_as(seen: SeenParameter, reference: World, name: str) -> bool:
    return begins_alike(seen, reference.initial[name])


def begins_alike(seen: SeenParameter, copies: Copies) -> bool:
    """Whether a rank's whole parameter has the shape and the values of one of the reference."""
    value = copies.whole("value")
    if copies.shape != seen.shape or value is None:
        return False
    return (value - seen.value).norm <= FEW * 1.2e-7 * value.norm


def _is_constant(sketch: Sketch) -> bool:
    """Whether all elements are the same, as far as one can see: ones of a norm, zeros of a bias."""
    if sketch.is_whole:
        return bool((sketch.sums == sketch.sums[:1]).all())
    return not sketch.norm


def _renamed_modules(sure: dict[str, str]) -> dict[str, str]:
    """The module in the reference by the rank's module, where most of its parameters say so."""
    votes: dict[str, Counter[str]] = {}
    for own, name in sure.items():
        module, _, leaf = own.rpartition(".")
        other, _, other_leaf = name.rpartition(".")
        if leaf == other_leaf:
            votes.setdefault(module, Counter())[other] += 1
    return {module: others.most_common(1)[0][0] for module, others in votes.items()}


def _nearest(own: str, record: RankRecord, reference: World, taken: set[str]) -> str:
    """Of free names with the same initial values, the one with the most similar first gradient."""
    free = [name for name in _same_values(record.initial[own], reference) if name not in taken]
    if not free:
        return own
    gradient = None
    if record.steps and own in record.steps[0].parameters:
        gradient = record.steps[0].parameters[own].gradient
    if gradient is None or not reference.steps:
        return own if own in free else free[0]

    def distance(name: str) -> float:
        copies = reference.steps[0].get(name)
        other = None if copies is None else copies.whole("gradient")
        return float("inf") if other is None else (other - gradient).norm

    return min(free, key=distance)
