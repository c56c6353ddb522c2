"""Parameters of a world as wholes: what its ranks have of each, put together under one name.

Runs where a comparison is judged, called by judging.py and by the files of findings beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from distlab.comparison.records import Piece, RankRecord, SeenParameter, Sketch

Kind = Literal["value", "gradient", "own_gradient"]


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
        by_piece: dict[Piece, list[int]] = {}
        for rank, seen in sorted(self.by_rank.items()):
            if seen.piece.elements or not seen.piece.whole:
                by_piece.setdefault(seen.piece, []).append(rank)
        return list(by_piece.values())

    @property
    def is_complete(self) -> bool:
        """Whether the ranks have all elements between them."""
        first, *_ = self.by_rank.values()
        held = 0
        for ranks in self.groups:
            held += self.by_rank[ranks[0]].piece.elements
        return held == first.piece.whole

    def sketches(self, kind: Kind, ranks: Sequence[int]) -> dict[int, Sketch]:
        """Those of the given ranks that have one, by rank."""
        found = {}
        for rank in ranks:
            sketch = getattr(self.by_rank[rank], kind)
            if sketch is not None:
                found[rank] = sketch
        return found

    def whole(self, kind: Kind) -> Sketch | None:
        """The sketch of the whole, with the first of several replicas; None if no rank has one."""
        total = None
        for ranks in self.groups:
            for sketch in list(self.sketches(kind, ranks).values())[:1]:
                total = sketch if total is None else total + sketch
        return total

    def mean(self, kind: Kind, weights: Mapping[int, float] | None = None) -> Sketch | None:
        """Like `whole`, with the mean of the replicas, which may be weighted by rank."""
        total = None
        for ranks in self.groups:
            sketches = self.sketches(kind, ranks)
            share = dict.fromkeys(sketches, 1.0)
            if weights is not None:
                share = {rank: weights.get(rank, 0.0) for rank in sketches}
            sum_of_weights = sum(share.values())
            if not sum_of_weights:
                continue
            for rank, sketch in sketches.items():
                part = sketch.scaled(share[rank] / sum_of_weights)
                total = part if total is None else total + part
        return total

    def spread(self, kind: Kind) -> float:
        """How far a replica is from the first one, at most; 0 where there is only one."""
        largest = 0.0
        for ranks in self.groups:
            copies = list(self.sketches(kind, ranks).values())
            for other in copies[1:]:
                distance = (other - copies[0]).norm
                if not distance <= largest:  # also if it is not a number
                    largest = distance
        return largest


class World:
    """What was seen in one world.

    Attributes:
        records: by rank.
        size: how many ranks the world has.
        steps: parameters by name, for each step that some rank made.
        initial: the parameters before the first forward pass, by name.
        unmatched: names that no parameter of the model world has, by rank.
    """

    def __init__(self, records: Sequence[RankRecord], names: Sequence[Mapping[str, str]] = ()):
        """Put the ranks' parts together.

        Args:
            records: of each rank, in their order.
            names: for each rank, the names in the reference by the rank's own; a name that is not
                there stays as it is.
        """
        self.records = list(records)
        self.size = len(self.records)
        self._names = list(names) or [{} for _ in self.records]
        self.initial = self._joined([record.initial for record in self.records])
        most = max((len(record.steps) for record in self.records), default=0)
        self.steps = []
        for step in range(most):
            seen = []
            for record in self.records:
                has_step = step < len(record.steps)
                seen.append(record.steps[step].parameters if has_step else {})
            self.steps.append(self._joined(seen))

    def _joined(self, by_rank: Sequence[Mapping[str, SeenParameter]]) -> dict[str, Copies]:
        """Parameters by their name in the reference, with what each rank has of them."""
        joined: dict[str, dict[int, SeenParameter]] = {}
        for rank, parameters in enumerate(by_rank):
            for own_name, seen in parameters.items():
                name = self._names[rank].get(own_name, own_name)
                joined.setdefault(name, {})[rank] = seen
        return {name: Copies(name, copies) for name, copies in joined.items()}

    def made_step(self, step: int) -> list[int]:
        """The ranks that made a step."""
        return [rank for rank, record in enumerate(self.records) if step < len(record.steps)]

    def previous_value(self, step: int, name: str) -> Sketch | None:
        """The value of a parameter before a step, of the first replica."""
        moment = self.initial if step == 0 else self.steps[step - 1]
        return moment[name].whole("value") if name in moment else None

    @property
    def is_model_parallel(self) -> bool:
        """Whether some rank has a part of the model only."""
        return any(record.model_parallel for record in self.records)

    @property
    def epsilon(self) -> float:
        """That of the coarsest type in use."""
        return max((record.epsilon for record in self.records), default=0.0)
