"""Parameters of a world as wholes: what its ranks have of each, put together under one name.

Runs where a comparison is judged, called by judge.py and by the files of findings beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from distlab.comparison.records import Piece, RankRecord, SeenParameter, SeenStep, Sketch

Kind = Literal["value", "gradient"]


@dataclass
class Copies:
    """A parameter at one moment, as the ranks that have it see it.

    Attributes:
        name: that of one process.
        by_rank: what each rank has.
    """

    name: str
    by_rank: dict[int, SeenParameter]

    @cached_property
    def groups(self) -> list[list[int]]:
        """Ranks with the same elements: each list are replicas of each other."""
        by_piece: dict[tuple[Piece, int], list[int]] = {}
        for rank, seen in sorted(self.by_rank.items()):
            if seen.piece.elements or not seen.piece.whole:
                by_piece.setdefault((seen.piece, len(seen.value.sums)), []).append(rank)
        return list(by_piece.values())

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole."""
        first, *_ = self.by_rank.values()
        return first.shape

    @property
    def is_in_pieces(self) -> bool:
        """Whether ranks have different elements."""
        return len(self.groups) > 1

    @property
    def is_complete(self) -> bool:
        """Whether the ranks have all elements between them."""
        first, *_ = self.by_rank.values()
        held = 0
        for ranks in self.groups:
            held += self.by_rank[ranks[0]].piece.elements
        return held == first.piece.whole

    @property
    def has_partial_gradient(self) -> bool:
        """Whether each rank has a summand of the gradient only."""
        return any(seen.gradient_is_partial for seen in self.by_rank.values())

    def sketches(self, kind: Kind, ranks: Sequence[int]) -> dict[int, Sketch]:
        """Those of the given ranks that have one, by rank."""
        found = {}
        for rank in ranks:
            seen = self.by_rank[rank]
            sketch = seen.value if kind == "value" else seen.gradient
            if sketch is not None:
                found[rank] = sketch
        return found

    def whole(self, kind: Kind) -> Sketch | None:
        """The sketch of the whole, with the first of several replicas; None if no rank has one."""
        if kind == "gradient" and self.has_partial_gradient:
            return added_up(list(self.sketches(kind, sorted(self.by_rank)).values()))
        parts = []
        for ranks in self.groups:
            parts += list(self.sketches(kind, ranks).values())[:1]
        return added_up(parts)

    def mean_gradient(self, weights: Mapping[int, float] | None = None) -> Sketch | None:
        """The gradient of the whole, with the mean of the replicas, which may be weighted."""
        if self.has_partial_gradient:
            return self.whole("gradient")
        parts = []
        for ranks in self.groups:
            mean = weighted_mean(self.sketches("gradient", ranks), weights)
            if mean is not None:
                parts.append(mean)
        return added_up(parts)

    def mean_value(self) -> Sketch | None:
        """The value of the whole, with the mean of the replicas."""
        means = [weighted_mean(self.sketches("value", ranks)) for ranks in self.groups]
        return added_up([mean for mean in means if mean is not None])

    def own_gradients(self) -> dict[int, Sketch]:
        """What each rank's backward passes gave, of the whole parameter, by rank."""
        found = {}
        for rank, seen in self.by_rank.items():
            if seen.own_gradient is not None:
                found[rank] = seen.own_gradient
        return found

    def spread(self, kind: Kind) -> float:
        """How far a replica is from the first one, at most; 0 where there is only one."""
        if kind == "gradient" and self.has_partial_gradient:
            return 0.0
        distances = [0.0]
        for ranks in self.groups:
            copies = list(self.sketches(kind, ranks).values())
            for other in copies[1:]:
                distances.append((other - copies[0]).norm)
        return float(np.max(distances))  # not a number if one of them is none


def added_up(sketches: Sequence[Sketch]) -> Sketch | None:
    """The sum of sketches; None for none, or if they are of different tensors."""
    total = None
    if len({len(sketch.sums) for sketch in sketches}) > 1:
        return None
    for sketch in sketches:
        total = sketch if total is None else total + sketch
    return total


def weighted_mean(
    sketches: Mapping[int, Sketch], weights: Mapping[int, float] | None = None
) -> Sketch | None:
    """The mean of the ranks' sketches, which may be weighted by rank; None without any.

    A rank without weight does not count, whatever it has.
    """
    share = dict.fromkeys(sketches, 1.0)
    if weights is not None:
        share = {rank: weights.get(rank, 0.0) for rank in sketches}
    sum_of_weights = sum(share.values())
    if not sum_of_weights:
        return None
    parts = []
    for rank, sketch in sketches.items():
        if share[rank]:
            parts.append(sketch.scaled(share[rank] / sum_of_weights))
    return added_up(parts)


class World:
    """What was seen in one world.

    Attributes:
        records: by rank, with the names of the reference.
        size: how many ranks the world has.
        steps: parameters by name, for each step that some rank made.
        initial: the parameters before the first forward pass, by name.
    """

    def __init__(self, records: Sequence[RankRecord]):
        """Put the ranks' parts together.

        Args:
            records: of each rank, in their order.
        """
        self.records = list(records)
        self.size = len(self.records)
        self.initial = _joined([record.initial for record in self.records])
        most = max((len(record.steps) for record in self.records), default=0)
        self.steps = []
        for step in range(most):
            seen = []
            for record in self.records:
                has_step = step < len(record.steps)
                seen.append(record.steps[step].parameters if has_step else {})
            self.steps.append(_joined(seen))

    def made_step(self, step: int) -> list[int]:
        """The ranks that made a step."""
        return [rank for rank, record in enumerate(self.records) if step < len(record.steps)]

    def first_step(self, step: int) -> SeenStep:
        """A step as the first rank that made it has seen it."""
        return self.records[self.made_step(step)[0]].steps[step]

    def previous_value(self, step: int, name: str) -> Sketch | None:
        """The value of a parameter before a step, of the first replica."""
        moment = self.initial if step == 0 else self.steps[step - 1]
        return moment[name].whole("value") if name in moment else None

    @property
    def is_model_parallel(self) -> bool:
        """Whether some rank has a part of the model only."""
        return any(record.model_parallel for record in self.records)

    @property
    def is_in_pieces(self) -> bool:
        """Whether some parameter is in pieces on the ranks."""
        return any(copies.is_in_pieces for copies in self.initial.values())

    @property
    def epsilon(self) -> float:
        """That of the coarsest type in use."""
        return max((record.epsilon for record in self.records), default=0.0)


def stepped(world: World) -> set[str]:
    """The parameters that some optimizer has stepped."""
    return {name for step in world.steps for name in step}


def _joined(by_rank: Sequence[Mapping[str, SeenParameter]]) -> dict[str, Copies]:
    """Parameters by their name, with what each rank has of them."""
    joined: dict[str, dict[int, SeenParameter]] = {}
    for rank, parameters in enumerate(by_rank):
        for name, seen in parameters.items():
            joined.setdefault(name, {})[rank] = seen
    return {name: Copies(name, copies) for name, copies in joined.items()}
