"""A law of two terms, fitted to measurements of things that are alike. Pure functions.

Called by measured.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

# work within this factor of what was measured is scaled, other work is extrapolated
NEAR = 2.0
ALIKE = 1.05  # sizes that differ less are measured together
SAME = 1.001  # sizes that differ less are one
APART = 1.5  # sizes that differ less do not tell an overhead from a rate


class Point(NamedTuple):
    """A measurement.

    Attributes:
        first, second: what it has of the two terms.
        seconds: as measured.
        place: to find the nearest one.
        mark: what else tells it from others, such as its number of ranks.
    """

    first: float
    second: float
    seconds: float
    place: tuple[float, ...]
    mark: int = 0


@dataclass
class Law:
    """seconds = a x first + b x second, scaled to be right at the nearest measurement.

    Attributes:
        a, b: the factors; neither is below 0.
        points: that they were fitted to.
    """

    a: float
    b: float
    points: list[Point]

    def _plain(self, first: float, second: float) -> float:
        return self.a * first + self.b * second

    def seconds(self, first: float, second: float, place: tuple[float, ...]) -> float:
        """How long something takes."""
        distances = [_distance(point.place, place) for point in self.points]
        near = min(distances) + math.log(ALIKE)
        ratios = []
        for point, distance in zip(self.points, distances, strict=True):
            there = self._plain(point.first, point.second)
            if distance <= near and there:
                ratios.append(point.seconds / there)
        right = statistics.median(ratios) if ratios else 1.0
        return self._plain(first, second) * right

    def basis(self, place: tuple[float, ...], alike: bool = True) -> str:
        """Whether it was measured, is near what was, or is far from it.

        Args:
            place: of what is asked for.
            alike: whether it is what was measured, if it is at the same place.
        """
        distance = min(_distance(point.place, place) for point in self.points)
        if alike and distance <= math.log(SAME):
            return "measured"
        return "scaled" if self._is_within(place) else "extrapolated"

    def _is_within(self, place: tuple[float, ...]) -> bool:
        """Whether each number of a place is in the range of the measured ones, or near it."""
        like = [point.place for point in self.points if len(point.place) == len(place)]
        for index, number in enumerate(place):
            there = [other[index] for other in like]
            if not there or not min(there) / NEAR <= number <= max(there) * NEAR:
                return False
        return True

    def share_of_second(self, first: float, second: float) -> float:
        """The share of the time that the second term takes."""
        plain = self._plain(first, second)
        return self.b * second / plain if plain else 0.0

    @cached_property
    def marks(self) -> set[int]:
        """Those of the points."""
        return {point.mark for point in self.points}


def _distance(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """How far two places are from each other: factors between their numbers, as logarithms."""
    if len(one) != len(other):
        return math.inf
    total = 0.0
    for a, b in zip(one, other, strict=True):
        if a != b:
            total += math.inf if min(a, b) <= 0 else abs(math.log(a / b))
    return total


def law_of(points: list[Point]) -> Law:
    """The law with the smallest relative errors, in squares."""
    a, b = _fitted(points)
    return Law(a, b, points)


def _fitted(points: Sequence[Point]) -> tuple[float, float]:
    """The two factors of the law.

    Where all points have the terms in nearly the same proportion, nothing tells one from the other.
    Then both terms get the same factor, so that each keeps its share. A factor that would be below
    0 is 0.
    """
    uu = uv = vv = u = v = 0.0
    for point in points:
        first = point.first / point.seconds
        second = point.second / point.seconds
        uu += first * first
        uv += first * second
        vv += second * second
        u += first
        v += second
    if _are_in_proportion(points):
        same = (u + v) / (uu + 2 * uv + vv)
        return same, same
    determinant = uu * vv - uv * uv
    a = (u * vv - v * uv) / determinant
    b = (v * uu - u * uv) / determinant
    if a < 0:
        return 0.0, v / vv
    if b < 0:
        return u / uu, 0.0
    return a, b


def _are_in_proportion(points: Sequence[Point]) -> bool:
    """Whether the two terms of all points are in nearly the same proportion."""
    shares = [point.first / (point.first + point.second) for point in points]
    others = [point.second / (point.first + point.second) for point in points]
    return max(shares) <= APART * min(shares) and max(others) <= APART * min(others)
