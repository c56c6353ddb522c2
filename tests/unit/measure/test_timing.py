"""Measuring: bandwidths, quartiles, the cost model and formatters, against values by hand."""

import pytest

from distlab.measure import fit_alpha_beta, format_bandwidth, format_bytes, format_seconds, measure
from distlab.measure.timing import Timing
from tests.refused import refused


@pytest.mark.parametrize(
    ("collective", "world_size", "factor"),
    [
        ("all_reduce", 8, 1.75),
        *[(name, 4, 0.75) for name in ("all_gather", "reduce_scatter", "all_to_all")],
        *[(name, 4, 1.0) for name in ("broadcast", "reduce", "send_recv")],
    ],
)
def test_busbw_factors_are_those_of_nccl_tests(collective, world_size, factor):
    """algbw is bytes per second in GB of 1e9; busbw has nccl-tests' factors."""
    timing = Timing(4_000_000, (0.001,))
    assert timing.algbw == pytest.approx(4.0)
    assert timing.busbw(collective, world_size) == pytest.approx(4.0 * factor)


def test_a_timing_is_median_and_quartiles():
    """Of 1..5 ms the median is 3, the quartiles 2 and 4; of one repetition, all are that."""
    timing = Timing(3_000_000, (0.001, 0.002, 0.003, 0.004, 0.005))
    assert (timing.low, timing.seconds, timing.high) == pytest.approx((0.002, 0.003, 0.004))
    assert Timing(1, (0.5,)).low == Timing(1, (0.5,)).high == 0.5


def test_the_fit_finds_the_line_that_made_the_points():
    """Times from 50 µs and 2 GB/s are fitted over six decades; noise stays physical."""
    sizes = [4**k for k in range(1, 13)]
    fit = fit_alpha_beta(sizes, [50e-6 + size / 2e9 for size in sizes])
    assert (fit.alpha, fit.beta) == (pytest.approx(50e-6), pytest.approx(1 / 2e9))
    assert fit.seconds(2_000_000) == pytest.approx(1.05e-3)
    assert str(fit) == "alpha = 50.0 µs, 1/beta = 2.00 GB/s"
    assert repr(fit).startswith("Fit(alpha=5")  # a plain float, as a learner prints it
    assert fit_alpha_beta([100, 1000, 10000], [1e-6, 20e-6, 300e-6]).alpha == 0
    assert fit_alpha_beta([100, 1000], [2e-6, 1e-6]).beta > 0


FORMATTED = {  # three digits and a unit; seconds always in nine characters; bytes in units of 1024
    format_seconds: {
        1.234e-6: "  1.23 µs",
        999.9e-6: "  1.00 ms",
        0.1234: "   123 ms",
        0.9999: "  1.00 s ",
    },
    format_bytes: {
        **{
            0: "0 B",
            4: "4 B",
            1000: "1000 B",
            1024: "1 KiB",
            65536: "64 KiB",
            3 << 19: "1.5 MiB",
            10**9: "954 MiB",
            2**40: "1 TiB",
            1025 * 2**40: "1 PiB",
        },
        # none divides these
        **{4088: "4088 B", 12_345: "12.1 KiB", 999_999: "977 KiB", 26_234_881: "25 MiB"},
    },
    format_bandwidth: {1.5: "  1.50 GB/s"},
}


@pytest.mark.parametrize("form", FORMATTED)
def test_numbers_have_units(form):
    """As they stand in tables and figures."""
    assert {number: form(number) for number in FORMATTED[form]} == FORMATTED[form]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: measure(print, repeat=0), "repeat must be a whole number of 1 or more, got 0."),
        (
            lambda: fit_alpha_beta([4], [1.0]),
            "num_bytes must be two different sizes or more, one for each time, got [4].",
        ),
        (
            lambda: fit_alpha_beta([4, 8], [1.0]),
            "num_bytes must be two different sizes or more, one for each time, got",
        ),
        (
            lambda: fit_alpha_beta([4, 8], [0, 1]),
            "seconds must be above 0, got [0, 1]. Measure again.",
        ),
        (
            lambda: Timing(1, (1.0,)).busbw("barrier", 2),
            "collective must be one of 'all_reduce', 'all_gather', 'reduce",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(call, message):
    """With the rule, the value and what to call instead."""
    assert str(refused(call)).startswith(message)
