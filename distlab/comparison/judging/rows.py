"""Findings about data: which rows the ranks used, compared with one process.

Runs where a comparison is judged, called by judge.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from distlab.comparison.findings import Cause, Finding
from distlab.comparison.judging.forward_passes import (
    losses_of,
    rows_of,
    training_passes,
    training_rows,
)
from distlab.comparison.judging.repeated_rows import find_repeated
from distlab.comparison.judging.wholes import World
from distlab.comparison.judging.wording import different
from distlab.tables import count
from distlab.wire.source import Line
from distlab.words import grouped, rank_list

Rows = Counter[bytes]
COMMON_SEED = (
    "Draw the data, or their order, with the same seed on every rank, torch.manual_seed(0) or "
    "DistributedSampler(dataset, seed=0), and let each rank take its part of them."
)
DIVIDE = (
    "Let each rank take its part of the batch, rows[rank::world_size], or use a DistributedSampler "
    "and DataLoader(..., batch_size=batch // world_size)."
)
BY_RANK = (
    "Take the part of the data by the rank in the world, dist.get_rank(), and not by the rank on "
    "this machine: DistributedSampler(dataset, num_replicas=world_size, rank=rank)."
)
ALMOST = 1e-2  # relative difference of losses that are taken for equal
FEWEST_ROWS = 5  # of a rank, to see that they are in an order of their own


@dataclass(frozen=True)
class RowsOfStep:
    """The rows of the first step that has others than one process.

    Attributes:
        step: counted from 0.
        parts: what each rank used, without ranks that repeat others of their model.
        used: what all of these used.
        expected: what one process used.
        numbers: of each row that one process used, in any step: rows are numbered in the order in
            which it used them first.
    """

    step: int
    parts: Mapping[int, Rows]
    used: Rows
    expected: Rows
    numbers: Mapping[bytes, int]


def find_rows(world: World, reference: World, perturbed: Sequence[World]) -> list[Finding]:
    """What the training rows of a world say; at most one finding.

    Args:
        world: what was seen.
        reference: with what it is compared.
        perturbed: the reference with changed numbers: rows that are others there are computed from
            parameters, so they can only be compared as numbers.
    """
    computed = _computed_rows(reference, perturbed)
    numbers = _numbers_of_rows(reference, computed)
    members = _members(world)
    for step in range(min(len(world.steps), len(reference.steps))):
        expected: Rows = Counter()
        for record in reference.records:
            expected.update(row for row in rows_of(record, step) if row in numbers)
        parts = {rank: Counter(rows_of(world.records[rank], step)) for rank in members}
        used = sum(parts.values(), Counter())
        if not expected or not used or used == expected:
            continue
        seen = RowsOfStep(step, parts, used, expected, numbers)
        finding = _what_differs(world, reference, seen, bool(computed))
        return [] if finding is None else [finding]
    return []


def _computed_rows(reference: World, perturbed: Sequence[World]) -> set[bytes]:
    """Rows of the reference that its perturbed runs do not have."""
    plain = {row for record in reference.records for row in training_rows(record)}
    computed: set[bytes] = set()
    for world in perturbed:
        others = {row for record in world.records for row in training_rows(record)}
        computed |= plain - others
    return computed


def _numbers_of_rows(reference: World, computed: set[bytes]) -> dict[bytes, int]:
    numbers: dict[bytes, int] = {}
    for record in reference.records:
        for row in training_rows(record):
            if row not in computed:
                numbers.setdefault(row, len(numbers))
    return numbers


def _members(world: World) -> list[int]:
    """The ranks whose rows add up: of ranks that share a model and its rows, the first ones."""
    if not world.is_model_parallel:
        return list(range(world.size))
    by_rows = grouped((tuple(training_rows(one)), rank) for rank, one in enumerate(world.records))
    return [ranks[0] for rows, ranks in by_rows.items() if rows]


def _what_differs(
    world: World, reference: World, seen: RowsOfStep, some_are_computed: bool
) -> Finding | None:
    """The finding for the first step whose rows are others."""
    size = seen.expected.total()
    sizes = {part.total() for part in seen.parts.values() if part}
    unknown = sum(many for row, many in seen.used.items() if row not in seen.numbers)
    if unknown:
        are_parts_of_rows = unknown == seen.used.total() and sizes == {size}
        if some_are_computed or are_parts_of_rows or world.is_model_parallel:
            return None
        if not _shapes(world, seen.step) <= _shapes(reference, seen.step):
            return None  # padded in another way, or cut
        if any(_are_mixed(part, seen.numbers) for part in seen.parts.values()):
            if _is_shuffled_apart(world, seen.numbers):
                return _shuffled_apart(world, seen)
            return _other_rows_of_data(world, seen, unknown)
        return _unknown_rows(world, seen, unknown)
    if all(part == seen.expected for part in seen.parts.values() if part) and len(seen.parts) > 1:
        return _undivided(world, seen) if _have_its_loss(world, reference, seen.step) else None
    if _is_shuffled_apart(world, seen.numbers):
        return _shuffled_apart(world, seen)
    equal = _equal_parts(seen.parts)
    if equal:
        return _same_rows(world, seen, equal)
    if sizes == {size} and len(seen.parts) > 1:
        return _larger_batch(world, seen)
    totals = [Counter[bytes](), Counter[bytes]()]
    for total, one in zip(totals, (world, reference), strict=True):
        for record in one.records:
            total.update(training_rows(record))
    if totals[0] == totals[1]:
        return _other_steps(world, seen)
    return find_repeated(world, reference, seen, lines_of_forward(world, seen.step))


def _shapes(world: World, step: int) -> set[tuple[int, ...]]:
    """The shapes of the rows of a step."""
    shapes = set()
    for record in world.records:
        shapes |= {one.row_shape for one in training_passes(record, step) if one.rows}
    return shapes


def _have_its_loss(world: World, reference: World, step: int) -> bool:
    """Whether each rank's loss is that of one process, as far as losses are known.

    If not, the rows were others: what looks like rows is a mask, or positions.
    """
    expected = list(losses_of(reference, step).values())
    if len(expected) != 1:
        return True
    (right,) = expected
    return all(abs(one - right) <= ALMOST * abs(right) for one in losses_of(world, step).values())


def _are_mixed(part: Rows, numbers: Mapping[bytes, int]) -> bool:
    """Whether a rank has rows of one process and others: then all come from the same data."""
    return len({row in numbers for row in part}) == 2


# --- each finding ---


def _other_rows_of_data(world: World, seen: RowsOfStep, unknown: int) -> Finding:
    total = seen.used.total()
    sentence = (
        f"The ranks use other rows: {unknown:,} of {total:,} rows of step {seen.step} are rows "
        "that one process never used."
    )
    return _of_data(world, Cause.ROWS_DIFFER, sentence, [DIVIDE], seen, False)


def _unknown_rows(world: World, seen: RowsOfStep, unknown: int) -> Finding:
    total = seen.used.total()
    which = f"all {total:,}" if unknown == total else f"{unknown:,} of {total:,}"
    sentence = (
        f"The ranks draw their data without a common seed: {which} rows of step {seen.step} are "
        "rows that one process never used."
    )
    return _of_data(world, Cause.RANDOM_DATA, sentence, [*_seeds(world), COMMON_SEED], seen, True)


def _shuffled_apart(world: World, seen: RowsOfStep) -> Finding:
    twice = sum(1 for row, many in seen.used.items() if many > seen.expected[row])
    never = sum(1 for row in seen.expected if not seen.used[row])
    sentence = (
        "The ranks draw the order of their data without a common seed, so each takes its part of "
        f"another order: in step {seen.step}, {count(twice, 'row')} came too often, and "
        f"{count(never, 'row')} not at all."
    )
    is_chosen = any(record.seeds or record.samplers for record in world.records)
    details = [*_seeds(world), COMMON_SEED]
    return _of_data(world, Cause.RANDOM_DATA, sentence, details, seen, not is_chosen)


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


def _undivided(world: World, seen: RowsOfStep) -> Finding:
    sentence = (
        f"The ranks do not divide the work: every rank used all "
        f"{count(seen.expected.total(), 'row')} of step {seen.step}, as one process does."
    )
    return _of_data(world, Cause.UNDIVIDED, sentence, [DIVIDE], seen, True)


def _larger_batch(world: World, seen: RowsOfStep) -> Finding:
    size = seen.expected.total()
    times = len(seen.parts)
    sentence = (
        f"The batch grows with the number of ranks: step {seen.step} has {size * times:,} rows, "
        f"{times} times the {size:,} of one process."
    )
    details = [
        "That is another training, which makes fewer steps over the same data. To compare, divide "
        "the batch: DataLoader(..., batch_size=batch // world_size)."
    ]
    return _of_data(world, Cause.LARGER_BATCH, sentence, details, seen, True)


def _equal_parts(parts: Mapping[int, Rows]) -> list[list[int]]:
    """Ranks that have the same rows, in lists."""
    by_rows = grouped((frozenset(part.items()), rank) for rank, part in parts.items() if part)
    return [ranks for ranks in by_rows.values() if len(ranks) > 1]


def _same_rows(world: World, seen: RowsOfStep, equal: Sequence[Sequence[int]]) -> Finding:
    pairs = [rank_list(ranks) for ranks in equal]
    which = f"{', and '.join(pairs)}, in step {seen.step}"
    sentence = f"Some ranks have the same rows: {which}."
    if len(equal[0]) == world.size:
        sentence = f"All ranks have the same rows in step {seen.step}."
    missing = (seen.expected - seen.used).total()
    details = []
    if missing:
        details.append(f"One process used {count(missing, 'row')} that no rank used.")
    details.append(DIVIDE if len(equal[0]) == world.size else BY_RANK)
    ranks = tuple(rank for group in equal for rank in group)
    return _of_data(world, Cause.SAME_ROWS, sentence, details, seen, False, ranks)


def _other_steps(world: World, seen: RowsOfStep) -> Finding:
    sentence = (
        "The ranks use the rows of one process, each as often, but in other steps: step "
        f"{seen.step} has others."
    )
    details = [
        "So the steps cannot be compared one by one. Give step k of all ranks together the rows of "
        "step k of one process, as DistributedSampler does, where rank r takes every n-th row."
    ]
    return _of_data(world, Cause.ROWS_DIFFER, sentence, details, seen, True)


def _is_shuffled_apart(world: World, numbers: Mapping[bytes, int]) -> bool:
    """Whether ranks take parts of different orders: some of that of one process, others not."""
    shuffled = []
    for record in world.records:
        places = [numbers[row] for row in training_rows(record) if row in numbers]
        descents = sum(second < first for first, second in pairwise(places))
        shuffled.append(len(places) >= FEWEST_ROWS and descents > len(places) / 3)
    return any(shuffled) and not all(shuffled)


def _of_data(
    world: World,
    cause: Cause,
    sentence: str,
    details: Sequence[str],
    seen: RowsOfStep,
    hinders: bool,
    ranks: tuple[int, ...] = (),
) -> Finding:
    """A finding about the rows of a step."""
    return Finding(
        cause,
        sentence,
        tuple(details),
        world.size,
        seen.step,
        ranks=ranks,
        lines=lines_of_forward(world, seen.step),
        hinders=hinders,
    )


def lines_of_forward(world: World, step: int) -> tuple[Line, ...]:
    """Where the rows come from: the lines of the samplers, or else of the forward passes."""
    samplers = different(one.line for record in world.records for one in record.samplers)
    if samplers:
        return samplers
    passes = []
    for record in world.records:
        passes += training_passes(record, step)
    return different(one.line for one in passes)
