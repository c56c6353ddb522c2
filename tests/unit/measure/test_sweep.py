"""Sweeps: arguments, table and pictures, on points whose times are known."""

import itertools
import re
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest

import distlab
from distlab.measure.sweep import Sweep
from distlab.measure.timing import Timing
from distlab.tables import Table
from tests.refused import refused
from tests.unit.plotting.conftest import assert_tidy, headless  # noqa: F401 - headless applies by itself

SIZES = [4**k for k in range(4, 12)]
COSTS = {"gloo": (2e-3, 1e-9), "ring": (5e-4, 4e-9)}  # alpha in s, beta in s/byte


def made(counts=(2, 4), sizes=SIZES, cores=2, noise=1.0):
    """A sweep with times alpha + beta m, times the ranks; repetitions differ by `noise`."""
    timings = {}
    for n, size, (name, (alpha, beta)) in itertools.product(counts, sizes, COSTS.items()):
        t = n * (alpha + beta * size)
        timings[n, size, name] = Timing(size, (t / noise, t, t * noise))
    return Sweep(timings, "all_reduce", cores)


def test_a_timing_is_found():
    """By size, function and number of ranks: the most by default; others are refused."""
    sweep = made(counts=(4, 2), sizes=[1024, 256])
    assert sweep.timing(1024, "ring", 2).seconds == pytest.approx(2 * (5e-4 + 4e-9 * 1024))
    assert sweep.timing(1024, "ring") == sweep.timing(1024, "ring", 4)
    rule = (
        "size, function, ranks must be one of those measured, got (5, 'gloo', 4). "
        "table() shows them."
    )
    assert str(refused(sweep.timing, 5, "gloo")) == rule


def test_the_table_as_text():
    """nccl-tests' columns, aligned, and a note where ranks exceed cores."""
    shown = repr(made(sizes=[256, 1 << 20], counts=[4], noise=2)).splitlines()
    assert shown == [
        "all_reduce: median time of the slowest rank; the spread is its quartiles",
        (
            " size    count   type      function   ranks        time         algbw         busbw"
            "                   spread"
        ),
        (
            "256 B       64   float32   gloo           4     8.00 ms     0.00 GB/s     0.00 GB/s"
            "     6.00 ms to   12.0 ms"
        ),
        (
            "256 B       64   float32   ring           4     2.00 ms     0.00 GB/s     0.00 GB/s"
            "     1.50 ms to   3.01 ms"
        ),
        (
            "1 MiB   262144   float32   gloo           4     12.2 ms     0.09 GB/s     0.13 GB/s"
            "     9.15 ms to   18.3 ms"
        ),
        (
            "1 MiB   262144   float32   ring           4     18.8 ms     0.06 GB/s     0.08 GB/s"
            "     14.1 ms to   28.2 ms"
        ),
        "4 ranks on 2 cores take turns: their times include waiting for a core.",
    ]
    assert made(cores=4).table().notes == ()
    assert repr(Sweep({}, "all_reduce", 2)).splitlines()[0] == shown[0]


def test_a_table_as_html_is_escaped():
    """Titles, names and notes cannot break the page; numbers are aligned to the right."""
    shown = Table("<t>", ("a", "b"), (("<x>", "  1"),), "lr", ("<n>",))._repr_html_()
    assert not re.search("<[txn]>", shown)
    assert 'text-align:right;white-space:nowrap">1</td>' in shown


def test_the_plot():
    """A panel for each number of ranks with its curves, and with lines of a model or a limit."""
    counts = (2, 3, 4)
    theory = {"memory copy": (SIZES, [m / 8e9 for m in SIZES])}
    figure = made(counts=counts, sizes=SIZES[::-1], noise=1.2).plot(theory, "all-reduce")
    assert_tidy(figure)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == [f"all-reduce, {n} ranks" + (" on 2 cores" if n > 2 else "") for n in counts]
    for ax, n in zip(figure.axes, counts, strict=True):
        assert sorted(text.get_text() for text in ax.texts) == ["gloo", "memory copy", "ring"]
        assert list(ax.containers[0].lines[0].get_ydata()) == pytest.approx(
            [n * (2e-3 + 1e-9 * m) for m in SIZES]
        )
    # it is shown where it is the value of a cell, and not a second time
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"functions": [print]},
            "functions must be a mapping of names to functions of a tensor, got",
        ),
        (
            {"sizes": [4, 1022]},
            "sizes must be bytes above 0, multiples of the 4 of an element, got 1022. Call sweep(",
        ),
        ({"sizes": [0]}, "sizes must be bytes above 0, multiples of the 4 of an element, got 0."),
        (
            {"ranks": [2, 8]},
            "ranks must be a whole number from 1 to 4, got 8. Start a larger cluster for more.",
        ),
        ({"collective": "ring"}, "collective must be one of 'all_reduce', "),
        (
            {"repeat": 0},
            "repeat must be a whole number of 1 or more, got 0. For example: repeat=1.",
        ),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(arguments, message):
    """Every rule has its message; the cluster is a number here, so nothing is sent."""
    given = {"functions": {"gloo": print}, "sizes": [4], **arguments}
    with pytest.raises(distlab.ArgumentError, match=f"^{re.escape(message)}"):
        distlab.sweep(SimpleNamespace(n=4), **given)
