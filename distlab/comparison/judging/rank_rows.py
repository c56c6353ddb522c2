"""Findings about rows of ranks that are compared with each other, without one process.

Runs where a comparison is judged, called by judge.py.
"""

from __future__ import annotations

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.judging.forward_passes import rows_of
from distlab.comparison.judging.wholes import World
from distlab.words import grouped, rank_list


def find_rows_of_ranks(world: World) -> list[Finding]:
    """The finding that some ranks have the same rows in every step.

    Rows that are all alike, such as ones, may be the same by intention.
    """
    if world.size < 2 or world.is_model_parallel or world.is_in_pieces:
        return []
    rows = []
    for rank, record in enumerate(world.records):
        of_steps = []
        for step in range(len(record.steps)):
            of_steps.append(tuple(sorted(rows_of(record, step))))
        rows.append((tuple(of_steps), rank))
    equal = []
    for used, ranks in grouped(rows).items():
        distinct = {row for of_step in used for row in of_step}
        if len(ranks) > 1 and len(distinct) > 1:
            equal.append(ranks)
    if not equal:
        return []
    which = ", and ".join(rank_list(ranks) for ranks in equal)
    sentence = f"Some ranks have the same rows: {which}."
    if len(equal[0]) == world.size:
        sentence = "All ranks have the same rows, so they do not divide the work."
    finding = Finding(
        Cause.SAME_ROWS,
        sentence,
        (
            "Let each rank take its part, rows[rank::world_size] or DistributedSampler(dataset, "
            "num_replicas=world_size, rank=rank).",
        ),
        world.size,
        0,
        ranks=tuple(rank for ranks in equal for rank in ranks),
    )
    return [finding]
