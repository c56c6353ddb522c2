"""How quick attention kernels are on a device.

Known rates are in known_attention.py; asked by distlab_predict/kernels.py; runs anywhere. A rate
counts what a kernel has to do: of causal attention half of all scores, and in the backward pass
five products of matrices where the forward pass has two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

from distlab.arguments import refuse

T = TypeVar("T")


class Rates(NamedTuple):
    """What one kernel reaches.

    Attributes:
        backward: whether it is the backward pass.
        causal: whether each token looks only at those before it.
        numbers: of a head.
        by_length: (length, FLOP/s), by rising length of the sequences.
    """

    backward: bool
    causal: bool
    numbers: int
    by_length: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Attention:
    """An implementation of attention on a device.

        Attention("mine", (Rates(False, True, 128, ((4096, 1e14),)), Rates(True, True, 128, ...)))

    Attributes:
        name: "flash 2".
        rates: of its kernels, some of the forward and some of the backward pass.

    Raises:
        ArgumentError: no rates of one of the passes, or of a kernel at no length.
    """

    name: str
    rates: tuple[Rates, ...]

    def __post_init__(self) -> None:
        passes = {one.backward for one in self.rates if one.by_length}
        if passes != {False, True}:
            rule = "Rates of the forward and of the backward pass, each at one length or more"
            refuse("rates", rule, self.rates, "See distlab/simulated/known_attention.py.")

    def rate(self, backward: bool, causal: bool, numbers: int, keys: int) -> float:
        """FLOP/s of a kernel: of the one that was measured with the nearest head, at its length.

        Lengths beyond those that were measured have the rate of the nearest one.

        Args:
            backward, causal, numbers: as of `Rates`.
            keys: the length of the sequence that queries look at.
        """
        alike = [one for one in self.rates if one.backward == backward]
        alike = _preferred(alike, lambda one: one.causal == causal)
        nearest = min(alike, key=lambda one: abs(math.log(one.numbers / numbers)))
        return _between(nearest.by_length, keys)


def _preferred(choices: list[T], wanted: Callable[[T], bool]) -> list[T]:
    """Those that are wanted, or all if none is."""
    return [one for one in choices if wanted(one)] or choices


def _between(by_length: Sequence[tuple[int, float]], length: int) -> float:
    """The rate at a length, straight between its neighbours over the length's logarithm."""
    shortest, least = by_length[0]
    if length <= shortest:
        return least
    for (low, rate), (high, next_rate) in pairwise(by_length):
        if length <= high:
            share = math.log(length / low) / math.log(high / low)
            return rate + share * (next_rate - rate)
    return by_length[-1][1]
