"""Measuring: bandwidths, quartiles, the cost model and the formatters against values computed by hand."""

import pytest

from distlab.errors import ArgumentError
from distlab.timing import (
    Timing,
    algbw,
    busbw,
    fit_alpha_beta,
    format_bandwidth,
    format_bytes,
    format_seconds,
    measure,
)


def test_algbw_is_bytes_over_seconds_in_gigabytes():
    """1 GB (1e9 bytes) in half a second is 2 GB/s."""
    assert algbw(1_000_000_000, 0.5) == 2.0


@pytest.mark.parametrize(
    ("collective", "world_size", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 4, 1.5),
        ("all_reduce", 8, 1.75),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 4, 0.75),
        ("broadcast", 4, 1.0),
        ("reduce", 4, 1.0),
        ("send_recv", 2, 1.0),
    ],
)
def test_busbw_factors_are_those_of_nccl_tests(collective, world_size, factor):
    """busbw is algbw times the factor of nccl-tests' PERFORMANCE.md."""
    assert busbw(collective, 4_000_000, 0.001, world_size) == pytest.approx(4.0 * factor)


def test_busbw_of_something_else_is_refused():
    """A collective without a factor is an error that lists those that have one."""
    with pytest.raises(ArgumentError) as caught:
        busbw("barrier", 1, 1.0, 2)
    assert str(caught.value) == (
        "collective must be one of all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, send_recv, "
        "got 'barrier'. Call algbw(num_bytes, seconds) for others."
    )


def test_a_timing_is_median_and_quartiles():
    """Of 1..5 ms the median is 3, the quartiles 2 and 4; one slow outlier moves none of them much."""
    timing = Timing(3_000_000, (0.001, 0.002, 0.003, 0.004, 0.005))
    assert (timing.low, timing.seconds, timing.high) == pytest.approx((0.002, 0.003, 0.004))
    assert timing.algbw == pytest.approx(1.0)
    assert timing.busbw("all_reduce", 4) == pytest.approx(1.5)
    assert Timing(1, (0.001, 0.002, 0.003, 0.004, 50.0)).seconds == 0.003
    assert Timing(1, (0.5,)).low == 0.5
    assert str(timing) == "3.00 ms (quartiles 2.00 ms to 4.00 ms)"


def test_the_fit_finds_the_line_that_made_the_points():
    """Times from alpha = 50 µs and 2 GB/s are fitted exactly, over six decades of size."""
    sizes = [4**k for k in range(1, 13)]
    fit = fit_alpha_beta(sizes, [50e-6 + size / 2e9 for size in sizes])
    assert fit.alpha == pytest.approx(50e-6)
    assert fit.beta == pytest.approx(1 / 2e9)
    assert fit.error < 1e-9
    assert fit.seconds(2_000_000) == pytest.approx(1.05e-3)
    assert str(fit) == "alpha = 50.0 µs, 1/beta = 2.00 GB/s"


def test_the_fit_stays_physical_with_noise():
    """Points that would give a negative latency or bandwidth give zero latency, or no dependence on size, instead."""
    fit = fit_alpha_beta([100, 1000, 10000], [1e-6, 20e-6, 300e-6])
    assert fit.alpha == 0
    assert fit.beta > 0
    flat = fit_alpha_beta([100, 1000], [2e-6, 1e-6])
    assert flat.alpha > 0
    assert flat.beta > 0


@pytest.mark.parametrize(("sizes", "seconds"), [([4], [1.0]), ([4, 4], [1.0, 1.0]), ([4, 8], [1.0]), ([4, 8], [0, 1])])
def test_a_fit_needs_two_sizes_and_positive_times(sizes, seconds):
    """Too few points or impossible times are refused."""
    with pytest.raises(ArgumentError):
        fit_alpha_beta(sizes, seconds)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.234e-6, "  1.23 µs"),
        (45.67e-6, "  45.7 µs"),
        (999.9e-6, "  1.00 ms"),
        (0.1234, "   123 ms"),
        (0.9999, "  1.00 s "),
        (61.0, "  61.0 s "),
        (2e-9, "  0.00 µs"),
    ],
)
def test_format_seconds(seconds, text):
    """Three digits, a unit, always nine characters."""
    assert format_seconds(seconds) == text
    assert len(text) == 9


def test_format_bandwidth():
    """Two decimals in GB/s."""
    assert format_bandwidth(1.5) == "  1.50 GB/s"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (4, "4 B"),
        (1000, "1000 B"),
        (1024, "1 KiB"),
        (65536, "64 KiB"),
        (4 << 20, "4 MiB"),
        (40_000, "40 kB"),
        (0, "0 B"),
    ],
)
def test_format_bytes(num_bytes, text):
    """The unit that divides the size."""
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"repeat": 0}, "repeat must be a whole number of 1 or more, got 0. Call measure(fn, tensor, repeat=1)."),
        ({"warmup": -1}, "warmup must be a whole number of 0 or more, got -1. Call measure(fn, tensor, warmup=1)."),
        ({"repeat": 2.5}, "repeat must be a whole number of 1 or more, got 2.5. Call measure(fn, tensor, repeat=1)."),
    ],
)
def test_measure_refuses_bad_counts(arguments, message):
    """Bad counts are refused before anything is measured."""
    with pytest.raises(ArgumentError) as caught:
        measure(print, **arguments)
    assert str(caught.value) == message
