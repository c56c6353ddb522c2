"""Findings about random numbers: dropout masks that are the same on every rank.

Runs where a comparison is judged, called by judge.py.
"""

from __future__ import annotations

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.judging.wholes import World
from distlab.comparison.judging.wording import different
from distlab.words import grouped, rank_list


def find_dropouts(world: World) -> list[Finding]:
    """The finding that all ranks draw the same dropout masks, for other rows.

    Ranks that hold parts of one model must often draw the same ones, so nothing is said of them.
    """
    if world.size < 2 or world.is_model_parallel:
        return []
    drawn = [[one.state for one in record.dropouts] for record in world.records]
    shortest = min(map(len, drawn))
    same = 0
    for states in zip(*(states[:shortest] for states in drawn), strict=True):
        same += len(set(states)) == 1
    how_many = "" if same == shortest else f" in {same} of {shortest} dropouts"
    who = "All ranks"
    if not same:
        by_states = grouped((tuple(states), rank) for rank, states in enumerate(drawn) if states)
        lists = [rank_list(ranks) for ranks in by_states.values() if len(ranks) > 1]
        if not lists:
            return []
        who = f"{', and '.join(lists)},"
        who = who[0].upper() + who[1:]
        how_many = ""
    sentence = f"{who} drew the same dropout masks{how_many}."
    seeds = [record.seeds[-1] for record in world.records if record.seeds]
    details = [
        "Rows on different ranks share their masks, so dropout regularises less than in one "
        "process. Once the model is made, give each rank a seed of its own: "
        "torch.manual_seed(seed + rank)."
    ]
    lines = [seed.line for seed in seeds] or [one.line for one in world.records[0].dropouts]
    finding = Finding(
        Cause.SAME_DROPOUT,
        sentence,
        tuple(details),
        world.size,
        world.records[0].dropouts[0].step,
        lines=different(lines),
    )
    return [finding]
