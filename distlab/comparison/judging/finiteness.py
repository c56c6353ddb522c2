"""Findings about numbers that are not finite.

Runs where a comparison is judged, called by judge.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.judging.forward_passes import backward_passes, lines_of_backward
from distlab.comparison.judging.wholes import World
from distlab.comparison.judging.wording import name_list
from distlab.words import rank_list

IN_ONE_PROCESS = "In one process all of them are finite."


@dataclass(frozen=True)
class NotFinite:
    """The first step with numbers that are not finite.

    Attributes:
        step: counted from 0.
        names: of the parameters.
        ranks: that have them.
    """

    step: int
    names: tuple[str, ...]
    ranks: tuple[int, ...]


def first_not_finite(world: World) -> NotFinite | None:
    """The first step in which a gradient or a value is nan or infinite."""
    for step, parameters in enumerate(world.steps):
        names = []
        ranks = set()
        for name, copies in parameters.items():
            for rank, seen in copies.by_rank.items():
                sketches = [seen.value, seen.gradient]
                if any(one is not None and not np.isfinite(one.norm) for one in sketches):
                    ranks.add(rank)
                    if name not in names:
                        names.append(name)
        if names:
            return NotFinite(step, tuple(names), tuple(sorted(ranks)))
    return None


def find_not_finite(world: World, reference: World | None) -> list[Finding]:
    """The finding that numbers are not finite, on some ranks or in one process, too."""
    found = first_not_finite(world)
    right = None if reference is None else first_not_finite(reference)
    if right is not None:
        if found is not None and found.step < right.step:
            return [_on_ranks(world, found)]
        sentence = (
            f"In one process some numbers are not finite, from step {right.step} on: those of "
            f"{name_list(right.names)}."
        )
        details = ("Steps from there on cannot be compared.",)
        return [
            Finding(Cause.NOT_FINITE, sentence, details, 0, right.step, right.names, hinders=True)
        ]
    if found is None:
        return []
    finding = _on_ranks(world, found)
    if reference is None:
        return [finding]
    return [replace(finding, details=(IN_ONE_PROCESS, *finding.details))]


def _on_ranks(world: World, found: NotFinite) -> Finding:
    where = f"on {rank_list(found.ranks)}"
    if len(found.ranks) == world.size:
        where = "on all ranks"
    details = []
    empty = []
    for rank, record in enumerate(world.records):
        passes = backward_passes(record, found.step)
        if any(one.targets == 0 for one in passes):
            empty.append(rank)
    if empty:
        details.append(
            f"{rank_list(empty).capitalize()} had no target in this step, and a mean of nothing is "
            "nan. Divide the sum of the losses by the number of targets of all ranks."
        )
    return Finding(
        Cause.NOT_FINITE,
        f"From step {found.step} on numbers of {name_list(found.names)} are not finite {where}.",
        tuple(details),
        world.size,
        found.step,
        found.names,
        ranks=found.ranks,
        lines=lines_of_backward(world, found.step),
    )
