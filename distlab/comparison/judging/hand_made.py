"""Parameters that a program cuts into pieces itself, as tensor parallelism by hand does.

Each rank then has a tensor of its own under the name of the whole one. Runs where a comparison is
judged, called by judge.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from distlab.comparison.judging.wholes import Copies, World
from distlab.comparison.records import (
    MOST_SUMS,
    Piece,
    RankRecord,
    SeenParameter,
    SeenStep,
    Sketch,
)


@dataclass(frozen=True)
class Cut:
    """How ranks have cut a parameter.

    Attributes:
        shape: of the whole.
        positions: by rank, which of the whole's elements it has, in row-major order.
    """

    shape: tuple[int, ...]
    positions: Mapping[int, np.ndarray]

    def piece_of(self, rank: int, seen: SeenParameter) -> SeenParameter:
        """What a rank has, as a piece of the whole."""
        places = self.positions[rank]
        size = int(np.prod(self.shape))
        return replace(
            seen,
            shape=self.shape,
            piece=Piece(int(places.min()), int(places.max()), len(places), size),
            value=self._spread_out(seen.value, places, size),
            gradient=self._maybe(seen.gradient, places, size),
            own_gradient=self._maybe(seen.own_gradient, places, size),
        )

    def _maybe(self, sketch: Sketch | None, places: np.ndarray, size: int) -> Sketch | None:
        return None if sketch is None else self._spread_out(sketch, places, size)

    def _spread_out(self, sketch: Sketch, places: np.ndarray, size: int) -> Sketch:
        sums = np.zeros(size)
        sums[places] = sketch.sums
        return Sketch(sums, size)


def with_pieces(
    records: Sequence[RankRecord], reference: World
) -> tuple[list[RankRecord], dict[str, tuple[int, ...]]]:
    """Records in which hand-made pieces are pieces of a whole.

    A cut is believed if the pieces' first values, side by side, are those of the whole.

    Returns:
        The records; and the shapes of what has another shape than in the reference and could not
        be put together, by name, which are left out of the records.
    """
    cuts: dict[str, Cut] = {}
    left_out: dict[str, tuple[int, ...]] = {}
    world = World(records)
    for name, copies in world.initial.items():
        if name not in reference.initial or copies.shape == reference.initial[name].shape:
            continue
        cut = _find_cut(copies, reference.initial[name])
        if cut is None:
            left_out[name] = copies.shape
        else:
            cuts[name] = cut
    for moment in [world.initial, *world.steps]:
        for name, copies in moment.items():
            if name not in cuts and not _fits(copies, reference, name):
                left_out[name] = copies.shape
    if not cuts and not left_out:
        return list(records), {}
    changed = []
    for rank, record in enumerate(records):
        changed.append(
            replace(
                record,
                initial=_changed(record.initial, rank, cuts, left_out),
                steps=[_changed_step(step, rank, cuts, left_out) for step in record.steps],
                model_parallel=True,
            )
        )
    return changed, left_out


def _fits(copies: Copies, reference: World, name: str) -> bool:
    """Whether all ranks' sketches are of one tensor, which is that of the reference."""
    lengths = set()
    for seen in copies.by_rank.values():
        for sketch in (seen.value, seen.gradient):
            if sketch is not None:
                lengths.add((len(sketch.sums), sketch.elements))
        lengths.add((len(seen.value.sums), seen.piece.whole))
    for moment in [reference.initial, *reference.steps[:1]]:
        if name in moment:
            for seen in moment[name].by_rank.values():
                lengths.add((len(seen.value.sums), seen.value.elements))
    return len(lengths) == 1


def _changed_step(
    step: SeenStep, rank: int, cuts: Mapping[str, Cut], left_out: Mapping[str, object]
) -> SeenStep:
    return replace(step, parameters=_changed(step.parameters, rank, cuts, left_out))


def _changed(
    parameters: Mapping[str, SeenParameter],
    rank: int,
    cuts: Mapping[str, Cut],
    left_out: Mapping[str, object],
) -> dict[str, SeenParameter]:
    changed = {}
    for name, seen in parameters.items():
        if name in cuts:
            changed[name] = cuts[name].piece_of(rank, seen)
        elif name not in left_out:
            changed[name] = seen
    return changed


def _find_cut(copies: Copies, whole: Copies) -> Cut | None:
    """How the ranks' tensors make the whole, if they do."""
    shape = whole.shape
    value = whole.whole("value")
    if value is None or value.elements > MOST_SUMS:
        return None
    ranks = sorted(copies.by_rank)
    for seen in copies.by_rank.values():
        if seen.piece.elements != seen.piece.whole or len(seen.shape) != len(shape):
            return None
    distinct = _distinct(copies, ranks)
    for dimension in range(len(shape)):
        positions = _side_by_side(copies, distinct, shape, dimension)
        if positions is None:
            continue
        joined = np.zeros(value.elements)
        for first, *_ in distinct:
            joined[positions[first]] = copies.by_rank[first].value.sums
        if np.allclose(joined, value.sums, rtol=1e-6, atol=0):
            return Cut(shape, positions)
    return None


def _distinct(copies: Copies, ranks: Sequence[int]) -> list[list[int]]:
    """Ranks with the same values, in lists: those of one list have the same part of the whole."""
    found: list[list[int]] = []
    for rank in ranks:
        seen = copies.by_rank[rank]
        for alike in found:
            other = copies.by_rank[alike[0]]
            if other.shape == seen.shape and np.array_equal(other.value.sums, seen.value.sums):
                alike.append(rank)
                break
        else:
            found.append([rank])
    return found


def _side_by_side(
    copies: Copies, distinct: Sequence[Sequence[int]], shape: tuple[int, ...], dimension: int
) -> dict[int, np.ndarray] | None:
    """Which elements each rank has if the tensors are put side by side; None if they do not fit."""
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    positions: dict[int, np.ndarray] = {}
    begin = 0
    for alike in distinct:
        own = copies.by_rank[alike[0]].shape
        rest = (*own[:dimension], *own[dimension + 1 :])
        if rest != (*shape[:dimension], *shape[dimension + 1 :]):
            return None
        end = begin + own[dimension]
        part = numbers.take(range(begin, min(end, shape[dimension])), axis=dimension)
        for rank in alike:
            positions[rank] = part.ravel()
        begin = end
    return positions if begin == shape[dimension] else None
