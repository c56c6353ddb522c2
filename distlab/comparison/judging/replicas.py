"""Findings about replicas: whether ranks with the same parameters keep the same values.

Runs where a comparison is judged, called by judge.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.judging.averages import find_not_averaged
from distlab.comparison.judging.drifts import Drift, alike, first_drift, odd_ranks, small
from distlab.comparison.judging.forward_passes import lines_of_step, rows_of
from distlab.comparison.judging.tolerances import Tolerances, exceeds
from distlab.comparison.judging.uneven import find_stale, find_uneven_steps
from distlab.comparison.judging.wholes import World, stepped
from distlab.comparison.judging.wording import listed, name_list, number
from distlab.words import grouped, rank_list

COMMON_BEGINNING = (
    "Averaged gradients keep such a distance for ever. Make the model with the same seed on every "
    "rank, load a checkpoint on every rank, or call dist.broadcast(parameter.data, src=0) for each "
    "parameter; DistributedDataParallel does that once, when it is made."
)


def find_replicas(world: World, tolerances: Tolerances | None) -> list[Finding]:
    """Findings about replicas of one world: how they begin, and what drives them apart.

    Args:
        world: what was seen.
        tolerances: those of the reference; None where the ranks are compared with each other.
    """
    beginning = _find_other_initial(world)
    uneven = find_uneven_steps(world)
    if uneven is not None:
        return [*beginning, uneven]
    drift = first_drift(world, tolerances)
    if drift is None:
        return beginning or find_stale(world)
    if _have_other_rows(world, drift):
        return [_other_rows(world, drift)]
    not_averaged = find_not_averaged(world, drift, tolerances)
    if not_averaged is not None:
        return [*beginning, not_averaged]
    return beginning or [_differ(world, drift)]


# --- their beginning ---


def _find_other_initial(world: World) -> list[Finding]:
    """Replicas that begin with other values."""
    names = []
    ranks: set[int] = set()
    largest = 0.0
    for name, copies in world.initial.items():
        value = copies.whole("value")
        if value is None or name not in stepped(world) or _may_be_parts(world, name):
            continue
        bound = small(value)
        if exceeds(copies.spread("value"), bound):
            names.append(name)
            ranks |= odd_ranks(copies, bound)
            largest = max(largest, copies.spread("value") / (value.norm or 1.0))
    if not names:
        return []
    what = "all parameters" if len(names) == len(stepped(world)) else name_list(names)
    others = [rank for rank in range(world.size) if rank not in ranks]
    which = "differ between all ranks" if len(names) > 1 else "differs between all ranks"
    if others:
        verb = "are not those" if len(names) > 1 else "is not that"
        which = f"of {rank_list(ranks)} {verb} of {rank_list(others)}"
    finding = Finding(
        Cause.OTHER_INITIAL,
        f"The replicas begin with other values: {what} {which}.",
        (f"They differ by up to {number(largest)} times their norm.", COMMON_BEGINNING),
        world.size,
        parameters=tuple(names),
        ranks=tuple(sorted(ranks)),
    )
    return [finding]


def _may_be_parts(world: World, name: str) -> bool:
    """Whether ranks that hold parts of one model have tensors of their own under one name.

    Then some rank's first values are not those of any other rank from the same piece.
    """
    copies = world.initial[name]
    return world.is_model_parallel and not copies.is_in_pieces and len(alike(copies, 0.0)) > 1


# --- any other drift ---


def _differ(world: World, drift: Drift) -> Finding:
    """Replicas differ, and not because nothing averages."""
    step = drift.step
    rates = _rates(world)
    if rates:
        sentence = f"The replicas are not equal, because their learning rates are not: {rates}."
    else:
        gradients = "although their gradients are equal"
        if drift.gradients:
            gradients = "and so do their gradients"
        what = name_list(drift.values)
        if len(drift.values) == len(world.steps[step]):
            what = "all parameters"
        verb = "differ" if len(drift.values) > 1 else "differs"
        sentence = (
            f"The replicas are not equal: after step {step} {what} {verb} between ranks, "
            f"{gradients}."
        )
    odd: set[int] = set()
    for name in drift.values:
        odd |= odd_ranks(world.steps[step][name], drift.bounds[name])
    return Finding(
        Cause.REPLICAS_DIFFER,
        sentence,
        (drift.in_words(world),),
        world.size,
        step,
        drift.values,
        ranks=tuple(sorted(odd)),
        lines=lines_of_step(world, step),
    )


def _rates(world: World) -> str:
    """The first learning rates that differ between ranks, if they do; "" otherwise."""
    for step in range(len(world.steps)):
        by_rate = grouped(
            (world.records[rank].steps[step].learning_rates, rank) for rank in world.made_step(step)
        )
        if len(by_rate) < 2:
            continue
        parts = []
        for rates, ranks in by_rate.items():
            words = listed([number(rate, 4) for rate in rates]) if rates else "none"
            parts.append(f"{words} on {rank_list(ranks)}")
        return f"{listed(parts)} in step {step}"
    return ""


def _have_other_rows(world: World, drift: Drift) -> bool:
    """Whether ranks that hold pieces of one layer have different rows."""
    parameters = world.steps[drift.step]
    are_all_whole = not any(copies.is_in_pieces for copies in parameters.values())
    if not world.is_model_parallel or are_all_whole:
        return False
    step = drift.step
    rows: Sequence[tuple[bytes, ...]] = [
        tuple(sorted(rows_of(record, step))) for record in world.records
    ]
    return all(rows) and len(set(rows)) == len(rows)


def _other_rows(world: World, drift: Drift) -> Finding:
    return Finding(
        Cause.GRADIENT_DIFFERS,
        f"The gradient is another one than in one process, from step {drift.step} on, because "
        "ranks that hold parts of one layer have different rows.",
        (
            "Tensor-parallel ranks each compute a part of every row. Give all of them the same "
            "batch, and divide rows only between groups that have the whole model.",
        ),
        world.size,
        drift.step,
        drift.values,
        lines=lines_of_step(world, drift.step),
    )
