"""How quick attention kernels are on known devices, as measured by their authors.

Used by devices.py, which gives a device its rates, and asked by distlab_predict/kernels.py; runs
anywhere. A rate counts what a kernel has to do: of causal attention half of all scores, and in the
backward pass five products of matrices where the forward pass has two.

All were measured with 16,384 tokens in a batch, and 2,048 numbers in all heads together.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

T = TypeVar("T")

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)  # of the sequences that were measured
TERA = 1e12


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

    Attributes:
        name: "flash 2".
        rates: of its kernels.
    """

    name: str
    rates: tuple[Rates, ...]

    def rate(self, backward: bool, causal: bool, numbers: int, keys: int) -> float:
        """FLOP/s of a kernel: of the one that was measured with the nearest head, at its length.

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


def _measured(
    backward: bool,
    causal: bool,
    numbers: int,
    teraflops: Iterable[float],
    lengths: Sequence[int] = LENGTHS,
) -> Rates:
    """Rates from a figure."""
    rates = tuple(tera * TERA for tera in teraflops)
    return Rates(backward, causal, numbers, tuple(zip(lengths, rates, strict=True)))


def _backward(forward: Sequence[float], both: Sequence[float]) -> list[float]:
    """The backward pass's rates from the forward pass's, and from those of both together.

    The backward pass has 2.5 times the operations of the forward pass.
    """
    found = []
    for one, together in zip(forward, both, strict=True):
        found.append(2.5 / (3.5 / together - 1 / one))
    return found


def _scaled(rates: Sequence[float], to: Sequence[float], of: Sequence[float]) -> list[float]:
    """Rates with a causal mask from those without, as the forward pass has them with and without.

    Where a figure has only one of the two.
    """
    return [rate * a / b for rate, a, b in zip(rates, to, of, strict=True)]


# FlashAttention-2, README at 0251105, figure for the A100: forward and backward pass together, so
# both have one rate. Heads of 128 without a mask, 512 and 1,024: hidden by the legend, read off.
_A100_CAUSAL = {64: (88, 119, 140, 156, 165, 171), 128: (99, 133, 155, 173, 182, 189)}
_A100_FULL = {64: (132, 153, 162, 171, 175, 176), 128: (151, 173, 187, 196, 201, 203)}

# H100: the same README, and FlashAttention-3 (arXiv 2407.08608), figures 5 (forward, by
# implementation) and 6 (backward, without a mask). Of the backward pass with one, FlashAttention-2
# is from the README's figure for both passes; the others are scaled as their forward pass is.
_H100_FORWARD = {
    "flash 2": {
        (True, 64): (180, 229, 262, 284, 295, 299),
        (True, 128): (191, 260, 298, 319, 333, 335),
        (True, 256): (208, 251, 278, 293, 297, 298),
        (False, 64): (282, 306, 318, 321, 322, 324),
        (False, 128): (309, 350, 362, 368, 370, 370),
        (False, 256): (275, 313, 321, 323, 324, 326),
    },
    "cudnn": {
        (True, 64): (225, 288, 334, 363, 379, 388),
        (True, 128): (315, 410, 484, 518, 529, 539),
        (True, 256): (308, 391, 450, 483, 497, 509),
        (False, 64): (335, 373, 395, 408, 412, 413),
        (False, 128): (497, 574, 617, 609, 600, 595),
        (False, 256): (470, 546, 580, 581, 580, 581),
    },
    "flash 3": {
        (True, 64): (197, 265, 371, 420, 460, 473),
        (True, 128): (292, 423, 521, 579, 602, 616),
        (True, 256): (286, 427, 537, 612, 628, 642),
        (False, 64): (333, 392, 460, 476, 496, 497),
        (False, 128): (467, 565, 625, 638, 646, 648),
        (False, 256): (482, 639, 707, 736, 746, 756),
    },
}
_H100_BACKWARD = {
    "flash 2": {64: (198, 238, 264, 279, 287, 291), 128: (214, 260, 291, 310, 318, 322)},
    "cudnn": {64: (266, 348, 395, 417, 432, 433), 128: (305, 408, 465, 499, 518, 516)},
    "flash 3": {64: (272, 363, 422, 453, 472, 474), 128: (316, 424, 501, 542, 559, 561)},
}
_H100_BOTH_CAUSAL = {64: (141, 192, 232, 257, 273, 284), 128: (163, 221, 265, 294, 308, 328)}

# B200, forward: github.com/Dao-AILab/flash-attention, pull request 2605 (heads of 64); heads of 128
# and the backward pass: pull request 2280, at 8,192.
_B200_LENGTHS = LENGTHS[1:]
_B200_FORWARD = {
    "cudnn": {
        True: (627, 826, 977, 1071, 1115),
        False: (980, 1072, 1118, 1147, 1157),
    },
    "flash 4": {
        True: (463, 706, 917, 1079, 1176),
        False: (784, 989, 1120, 1193, 1225),
    },
}
_B200_WIDE = {True: (1418, 1209), False: (1535, 1360)}  # forward and backward at 8,192
# FlashAttention-2 as torch has it: issue 1589 of the same repository, heads of 64 without a mask;
# github.com/meta-pytorch/tritonbench, pull request 171, heads of 128, forward.
_B200_FLASH_2 = (308, 359, 381, 307, 343, 379)
_B200_FLASH_2_BACKWARD = (243, 281, 302, 315, 329, 334)
_B200_FLASH_2_WIDE = (245, 315, 352, 354, 362, 331)


def _a100() -> Attention:
    rates = []
    for backward in (False, True):
        for numbers, teraflops in _A100_CAUSAL.items():
            rates.append(_measured(backward, True, numbers, teraflops))
        for numbers, teraflops in _A100_FULL.items():
            rates.append(_measured(backward, False, numbers, teraflops))
    return Attention("flash 2", tuple(rates))


def _h100(name: str) -> Attention:
    forward = _H100_FORWARD[name]
    rates = []
    for (causal, numbers), teraflops in forward.items():
        rates.append(_measured(False, causal, numbers, teraflops))
    for numbers, teraflops in _H100_BACKWARD[name].items():
        rates.append(_measured(True, False, numbers, teraflops))
        with_mask = forward[True, numbers]
        if name == "flash 2":
            causal_rates = _backward(with_mask, _H100_BOTH_CAUSAL[numbers])
        else:
            causal_rates = _scaled(teraflops, with_mask, forward[False, numbers])
        rates.append(_measured(True, True, numbers, causal_rates))
    return Attention(name, tuple(rates))


def _b200(name: str) -> Attention:
    """Rates of a new implementation.

    Heads of 128 grow with the length as heads of 64 do. cuDNN's backward pass, and its heads of
    128, are taken to be those of FlashAttention-4: no measurement of them was found.
    """
    rates = []
    for causal, teraflops in _B200_FORWARD[name].items():
        wide, wide_backward = _B200_WIDE[causal]
        at_8192 = teraflops[3]
        for numbers, factor in ((64, 1.0), (128, wide / at_8192)):
            forward = [rate * factor for rate in teraflops]
            backward = [rate * wide_backward / wide for rate in forward]
            rates.append(_measured(False, causal, numbers, forward, _B200_LENGTHS))
            rates.append(_measured(True, causal, numbers, backward, _B200_LENGTHS))
    return Attention(name, tuple(rates))


def _b200_flash_2() -> Attention:
    wide_backward = _scaled(_B200_FLASH_2_BACKWARD, _B200_FLASH_2_WIDE, _B200_FLASH_2)
    rates = (
        _measured(False, False, 64, _B200_FLASH_2),
        _measured(True, False, 64, _B200_FLASH_2_BACKWARD),
        _measured(False, False, 128, _B200_FLASH_2_WIDE),
        _measured(True, False, 128, wide_backward),
    )
    return Attention("flash 2", rates)


@functools.cache
def known_attention() -> Mapping[str, Mapping[str, Attention]]:
    """By device, the implementations that were measured; the first is the one that torch takes.

    torch's F.scaled_dot_product_attention calls FlashAttention-2 on A100 and H100. torch 2.5.0
    preferred cuDNN on the H100, and 2.5.1 no more. On Blackwell TorchTitan chooses cuDNN (its pull
    request 1196).
    """
    h100 = {name: _h100(name) for name in _H100_FORWARD}
    b200 = {name: _b200(name) for name in _B200_FORWARD}
    b200["flash 2"] = _b200_flash_2()
    blackwell = dict.fromkeys(("B200", "GB200", "B300", "GB300"), b200)
    return {"A100": {"flash 2": _a100()}, "H100": h100, "H200": h100, **blackwell}
