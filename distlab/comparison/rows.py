"""Findings about data: which rows the ranks used, compared with one process.

Runs where a comparison is judged, called by judging.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.forward_passes import rows_of, training_passes
from distlab.comparison.records import RankRecord
from distlab.comparison.wholes import World
from distlab.comparison.wording import different, row_list
from distlab.tables import count
from distlab.words import grouped, rank_list

Rows = Counter[bytes]
COMMON_SEED = (
    "Draw the data, or their order, with the same seed on every rank, torch.manual_seed(0) or "
    "DistributedSampler(seed=0), and let each rank take its part of them."
)
DIVIDE = (
    "Let each rank take its part of the batch, rows[rank::world_size] or a DistributedSampler with "
    "batch_size = batch // world_size."
)


def find_rows(world: World, reference: World) -> list[Finding]:
    """What the training rows of a world say; at most one finding.

    Args:
        world: what was seen.
        reference: of which the rows are known to be the same in every run.
    """
    numbers = numbers_of_rows(reference)
    if not numbers or not any(rows_of_world(world)):
        return []
    members = _members(world)
    steps = min(len(world.steps), len(reference.steps))
    for step in range(steps):
        expected = _counted([rows_of(record, step) for record in reference.records])
        parts = {rank: Counter(rows_of(world.records[rank], step)) for rank in members}
        used = sum(parts.values(), Counter())
        if used == expected or not expected or not used:
            continue
        if world.is_model_parallel and not used - expected and not expected - used:
            continue
        return [_what_differs(world, reference, step, numbers, parts, expected)]
    return []


def numbers_of_rows(reference: World) -> dict[bytes, int]:
    """Rows by the number under which a person knows them: in the order of their first use."""
    numbers: dict[bytes, int] = {}
    for rows in rows_of_world(reference):
        for row in rows:
            numbers.setdefault(row, len(numbers))
    return numbers


def rows_of_world(world: World) -> list[list[bytes]]:
    """The training rows of each rank, over all steps."""
    found = []
    for record in world.records:
        rows: list[bytes] = []
        for one in record.forwards:
            if one.training:
                rows += one.rows
        found.append(rows)
    return found


def _counted(parts: Sequence[Sequence[bytes]]) -> Rows:
    counted: Rows = Counter()
    for rows in parts:
        counted.update(rows)
    return counted


def _members(world: World) -> list[int]:
    """The ranks whose rows add up: of ranks that share a model and its rows, the first ones."""
    if not world.is_model_parallel:
        return list(range(world.size))
    by_rows = grouped((tuple(rows), rank) for rank, rows in enumerate(rows_of_world(world)) if rows)
    return [ranks[0] for ranks in by_rows.values()]


def _what_differs(
    world: World,
    reference: World,
    step: int,
    numbers: Mapping[bytes, int],
    parts: Mapping[int, Rows],
    expected: Rows,
) -> Finding:
    """The finding for the first step whose rows are others."""
    used = sum(parts.values(), Counter())
    unknown = sum(many for row, many in used.items() if row not in numbers)
    size = sum(expected.values())
    if unknown:
        return _unknown_rows(world, step, unknown, used)
    if all(part == expected for part in parts.values() if part) and len(parts) > 1:
        return _undivided(world, step, size)
    if _is_shuffled_apart(world, numbers):
        return _shuffled_apart(world, step)
    equal = _equal_parts(parts)
    if equal:
        return _same_rows(world, step, equal, used, expected)
    if all(sum(part.values()) == size for part in parts.values()) and len(parts) > 1:
        return _larger_batch(world, step, size, parts)
    if _total(world) == _total(reference):
        return _other_steps(world, step)
    return _repeated(world, reference, step, numbers, used, expected)


def _total(world: World) -> Rows:
    return _counted([rows for rank, rows in enumerate(rows_of_world(world))])


# --- each finding ---


def _unknown_rows(world: World, step: int, unknown: int, used: Rows) -> Finding:
    total = sum(used.values())
    which = "all" if unknown == total else f"{unknown:,} of"
    sentence = (
        f"The ranks draw their data without a common seed: {which} {total:,} rows of step {step} "
        "are rows that one process never used."
    )
    return _of_data(world, Cause.RANDOM_DATA, sentence, [*_seeds(world), COMMON_SEED], step, True)


def _shuffled_apart(world: World, step: int) -> Finding:
    sentence = (
        "The ranks draw the order of their data without a common seed: each takes its part of "
        "another order, so some rows are used several times and others not at all."
    )
    return _of_data(world, Cause.RANDOM_DATA, sentence, [*_seeds(world), COMMON_SEED], step, True)


def _seeds(world: World) -> list[str]:
    """Which seeds the program set, if it set any."""
    seeds = {}
    for rank, record in enumerate(world.records):
        if record.seeds:
            seeds[rank] = record.seeds[-1].seed
    if not seeds:
        return ["The program sets no seed, so each rank draws numbers of its own."]
    if len(set(seeds.values())) == 1:
        return []
    words = ", ".join(f"{seed} on rank {rank}" for rank, seed in seeds.items())
    return [f"The seeds are {words}."]


def _undivided(world: World, step: int, size: int) -> Finding:
    sentence = (
        f"The ranks do not divide the work: every rank used all {count(size, 'row')} of step "
        f"{step}, as one process does."
    )
    return _of_data(world, Cause.UNDIVIDED, sentence, [DIVIDE], step, True)


def _larger_batch(world: World, step: int, size: int, parts: Mapping[int, Rows]) -> Finding:
    times = len(parts)
    sentence = (
        f"The batch grows with the number of ranks: step {step} has {size * times:,} rows, {times} "
        f"times the {size:,} of one process."
    )
    details = [
        "That is another training, with fewer steps over the same data, and its numbers are "
        "others. To compare, divide: DataLoader(..., batch_size=batch // world_size)."
    ]
    return _of_data(world, Cause.LARGER_BATCH, sentence, details, step, True)


def _equal_parts(parts: Mapping[int, Rows]) -> list[list[int]]:
    """Ranks that have the same rows, in lists."""
    by_rows = grouped((frozenset(part.items()), rank) for rank, part in parts.items() if part)
    return [ranks for ranks in by_rows.values() if len(ranks) > 1]


def _same_rows(
    world: World, step: int, equal: Sequence[Sequence[int]], used: Rows, expected: Rows
) -> Finding:
    groups = [rank_list(ranks) for ranks in equal]
    which = ", and so had ".join(groups)
    sentence = f"Some ranks have the same rows: {which} had equal ones in step {step}."
    if len(equal) == 1:
        sentence = f"Some ranks have the same rows: {which}, in step {step}."
        if len(equal[0]) == world.size:
            sentence = f"All {world.size} ranks have the same rows in step {step}."
    missing = sum((expected - used).values())
    details = []
    if missing:
        details.append(f"{count(missing, 'row')} that one process used, no rank did.")
    details.append(
        "Take the part of the data by the rank in the world, dist.get_rank(), and not by that on "
        "the machine: DistributedSampler(dataset, num_replicas=world_size, rank=rank)."
    )
    ranks = [rank for group in equal for rank in group]
    return _of_data(world, Cause.SAME_ROWS, sentence, details, step, False, ranks)


def _other_steps(world: World, step: int) -> Finding:
    sentence = (
        "The ranks use the rows of one process in other steps: over all steps each is used as "
        f"often, but step {step} has others."
    )
    details = [
        "The steps cannot be compared one by one. Give step k of n ranks the rows of step k of one "
        "process, as DistributedSampler does, whose ranks take every n-th row."
    ]
    return _of_data(world, Cause.ROWS_DIFFER, sentence, details, step, True)


def _repeated(
    world: World,
    reference: World,
    step: int,
    numbers: Mapping[bytes, int],
    used: Rows,
    expected: Rows,
) -> Finding:
    """Rows are used too often, or never."""
    twice = {row: many for row, many in used.items() if many > expected[row]}
    never = [numbers[row] for row in expected if not used[row]]
    elsewhere = [row for row in twice if row not in expected]
    if elsewhere:
        return _rows_of_other_steps(world, step, len(elsewhere), sum(used.values()))
    parts = []
    by_times = grouped((many, numbers[row]) for row, many in twice.items())
    for many, rows in by_times.items():
        verb = "was" if len(rows) == 1 else "were"
        times = "twice" if many == 2 else f"{many} times"
        parts.append(f"{row_list(rows)} {verb} used {times}")
    if never:
        verb = "was" if len(never) == 1 else "were"
        parts.append(
            f"{row_list(never)} {verb} never used" if not parts else f"{row_list(never)} never"
        )
    sentence = f"In step {step} {', '.join(parts)}."
    details = _why_repeated(world, bool(twice), sum(expected.values()))
    details.append("Rows are numbered in the order in which one process uses them.")
    return _of_data(world, Cause.ROWS_REPEATED, sentence, details, step, False)


def _why_repeated(world: World, repeats: bool, size: int) -> list[str]:
    """Why rows are repeated, or left out."""
    padded = [one for record in world.records for one in record.samplers if one.padded]
    if padded:
        return [
            f"DistributedSampler repeats {count(padded[0].padded, 'sample')}, so that every rank "
            "has as many: drop_last=True leaves samples out instead, and a number of samples that "
            "the ranks divide needs neither."
        ]
    if size % world.size and not repeats:
        return [
            f"{size:,} rows do not divide by {world.size} ranks: take rows[rank::world_size], and "
            "weigh each rank by its rows, or use a batch that the ranks divide."
        ]
    return ["Look at which part of the rows each rank takes."]


def _rows_of_other_steps(world: World, step: int, many: int, total: int) -> Finding:
    sentence = (
        f"The ranks use other rows than one process: {many:,} of {total:,} rows of step {step} "
        "belong to another step there."
    )
    return _of_data(world, Cause.ROWS_DIFFER, sentence, [DIVIDE], step, False)


# --- orders ---


def _is_shuffled_apart(world: World, numbers: Mapping[bytes, int]) -> bool:
    """Whether ranks take parts of different orders: rank 0 of that of one process, others not."""
    shuffled = []
    for rows in rows_of_world(world):
        places = [numbers[row] for row in rows if row in numbers]
        descents = sum(second < first for first, second in pairwise(places))
        shuffled.append(len(places) >= 4 and descents > len(places) / 5)
    return not shuffled[0] and any(shuffled)


def _of_data(
    world: World,
    cause: Cause,
    sentence: str,
    details: Sequence[str],
    step: int,
    hinders: bool,
    ranks: Sequence[int] = (),
) -> Finding:
    """A finding about the rows of a step, with the lines of its forward passes."""
    return Finding(
        cause,
        sentence,
        tuple(details),
        world.size,
        step,
        ranks=tuple(ranks),
        lines=_lines(world.records, step),
        hinders=hinders,
    )


def _lines(records: Sequence[RankRecord], step: int):
    passes = []
    for record in records:
        passes += training_passes(record, step)
    return different(one.line for one in passes)
