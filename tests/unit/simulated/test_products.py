"""What products of matrices take by shape and format, beside what was measured."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from distlab.errors import ArgumentError
from distlab.simulated.devices import Device
from distlab.simulated.products import Processors, bytes_of, matrix_bytes
from tests.unit.simulated.measured_products import MEASURED, Rows

H100 = Device.named("H100")
GROUPS = "groups in float8"  # in the sources of those
CACHES = {"A100": 40e6, "H100": 50e6, "H200": 50e6, "H800": 50e6}  # bytes; Blackwell 126e6


def device_of(rows: Rows) -> Device:
    """The device of rows, with the tiles of their library."""
    if rows.device == "H100, 500 W":
        return replace(H100, memory_bandwidth="2.4 TB/s", efficiency=0.8)
    if rows.device != "H800":
        return Device.named(rows.device)
    assert H100.processors is not None
    # DeepGEMM's first kernels: tiles of 128 rows or fewer, and nothing overlaps with their ends
    tiles = tuple((m, n) for m in (64, 128) for n in (32, 64, 96, 112, 128))
    reached = {rows.dtype: 0.75}
    processors = replace(H100.processors, tiles=tiles, reached=reached, ramp=2.2e-6)
    processors = replace(processors, grouped={}, grouped_ramp=0.0)  # as quick as single products
    return replace(H100, processors=processors)


def errors(source: str, device: str) -> list[float]:
    """By how much predictions are off, of all rows of a source and a device, but GROUPS.

    Without those that are bound by memory and fit into the cache: a benchmark that repeats them
    reads nothing from memory.
    """
    found = []
    for rows in MEASURED:
        if source not in rows.source or device != rows.device or GROUPS in rows.source:
            continue
        found += errors_of(rows)
    return found


def errors_of(rows: Rows) -> list[float]:
    """The same of some rows."""
    found = []
    machine = device_of(rows)
    for groups, m, n, k, teraflops in rows.shapes:
        num_bytes = matrix_bytes(groups, m, n, k, rows.dtype)
        intensity = 2 * m * n * k / num_bytes
        is_bound_by_memory = intensity < machine.peak(rows.dtype) / machine.bandwidth
        if is_bound_by_memory and num_bytes < CACHES.get(rows.device[:4], 126e6):
            continue
        seconds = machine.product_seconds(m, n, k, rows.dtype, groups)
        found.append(2e-12 * m * n * k / seconds / teraflops - 1)
    return found


@pytest.mark.parametrize(
    ("source", "device", "rows", "median", "worst"),
    [
        ("DeepGEMM", "H800", 18, 0.03, 0.35),
        ("vllm", "H100", 17, 0.07, 0.15),
        ("", "H100, 500 W", 16, 0.06, 0.26),
        ("", "H200", 5, 0.04, 0.28),
        ("", "B200", 20, 0.09, 0.19),
        ("", "B300", 6, 0.09, 0.18),
        ("", "GB200", 2, 0.17, 0.21),
        ("", "GB300", 6, 0.04, 0.08),
        ("", "MI300X", 2, 0.05, 0.05),
        ("engineering", "A100", 1, 0.04, 0.04),
        ("thonking", "A100", 1, 0.04, 0.04),
        ("gpu_benchmark", "A100", 1, 0.04, 0.04),
    ],
)
def test_products_take_what_was_measured(source, device, rows, median, worst):
    off = [abs(error) for error in errors(source, device)]
    assert len(off) == rows
    assert statistics.median(off) < median
    assert max(off) < worst


def test_groups_in_float8_take_what_was_measured():
    """Gradients of weights are slower than here, and other groups quicker."""
    off = {}
    for rows in MEASURED:
        if GROUPS in rows.source:
            off.setdefault("gradient" in rows.source, []).extend(errors_of(rows))
    of_gradients, others = off[True], off[False]
    assert len(of_gradients) == 6
    assert 0.1 < statistics.median(of_gradients) < 0.2
    assert max(of_gradients) < 0.45
    assert len(others) == 8
    assert statistics.median(abs(error) for error in others) < 0.11
    assert max(abs(error) for error in others) < 0.14


def test_groups_in_bfloat16_take_what_was_measured_on_hopper():
    off = []
    for rows in MEASURED:
        if rows.dtype == "bfloat16" and any(groups > 1 for groups, *_ in rows.shapes):
            off += [abs(error) for error in errors_of(rows)]
    assert len(off) == 6
    assert statistics.median(off) < 0.02
    assert max(off) < 0.13


def test_groups_wait_for_the_ends_of_their_tiles_and_are_slower_in_float8():
    """The less each adds up, the more; a batch does not."""
    for dtype, share in {"float8_e4m3fn": 0.85, "bfloat16": 1}.items():
        sizes = 65536, 8192
        for k, most in {512: 0.85, 65536: 1.0}.items():
            together = H100.product_seconds(*sizes, k, dtype, num_bytes=0)
            groups = H100.product_seconds(*sizes, k, dtype, 16, num_bytes=0)
            batch = H100.product_seconds(*sizes, k, dtype, 16, num_bytes=0, batched=True)
            assert batch == pytest.approx(together, rel=0.01)
            assert together / groups < most * share
        assert together / groups == pytest.approx(share, rel=0.02)


def test_many_rows_of_each_group_are_as_good_as_one_product():
    """16 groups of 4,096 rows take as long as 65,536 rows; 16 of 100 need 16 of 128."""
    together = H100.product_seconds(65536, 8192, 65536, "bfloat16")
    assert H100.product_seconds(65536, 8192, 65536, "bfloat16", 16) == pytest.approx(
        together, rel=0.01
    )
    few = H100.product_seconds(1600, 8192, 4096, "bfloat16", 16)
    assert few > 1.1 * H100.product_seconds(1600, 8192, 4096, "bfloat16")


def test_a_wave_that_is_nearly_empty_costs_as_much_as_a_full_one():
    """132 tiles of 128 x 256 are one wave on an H100, one row of tiles more is two."""
    full = H100.product_seconds(12 * 128, 11 * 256, 65536, "bfloat16", num_bytes=0)
    more = H100.product_seconds(13 * 128, 11 * 256, 65536, "bfloat16", num_bytes=0)
    assert more / full > 1.15  # it is 1.08 times as much work
    assert 2 * 12 * 128 * 11 * 256 * 65536 / full == pytest.approx(989e12 * 0.73, rel=0.01)


def test_skinny_products_reach_less():
    """A rank of tensor parallelism has an eighth of the columns, or of what is summed."""
    whole = H100.product_seconds(16384, 8192, 8192, "bfloat16") / 8
    assert H100.product_seconds(16384, 1024, 8192, "bfloat16") > whole
    assert H100.product_seconds(16384, 8192, 1024, "bfloat16") > 1.05 * whole


def test_a_few_rows_take_what_their_bytes_take():
    seconds = H100.product_seconds(16, 28672, 8192, "bfloat16")
    reading = matrix_bytes(1, 16, 28672, 8192, "bfloat16") / H100.bandwidth
    assert reading < seconds < reading + 5e-6


def test_sizes_of_number_formats():
    assert bytes_of("float8_e4m3fn") == 1
    assert bytes_of("float4_e2m1fn_x2") == 0.5
    assert bytes_of("bool") == 1
    assert matrix_bytes(2, 10, 3, 4, "float32") == (40 + 24 + 30) * 4
    assert matrix_bytes(1, 10, 3, 4, "float8_e5m2") == 40 + 12 + 60


BAD = {
    "count must be a whole number of 1 or more, got 0": {"count": 0},
    "sharing must be a whole number of 1 or more, got 1.5": {"sharing": 1.5},
    "cache_bandwidth must be above 0": {"cache_bandwidth": 0},
    "ramp must be 0 or more": {"ramp": -1e-6},
    "grouped_ramp must be 0 or more": {"grouped_ramp": -1e-6},
    "reached['bfloat16'] must be above 0 and up to 1, got 70.0": {"reached": {"bfloat16": 70}},
    "grouped['bfloat16'] must be above 0 and up to 1, got 2": {"grouped": {"bfloat16": 2}},
    "tiles must be rows and columns of one tile or more, got ()": {"tiles": ()},
    "tiles must be rows and columns of one tile or more, got ((128,),)": {"tiles": ((128,),)},
}


@pytest.mark.parametrize("message", BAD)
def test_multiprocessors_that_cannot_be_are_refused(message):
    good = {"count": 128, "reached": {}, "tiles": ((128, 128),), "cache_bandwidth": 5e12}
    with pytest.raises(ArgumentError) as caught:
        Processors(**{**good, **BAD[message]})
    assert str(caught.value).startswith(message)
