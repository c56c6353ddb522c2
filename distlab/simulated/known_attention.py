"""How quick attention kernels are on known devices: TFLOP/s as their authors measured them.

Used by devices.py; runs anywhere. The sources:

- FlashAttention-2, README at 0251105: forward and backward pass together.
- FlashAttention-3, arXiv 2407.08608, figure 5 (forward) and 6 (backward, without a mask).
- cuDNN: github.com/NVIDIA/cudnn-frontend, benchmark/attention_training/results/llama3.1 of
  2026-09-28: cuDNN 9.27 and FlashAttention-4, 64 heads of queries on 8 of keys, two sequences. Its
  FlashAttention-2 on Blackwell: benchmark/sdpa_benchmark_training/artifacts at bb37575.
- FlashAttention-4: github.com/Dao-AILab/flash-attention, pull request 2605 (heads of 64) and 2280
  (a B200).

A pass is "forward" or "backward", with ", causal" where there is a mask.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from distlab.simulated.attention import Attention, Rates

TERA = 1e12
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)  # of sequences
FIRST = LENGTHS[:6]
LAST = LENGTHS[2:]
Passes = Mapping[str, Sequence[float]]  # TFLOP/s by length


def _rates(numbers: int, lengths: Sequence[int], passes: Passes) -> list[Rates]:
    """The rates of kernels that were measured with such heads at such lengths."""
    found = []
    for name, teraflops in passes.items():
        backward = name.startswith("backward")
        causal = name.endswith("causal")
        rates = [tera * TERA for tera in teraflops]
        found.append(Rates(backward, causal, numbers, tuple(zip(lengths, rates, strict=True))))
    return found


def _backward(forward: Sequence[float], both: Sequence[float]) -> list[float]:
    """The backward pass's rates from the forward pass's, and from those of both together.

    The backward pass has 2.5 times the operations of the forward pass.
    """
    found = []
    for one, together in zip(forward, both, strict=True):
        found.append(2.5 / (3.5 / together - 1 / one))
    return found


def _scaled(rates: Sequence[float], to: Sequence[float], of: Sequence[float]) -> list[float]:
    """Rates that were not measured, which differ from others as `to` differs from `of`."""
    return [rate * a / b for rate, a, b in zip(rates, to, of, strict=True)]


def _times(passes: Passes, factors: Mapping[str, float]) -> Passes:
    """All rates of each pass times its factor."""
    found = {}
    for name, teraflops in passes.items():
        found[name] = [rate * factors[name] for rate in teraflops]
    return found


# Without a mask, heads of 128 at 512 and 1,024 are hidden by the figure's legend, and read off.
_A100_BOTH: dict[int, Passes] = {
    64: {"": (132, 153, 162, 171, 175, 176), "causal": (88, 119, 140, 156, 165, 171)},
    128: {"": (151, 173, 187, 196, 201, 203), "causal": (99, 133, 155, 173, 182, 189)},
}
# The forward pass is quicker than both together, by 10 to 20 % on an A100 PCIe, which is limited to
# 300 W instead of 400 W (cudnn-frontend); both together take as long there, within 4 %.
_A100_FORWARD = 1.15

_FLASH_2_ON_H100: dict[int, Passes] = {
    64: {
        "forward": (282, 306, 318, 321, 322, 324),
        "forward, causal": (180, 229, 262, 284, 295, 299),
        "backward": (198, 238, 264, 279, 287, 291),
    },
    128: {
        "forward": (309, 350, 362, 368, 370, 370),
        "forward, causal": (191, 260, 298, 319, 333, 335),
        "backward": (214, 260, 291, 310, 318, 322),
    },
    256: {
        "forward": (275, 313, 321, 323, 324, 326),
        "forward, causal": (208, 251, 278, 293, 297, 298),
    },
}
_CAUSAL_BOTH_ON_H100 = {
    64: (141, 192, 232, 257, 273, 284),
    128: (163, 221, 265, 294, 308, 328),
}
_FLASH_3: dict[int, Passes] = {
    64: {
        "forward": (333, 392, 460, 476, 496, 497),
        "forward, causal": (197, 265, 371, 420, 460, 473),
        "backward": (272, 363, 422, 453, 472, 474),
    },
    128: {
        "forward": (467, 565, 625, 638, 646, 648),
        "forward, causal": (292, 423, 521, 579, 602, 616),
        "backward": (316, 424, 501, 542, 559, 561),
    },
    256: {
        "forward": (482, 639, 707, 736, 746, 756),
        "forward, causal": (286, 427, 537, 612, 628, 642),
    },
}
# cuDNN of 2024, by FlashAttention-3's paper
_CUDNN_ON_H100: dict[int, Passes] = {
    64: {
        "forward": (335, 373, 395, 408, 412, 413),
        "forward, causal": (225, 288, 334, 363, 379, 388),
        "backward": (266, 348, 395, 417, 432, 433),
    },
    256: {
        "forward": (470, 546, 580, 581, 580, 581),
        "forward, causal": (308, 391, 450, 483, 497, 509),
    },
}
# Heads of 128 on an H200. At 32,768 they take so long that the limit of power slows them down.
_CUDNN_ON_H200: Passes = {
    "forward": (660, 687, 701, 640, 622),
    "forward, causal": (534, 616, 655, 633, 619),
    "backward": (519, 576, 562, 549, 543),
    "backward, causal": (402, 495, 526, 539, 528),
}
_FLASH_4_ON_H200: Passes = {
    "forward": (671, 734, 756, 686, 679),
    "forward, causal": (522, 619, 675, 702, 638),
    "backward": (562, 636, 656, 621, 618),
    "backward, causal": (446, 558, 629, 606, 610),
}

_CUDNN_ON_GB200: Passes = {
    "forward": (1402, 1560, 1702, 1662, 1558),
    "forward, causal": (1046, 1319, 1559, 1609, 1593),
    "backward": (1079, 1301, 1383, 1322, 1231),
    "backward, causal": (838, 1102, 1297, 1287, 1221),
}
_FLASH_4_ON_GB200: Passes = {
    "forward": (1387, 1522, 1695, 1636, 1510),
    "forward, causal": (1048, 1334, 1576, 1658, 1611),
    "backward": (1034, 1289, 1359, 1332, 1257),
    "backward, causal": (732, 1033, 1280, 1278, 1235),
}
_CUDNN_ON_GB300: Passes = {
    "forward": (1871, 2031, 2115, 2112, 2057),
    "forward, causal": (1420, 1738, 1886, 1986, 2040),
    "backward": (1177, 1407, 1527, 1494, 1386),
    "backward, causal": (922, 1218, 1420, 1474, 1484),
}
_FLASH_4_ON_GB300: Passes = {
    "forward": (1904, 2011, 2116, 2138, 2069),
    "forward, causal": (1276, 1657, 1888, 2001, 2018),
    "backward": (1108, 1400, 1555, 1563, 1484),
    "backward, causal": (775, 1131, 1409, 1522, 1565),
}
# A B200 beside a GB200, FlashAttention-4 at 8,192: 1,535, 1,418, 1,360 and 1,209 (pull request
# 2280). A B300 was not found: it is taken to be to a GB300 as its peak is.
_B200_TO_GB200 = {
    "forward": 0.905,
    "forward, causal": 0.9,
    "backward": 1.0,
    "backward, causal": 0.945,
}
_B300_TO_GB300 = dict.fromkeys(_B200_TO_GB200, 0.9)
# Forward, heads of 64, at 1,024 to 16,384: the exponential takes longer than the products on a
# B200, and half as long on a B300 (NVIDIA, "Inside NVIDIA Blackwell Ultra").
_OF_64: dict[tuple[str, str], Passes] = {
    ("B200", "cudnn"): {
        "forward": (846, 861, 890, 901, 906),
        "forward, causal": (501, 657, 770, 838, 872),
    },
    ("B200", "flash 4"): {
        "forward": (623, 758, 827, 868, 878),
        "forward, causal": (388, 565, 701, 802, 853),
    },
    ("GB300", "cudnn"): {
        "forward": (980, 1072, 1118, 1147, 1157),
        "forward, causal": (627, 826, 977, 1071, 1115),
    },
    ("GB300", "flash 4"): {
        "forward": (784, 989, 1120, 1193, 1225),
        "forward, causal": (463, 706, 917, 1079, 1176),
    },
}
# FlashAttention-2 as torch has it, at all lengths, heads of 128.
_FLASH_2_ON_BLACKWELL: dict[str, Passes] = {
    "B200": {
        "forward, causal": (75, 166, 242, 325, 373, 394, 404),
        "backward, causal": (83, 108, 186, 256, 299, 320, 331),
    },
    "GB200": {
        "forward, causal": (163, 255, 336, 387, 414, 430, 438),
        "backward, causal": (146, 207, 268, 311, 338, 352, 360),
    },
    "GB300": {
        "forward, causal": (59, 154, 271, 366, 411, 431, 440),
        "backward, causal": (76, 149, 230, 292, 330, 351, 362),
    },
}
# A B200, heads of 64 without a mask: issue 1589 of FlashAttention.
_FLASH_2_OF_64: Passes = {
    "forward": (308, 359, 381, 307, 343, 379),
    "backward": (243, 281, 302, 315, 329, 334),
}


def _a100() -> Attention:
    rates = []
    for numbers, by_mask in _A100_BOTH.items():
        for mask, both in by_mask.items():
            causal = f", {mask}" if mask else ""
            forward = [rate * _A100_FORWARD for rate in both]
            passes = {f"forward{causal}": forward, f"backward{causal}": _backward(forward, both)}
            rates += _rates(numbers, FIRST, passes)
    return Attention("flash 2", tuple(rates))


def _flash_2_on_h100() -> Attention:
    rates = []
    for numbers, passes in _FLASH_2_ON_H100.items():
        rates += _rates(numbers, FIRST, passes)
        if numbers in _CAUSAL_BOTH_ON_H100:
            causal = _backward(passes["forward, causal"], _CAUSAL_BOTH_ON_H100[numbers])
            rates += _rates(numbers, FIRST, {"backward, causal": causal})
    return Attention("flash 2", tuple(rates))


def _of_paper(by_numbers: Mapping[int, Passes]) -> list[Rates]:
    """FlashAttention-3's figures, which have no backward pass with a mask.

    It is taken to be to the one without as the forward pass with a mask is to that without.
    """
    rates = []
    for numbers, passes in by_numbers.items():
        rates += _rates(numbers, FIRST, passes)
        if "backward" in passes:
            causal = _scaled(passes["backward"], passes["forward, causal"], passes["forward"])
            rates += _rates(numbers, FIRST, {"backward, causal": causal})
    return rates


def _on_hopper() -> dict[str, Attention]:
    cudnn = [*_of_paper(_CUDNN_ON_H100), *_rates(128, LAST, _CUDNN_ON_H200)]
    return {
        "flash 2": _flash_2_on_h100(),
        "cudnn": Attention("cudnn", tuple(cudnn)),
        "flash 3": Attention("flash 3", tuple(_of_paper(_FLASH_3))),
        "flash 4": Attention("flash 4", tuple(_rates(128, LAST, _FLASH_4_ON_H200))),
    }


def _of_64(device: str, name: str) -> Passes:
    """Heads of 64, whose backward pass is taken to be slower by as much as with heads of 128."""
    forward = _OF_64[device, name]
    of_128 = _CUDNN_ON_GB300 if device == "GB300" else _CUDNN_ON_GB200
    found = dict(forward)
    for mask in ("", ", causal"):
        share = of_128[f"backward{mask}"][2] / of_128[f"forward{mask}"][2]
        found[f"backward{mask}"] = [rate * share for rate in forward[f"forward{mask}"]]
    return found


def _on_blackwell(device: str, cudnn: Passes, flash_4: Passes) -> dict[str, Attention]:
    """cuDNN, FlashAttention-4 and FlashAttention-2 on such a device."""
    kind = "GB300" if device.endswith("300") else "B200"
    found = {}
    for name, passes in (("cudnn", cudnn), ("flash 4", flash_4)):
        rates = [*_rates(64, FIRST[1:], _of_64(kind, name)), *_rates(128, LAST, passes)]
        found[name] = Attention(name, tuple(rates))
    measured = device if device in _FLASH_2_ON_BLACKWELL else kind
    flash_2 = [
        *_rates(64, FIRST, _FLASH_2_OF_64),
        *_rates(128, LENGTHS, _FLASH_2_ON_BLACKWELL[measured]),
    ]
    return {**found, "flash 2": Attention("flash 2", tuple(flash_2))}


@functools.cache
def known_attention() -> Mapping[str, Mapping[str, Attention]]:
    """By device, the implementations that were measured; the first is the one that torch takes.

    torch's F.scaled_dot_product_attention calls FlashAttention-2 on A100 and H100. torch 2.5.0
    preferred cuDNN on the H100, and 2.5.1 no more. On Blackwell TorchTitan chooses cuDNN (its pull
    request 1196).
    """
    hopper = _on_hopper()
    of_200, of_300 = _B200_TO_GB200, _B300_TO_GB300
    b200 = _times(_CUDNN_ON_GB200, of_200), _times(_FLASH_4_ON_GB200, of_200)
    b300 = _times(_CUDNN_ON_GB300, of_300), _times(_FLASH_4_ON_GB300, of_300)
    return {
        "A100": {"flash 2": _a100()},
        "H100": hopper,
        "H200": hopper,
        "B200": _on_blackwell("B200", *b200),
        "GB200": _on_blackwell("GB200", _CUDNN_ON_GB200, _FLASH_4_ON_GB200),
        "B300": _on_blackwell("B300", *b300),
        "GB300": _on_blackwell("GB300", _CUDNN_ON_GB300, _FLASH_4_ON_GB300),
    }
