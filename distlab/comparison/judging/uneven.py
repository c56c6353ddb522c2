"""Findings about ranks that make other numbers of steps, or get no news of a parameter.

Runs where a comparison is judged, called by replicas.py.
"""

from __future__ import annotations

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.judging.drifts import small
from distlab.comparison.judging.forward_passes import lines_of_step
from distlab.comparison.judging.tolerances import exceeds
from distlab.comparison.judging.wholes import World
from distlab.comparison.judging.wording import listed, name_list
from distlab.words import grouped, rank_list


def find_uneven_steps(world: World) -> Finding | None:
    """The finding that some ranks step less often, though they make as many backward passes.

    Ranks that have fewer rows make fewer passes, too, as Join lets them.
    """
    by_number = grouped((len(record.steps), rank) for rank, record in enumerate(world.records))
    passes = [len(record.backwards) for record in world.records]
    if len(by_number) < 2 or world.is_model_parallel:
        return None
    most = max(by_number)
    usual = max(passes[rank] for rank in by_number[most]) / max(most, 1)
    missing = []
    for rank, record in enumerate(world.records):
        if len(record.steps) < most and passes[rank] > usual * len(record.steps):
            missing.append(rank)
    if not missing:
        return None
    parts = []
    for number, ranks in sorted(by_number.items(), reverse=True):
        parts.append(f"{number} on {rank_list(ranks)}")
    first = min(len(world.records[rank].steps) for rank in missing)
    return Finding(
        Cause.REPLICAS_DIFFER,
        f"The replicas are not equal, because not all ranks step as often: {listed(parts)}.",
        (
            "All of them made the backward passes. Let every rank decide alike whether to step: "
            "not by its rank, and by a loss only if all_reduce has made it the same on all.",
        ),
        world.size,
        first,
        ranks=tuple(missing),
        lines=lines_of_step(world, 0),
    )


def find_stale(world: World) -> list[Finding]:
    """The finding that ranks keep an old value of a parameter that another rank steps."""
    for step in range(1, len(world.steps)):
        stale: dict[str, list[int]] = {}
        for rank in world.made_step(step):
            for name, seen in world.records[rank].steps[step].others.items():
                copies = world.steps[step - 1].get(name)
                value = None if copies is None else copies.whole("value")
                if copies is None or value is None or rank in copies.by_rank:
                    continue
                if copies.is_in_pieces or len(value.sums) != len(seen.value.sums):
                    continue
                if exceeds((seen.value - value).norm, small(value)):
                    stale.setdefault(name, []).append(rank)
        if stale:
            return [_stale(world, step, stale)]
    return []


def _stale(world: World, step: int, stale: dict[str, list[int]]) -> Finding:
    names = list(stale)
    ranks = sorted({rank for of_name in stale.values() for rank in of_name})
    verb = "is" if len(names) == 1 else "are"
    return Finding(
        Cause.REPLICAS_DIFFER,
        f"The replicas are not equal: before step {step} {name_list(names)} {verb} not on "
        f"{rank_list(ranks)} what another rank's optimizer made of "
        f"{'it' if len(names) == 1 else 'them'}.",
        (
            "After each step, send every parameter from the rank that steps it: "
            "dist.broadcast(parameter.data, src=owner).",
        ),
        world.size,
        step,
        tuple(names),
        ranks=tuple(ranks),
        lines=lines_of_step(world, step),
    )
