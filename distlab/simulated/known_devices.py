"""Devices that are known, by their data sheets and by measurements that were published.

Used by devices.py; runs anywhere. Peaks are without sparsity, and memory is what torch sees of it.

- NVIDIA's data sheets of A100 80GB SXM, H100 SXM, H200 SXM, DGX B200, DGX B300, GB200 NVL72 and
  GB300 NVL72, and AMD's of MI300X: peaks, memory and its bandwidth, multiprocessors.
- MAMF, the maximum achievable FLOP/s of products in torch: github.com/stas00/ml-engineering at
  744d01e, compute/accelerator/README.md. It is the best of many shapes, in short runs. In longer
  ones a device reaches its limit of power, and `reached` is what it sustains.
- torchao: github.com/pytorch/ao at 36027d82, torchao/testing/training/roofline_utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from distlab.simulated.products import Processors

GIB = 1 << 30
TERA = 1e12
# What an operator takes in two programs that launches bind, with all that is around it: 13 to 14 us
# beside B200s, 16 us beside an A100. tests/cluster/predict/launch_bound.py has them and their
# sources. Their processors are Intel's or AMD's, and so are those beside other GPUs.
HOST = 15e-6
# For torch's Linear a Grace needs 33 to 37 us, and a Xeon beside an H100 13.5 us: issue 2053 of
# github.com/NVIDIA/TransformerEngine.
HOST_GRACE = 2.5 * HOST
LAUNCH = 2e-6  # the time of a kernel that reads and writes one number on an H100: torchao


def _tiles(sides: tuple[int, ...], largest: int) -> tuple[tuple[int, int], ...]:
    """All tiles with such sides, up to so many numbers."""
    return tuple((m, n) for m, n in product(sides, sides) if m * n <= largest)


def _by_format(half: float, eight: float | None, **others: float) -> dict[str, float]:
    """A number for each number format: for those with 16 bits, with 8, and for others."""
    found = {"bfloat16": half, "float16": half}
    if eight is not None:
        found |= {"float8_e4m3fn": eight, "float8_e5m2": eight}
    return found | others


def _formats(half: float, eight: float | None, **others: float) -> dict[str, float]:
    """FLOP/s by number format, from TFLOP/s."""
    return {
        dtype: teraflops * TERA for dtype, teraflops in _by_format(half, eight, **others).items()
    }


def _reached(half: float, eight: float, four: float = 0.6) -> dict[str, float]:
    """Shares of the peak, by number format.

    float32, without tensor cores: 18.9 of 19.5 TFLOP/s on an A100 PCIe (issue 4 of
    github.com/Yinghan-Li/YHs_Sample), less where the power is needed; float64 is taken to be alike.
    float4: 5.4 of 9 PFLOP/s on a B200 (github.com/pytorch/ao, pull request 2427).
    """
    return _by_format(half, eight, float32=0.9, float64=0.9, float4_e2m1fn_x2=four)


# The sums of a tile stay in registers, or in tensor memory, which hold 128 x 256 of them for each
# multiprocessor. The sides are those in the names of cuBLAS's kernels.
_HOPPER_TILES = _tiles((64, 128, 192, 256), 128 * 256)
_AMPERE_TILES = _tiles((64, 128, 256), 128 * 256)
_AMD_TILES = _tiles((64, 128, 256), 256 * 256)
# Bytes a clock from the A100's cache: "NVIDIA A100 Tensor Core GPU Architecture", 2020, page 31.
# Nothing was published for those after it; the H100 has as much at its own clock here, the two dies
# of a B200 twice as much.
_CACHE = 5120
# A wave's ramp is an assumption: the time of a load from memory, 0.8 us, where the stores of a tile
# overlap, twice that where they do not. Blackwell's tensor memory holds the sums of two tiles, so
# that the next one begins before the last one is stored: half of it.
_LOAD = 0.8e-6

# Sustained on an A100: 258 TFLOP/s of 8,192 rows, columns and numbers, if these are random
# (thonking.ai, "Strangely, Matrix Multiplications on GPUs Run Faster ..."; 295 of zeros, which need
# less power), 268 to 273 by others (MAMF; triton-lang/triton, issue 743): the middle.
_A100 = Processors(108, _reached(0.86, 0.86), _AMPERE_TILES, _CACHE * 1.41e9, 1, 2 * _LOAD)

# Groups. The ramp of DeepGEMM's first kernels, 2.2 us for tiles of 128 x 128, for twice as many
# numbers; with it groups in bfloat16 on H100 and H200, and narrow ones in float8 on B200, take what
# was measured. On B200 torch's in float8 reach 1,926 to 2,326 TFLOP/s, where a single product
# reaches 2,421 (pytorch/pytorch, pull request 174699), and 1,595 for the gradient of weights
# (torchao's moe_training/README.md at 0b1bb117); on an H100 of 500 W 776 instead of 1,100 (torchao,
# pull request 2490). DeepGEMM's for the gradient of weights reach 813 to 873 on an H200 (its issue
# 107). Beside the ramp these are 0.60 to 1 of what the table has: 0.85 on the average of a step, in
# which every third product is a gradient of weights.
_GROUPED = {"float8_e4m3fn": 0.85}
_GROUPED_RAMP = 4.4e-6

# Sustained on an H100 in bfloat16: 700 to 716 TFLOP/s of products of 4,096 to 16,384 rows
# (github.com/vllm-project/vllm, pull request 23280), 794 by MAMF; in float8 1,403 by MAMF. One that
# is limited to 500 W reaches 575 and 1,100 (github.com/pytorch/FBGEMM, pull request 2546):
# efficiency=0.8.
_H100 = Processors(
    132,
    _reached(0.73, 0.70),
    _HOPPER_TILES,
    _CACHE * 1.755e9,
    2,
    _LOAD,
    _GROUPED,
    _GROUPED_RAMP,
)

# An H200 has the same limit of power for more memory. It sustains 603 to 624 TFLOP/s of groups
# (github.com/tile-ai/TileOPs, pull request 1567), and 705 of large ones (pull request 156203 of
# github.com/pytorch/pytorch): the middle. In float8 as much less than 1,453 by MAMF. An H200 NVL,
# which is limited to 600 W, sustains 600 and 1,142 (docs/examples/gemm_profiling of
# github.com/NVIDIA/TransformerEngine at 8f2e635).
_H200 = replace(_H100, reached=_reached(0.66, 0.66))

# Sustained on a B200 (1,000 W): 1,420 (torchao's pull request 2427) to 1,650 TFLOP/s
# (pyptx.dev/performance) in bfloat16. A B300 (1,100 W) sustains 1,463 to 1,503 of a model's layers,
# 2,815 in float8, and 5,090 in float4, whose peak alone is higher than a B200's (TransformerEngine,
# as above). MAMF has 1,745 and 3,433 of the one, and 1,769 and 3,353 of the other.
_B200 = Processors(
    148,
    _reached(0.70, 0.66),
    _HOPPER_TILES,
    2 * _CACHE * 1.85e9,
    2,
    _LOAD / 2,
    _GROUPED,
    _GROUPED_RAMP,
)
_B300 = replace(_B200, reached=_reached(0.70, 0.66, 0.38))

# A GB300 (1,400 W) reaches 1,717 to 1,812 TFLOP/s in bfloat16 (facebookexperimental/triton, pull
# request 740), and would in float8 be better by as much as a B300 is. A GB200 (1,200 W) was not
# found but for MAMF, 1,822 and 3,616: it is taken to lie between them as its power does.
_GB300 = replace(_B200, count=152, reached=_reached(0.74, 0.69, 0.40))
_GB200 = replace(_GB300, reached=_reached(0.67, 0.64))

# Sustained on an MI300X: 708 TFLOP/s in bfloat16 and 1,273 in float8 of the best shape, by AMD with
# random numbers in a warm device ("Measuring Max-Achievable FLOPs - Part 2"); torch had 668 in
# bfloat16, by MAMF. Its tiles are read from the Infinity Cache, at 17.2 TB/s.
_EIGHT_OF_AMD = 0.47
_MI300X_REACHED = _reached(0.52, _EIGHT_OF_AMD) | dict.fromkeys(
    ("float8_e4m3fnuz", "float8_e5m2fnuz"), _EIGHT_OF_AMD
)
_MI300X = Processors(304, _MI300X_REACHED, _AMD_TILES, 17.2e12, 1, 2 * _LOAD)

# The arguments of Device.
_A100_DEVICE: dict[str, Any] = {
    "flops": 312 * TERA,
    "memory_bandwidth": 2.039e12,
    "memory": 79 * GIB,
    "formats": _formats(312, None, float32=19.5, float64=19.5),
    "processors": _A100,
    "attention": "flash 2",
    "bandwidth_reached": 0.9,  # assumed, as no source was found; torchao measured 0.92 on an H100
    "launch": LAUNCH,
    "host": HOST,
}
_H100_DEVICE = {
    "flops": 989 * TERA,
    "memory_bandwidth": 3.35e12,
    "memory": 79 * GIB,
    "formats": _formats(989, 1979, float32=67, float64=67),
    "processors": _H100,
    "attention": "flash 2",
    "bandwidth_reached": 0.92,  # torchao, 2.2 of 2.4 TB/s
    "launch": LAUNCH,
    "host": HOST,
}
_H200_DEVICE = _H100_DEVICE | {
    "memory_bandwidth": 4.8e12,
    "memory": 139 * GIB,
    "processors": _H200,
}
# Torch sees 178.35 GiB of a B200: 44.59 GiB are 25 % (TorchTitan, pull request 1196), of 179.06 in
# nvidia-smi. There a GB200 has 185.0, a B300 268.6 and a GB300 277.5, of which torch is taken to
# see 1 GiB less. The driver of a B200 reports 7.7 TB/s: torchao.
_B200_DEVICE = {
    "flops": 2250 * TERA,
    "memory_bandwidth": 7.67e12,
    "memory": 178 * GIB,
    "formats": _formats(2250, 4500, float32=75, float64=37, float4_e2m1fn_x2=9000),
    "processors": _B200,
    "attention": "cudnn",
    "bandwidth_reached": 0.84,  # torchao, of a B300
    "launch": LAUNCH,
    "host": HOST,
}
_GB200_DEVICE = _B200_DEVICE | {
    "flops": 2500 * TERA,
    "memory_bandwidth": 8e12,
    "memory": 184 * GIB,
    "formats": _formats(2500, 5000, float32=80, float64=40, float4_e2m1fn_x2=10000),
    "processors": _GB200,
    "host": HOST_GRACE,
}
_B300_DEVICE = _B200_DEVICE | {
    "memory_bandwidth": 8e12,
    "memory": 267 * GIB,
    "formats": _formats(2250, 4500, float32=75, float64=1.2, float4_e2m1fn_x2=14000),
    "processors": _B300,
}
_GB300_DEVICE = _GB200_DEVICE | {
    "memory": 276 * GIB,
    "formats": _formats(2500, 5000, float32=80, float64=1.4, float4_e2m1fn_x2=15000),
    "processors": _GB300,
}
_OF_AMD = {"float8_e4m3fnuz": 2614 * TERA, "float8_e5m2fnuz": 2614 * TERA}
_MI300X_DEVICE = {
    "flops": 1307 * TERA,
    "memory_bandwidth": 5.3e12,
    "memory": 191 * GIB,
    "formats": _formats(1307, 2614, float32=163.4, float64=163.4) | _OF_AMD,
    "processors": _MI300X,
    "bandwidth_reached": 0.81,  # assumed: its cache is behind more links than NVIDIA's
    "launch": LAUNCH,
    "host": HOST,
}
DEVICES: Mapping[str, Mapping[str, Any]] = {
    "A100": _A100_DEVICE,
    "H100": _H100_DEVICE,
    "H200": _H200_DEVICE,
    "B200": _B200_DEVICE,
    "GB200": _GB200_DEVICE,
    "B300": _B300_DEVICE,
    "GB300": _GB300_DEVICE,
    "MI300X": _MI300X_DEVICE,
}
