"""How long a product of matrices takes on a device whose multiprocessors are described.

Asked by distlab_predict/kernels.py and by a device's table; runs anywhere. The model:

- The result is cut into tiles. Each multiprocessor computes one tile at a time, so the last wave of
  tiles is partly empty. A library has tiles of several sizes, and takes the one that is quickest.
- A tile multiplies at its share of the device's rate, unless its rows and columns arrive later from
  the cache, which is so for small tiles. Neighbours may share what they read.
- Each wave begins with loads and ends with stores that nothing overlaps with: its `ramp`.
- Where there are few tiles, each is cut along k, and the parts are added.
- Meanwhile the matrices travel between the memory and the device, each once.

It was compared with rows that were published, in tests/unit/simulated/measured_products.py, without
those that are bound by memory and fit into the cache, as a benchmark that repeats a product reads
them from there. By how much the FLOP/s are off:

- DeepGEMM, float8 on H800, with its own tiles and ramp: 18 rows, median 2 %, worst 34 % (four
  groups of 256 rows).
- cuBLAS and CUTLASS on H100: 35 rows, median 5 %, worst 25 % (float8 is too slow here). H200: 5
  rows, median 2 %, worst 27 % (the best shape in float8, in a short run).
- B200 and B300: 26 rows, median 9 %, worst 18 %. GB300: 6 rows, 3 and 7 %. GB200: 16 and 20 %.
  MAMF's best shapes, in short runs, are all quicker than here.
- MI300X: 4 % too slow for the best shapes.
- A100: large products within 4 %, but squares of up to 4,096 take 1.2 to 2 times as long as here,
  and why is not known.
- Groups, by torch and others, without DeepGEMM's in the first rows: in bfloat16 6 rows, median 1 %,
  worst 12 % too slow; in float8 14 rows, median 13 %, worst 43 % too quick (a gradient of weights).
  Their tiles overlap with nothing, so that each wave's ramp is that of DeepGEMM's first kernels for
  tiles that are twice as large (`grouped_ramp`). In float8 they are slower yet (`grouped`): kernels
  have few tiles to choose from, and for a gradient of weights groups add up any number of rows.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from distlab.arguments import NO_UNIT, quantity, refuse, share_above_0, whole_number

PARTS = (1, 2, 4, 8)  # into which a tile may be cut along k
SHORTEST = 512  # of k in such a part
PARTIAL_BYTES = 4  # of a sum of a part: float32


@dataclass(frozen=True)
class Processors:
    """The multiprocessors of a device, and how a library multiplies matrices on them.

        Processors(128, {"bfloat16": 0.9}, ((128, 128), (128, 256)), 5e12, ramp=1e-6)

    Args:
        count: how many there are.
        reached: by number format, the share of the peak while all of them multiply, above 0 and up
            to 1; other formats reach all of it.
        tiles: rows and columns of a tile of the result, of which a library takes the quickest.
        cache_bandwidth: bytes a second from the cache to all multiprocessors.
        sharing: how many neighbours read the longer side of their tiles once for all of them.
        ramp: seconds of a wave in which it does not multiply.
        grouped: by number format, what groups of products in one kernel reach of what a single one
            does, above 0 and up to 1; in other formats all of it.
        grouped_ramp: seconds, as `ramp`, of such a kernel; the longer of both counts.

    Raises:
        ArgumentError: a value that breaks its rule.
    """

    count: int
    reached: Mapping[str, float] = field(hash=False)
    tiles: tuple[tuple[int, int], ...]
    cache_bandwidth: float
    sharing: int = 1
    ramp: float = 0.0
    grouped: Mapping[str, float] = field(default_factory=dict, hash=False)
    grouped_ramp: float = 0.0

    def __post_init__(self) -> None:
        whole_number("count", self.count, 1, advice="For example: count=132.")
        whole_number("sharing", self.sharing, 1, advice="For example: sharing=2.")
        quantity("cache_bandwidth", self.cache_bandwidth, NO_UNIT, "5e12")
        quantity("ramp", self.ramp, NO_UNIT, "1e-6", zero=True)
        quantity("grouped_ramp", self.grouped_ramp, NO_UNIT, "4e-6", zero=True)
        for dtype, reached in self.reached.items():
            share_above_0(f"reached[{dtype!r}]", reached)
        for dtype, share in self.grouped.items():
            share_above_0(f"grouped[{dtype!r}]", share)
        sizes = {len(tile) for tile in self.tiles}
        if sizes != {2}:
            advice = "For example: tiles=((128, 128), (128, 256))."
            refuse("tiles", "rows and columns of one tile or more", self.tiles, advice)


def bytes_of(dtype: str) -> float:
    """The bytes of a number, by torch's name of its format: 2 of "bfloat16", 0.5 of float4."""
    found = re.search(r"\d+", dtype)
    if found is None:
        return 1.0  # bool
    return int(found.group()) / 8


def matrix_bytes(groups: int, m: int, n: int, k: int, dtype: str) -> float:
    """What a product reads and writes.

    Args:
        groups, m, n, k, dtype: as of `seconds_of_product`. Results of less than 16 bits a number
            are written in bfloat16.
    """
    size = bytes_of(dtype)
    return (m * k + groups * n * k) * size + m * n * max(size, 2)


@functools.lru_cache(maxsize=4096)  # a model has few shapes, and many products of each
def seconds_of_product(
    processors: Processors,
    rate: float,
    bandwidth: float,
    shape: tuple[int, int, int, int],
    size: float,
    num_bytes: float,
    is_grouped: bool = False,
) -> float:
    """How long a product takes, without its launch.

    Args:
        processors: of the device.
        rate: FLOP/s that all of them together reach.
        bandwidth: bytes a second from and to the memory.
        shape: (groups, m, n, k): m rows of all groups together; the matrices of a group are
            (m / groups) x k and k x n.
        size: bytes of a number.
        num_bytes: of all matrices.
        is_grouped: whether a kernel for groups does it.
    """
    ramp = processors.ramp
    if is_grouped:
        ramp = max(ramp, processors.grouped_ramp)
    quickest = math.inf
    for tile in processors.tiles:
        for parts in PARTS:
            seconds = _waves(processors, rate, shape, size, tile, parts, ramp)
            partial = PARTIAL_BYTES * shape[1] * shape[2] * parts if parts > 1 else 0
            seconds = max(seconds, (num_bytes + partial) / bandwidth)
            quickest = min(quickest, seconds)
    return quickest + ramp


def _waves(
    processors: Processors,
    rate: float,
    shape: tuple[int, int, int, int],
    size: float,
    tile: tuple[int, int],
    parts: int,
    ramp: float,
) -> float:
    """How long all tiles take, each in so many parts; infinite where none is cut like that."""
    groups, m, n, k = shape
    rows, columns = tile
    tiles = groups * math.ceil(m / groups / rows) * math.ceil(n / columns) * parts
    depth = k / parts
    if parts > 1 and (depth < SHORTEST or tiles > 2 * processors.count):
        return math.inf
    waves = math.ceil(tiles / processors.count)
    multiplying = 2 * rows * columns * depth / (rate / processors.count)
    long_side = max(rows, columns) / processors.sharing
    loads = (min(rows, columns) + long_side) * depth * size
    loading = loads * min(tiles, processors.count) / processors.cache_bandwidth
    return waves * max(multiplying, loading) + (waves - 1) * ramp
