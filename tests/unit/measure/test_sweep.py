"""Sweeps: arguments, table, fit and pictures, on points whose times are known."""

import re
from dataclasses import replace
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest

import distlab
from distlab.measure.sweep import Point, Sweep
from distlab.measure.tables import Table
from distlab.measure.timing import Timing
from tests.unit.plotting.conftest import assert_tidy, headless, labels  # noqa: F401 - headless applies by itself
from tests.unit.project.test_sanitiser import sanitise

SIZES = [4**k for k in range(4, 12)]
COSTS = {"gloo": (2e-3, 1e-9), "ring": (5e-4, 4e-9)}  # alpha in s, beta in s/byte


def made(functions=("gloo", "ring"), counts=(2, 4), sizes=SIZES, cores=2, noise=1.0, scale=1.0):
    """A sweep whose times are alpha + beta m, times the number of ranks; each repetition `noise` off the median."""
    points = []
    for n in counts:
        for size in sizes:
            for name in functions:
                alpha, beta = COSTS[name]
                t = scale * n * (alpha + beta * size)
                points.append(Point(name, n, Timing(size, (t / noise, t, t * noise))))
    return Sweep(tuple(points), "all_reduce", "float32", cores)


# --- what it holds


def test_a_timing_is_found():
    """By function and number of ranks: the most by default, and the only function."""
    sweep = made(counts=(4, 2), sizes=[1024, 256])
    assert sweep.timing(1024, "ring", 2).seconds == pytest.approx(2 * (5e-4 + 4e-9 * 1024))
    assert sweep.timing(1024, "ring") == sweep.timing(1024, "ring", 4)
    assert made(["gloo"]).timing(256, ranks=2).num_bytes == 256


def test_rows_have_the_factors_of_nccl_tests():
    """1 GB of float32 in 0.5 s on 4 ranks: 250 million elements, 2 GB/s, and a half more on the bus."""
    sweep = Sweep((Point("gloo", 4, Timing(10**9, (0.4, 0.5, 0.6))),), "all_reduce", "float32", 8)
    (row,) = sweep.table().rows
    cells = ["1 GB", "250000000", "float32", "gloo", "4", "500 ms", "2.00 GB/s", "3.00 GB/s", "450 ms to    550 ms"]
    assert [cell.strip() for cell in row] == cells
    assert replace(sweep, collective="broadcast").table().rows[0][7].strip() == "2.00 GB/s"


@pytest.mark.parametrize("asked", [(5, "gloo"), (256, "tree"), (256,), (256, "gloo", 3)])
def test_what_was_not_measured_is_refused(asked):
    """A function, number of ranks or size that was not swept is refused with those that were."""
    measured = r"Measured were the sizes \[256, 1024\] of 'gloo', 'ring' on \[2, 4\] ranks\.$"
    with pytest.raises(distlab.ArgumentError, match=rf"^size, function, ranks must be what was measured, .*{measured}"):
        made(sizes=[256, 1024]).timing(*asked)


# --- how it looks


def test_the_table_as_text():
    """nccl-tests' columns, aligned, and a note below where ranks exceed cores."""
    shown = repr(made(sizes=[256, 1 << 20], counts=[4], noise=2)).splitlines()
    assert shown == [
        "all_reduce: median time of the slowest rank, its quartiles as the spread",
        " size    count   type      function   ranks        time         algbw         busbw                   spread",
        "256 B       64   float32   gloo           4     8.00 ms     0.00 GB/s     0.00 GB/s     6.00 ms to   12.0 ms",
        "256 B       64   float32   ring           4     2.00 ms     0.00 GB/s     0.00 GB/s     1.50 ms to   3.01 ms",
        "1 MiB   262144   float32   gloo           4     12.2 ms     0.09 GB/s     0.13 GB/s     9.15 ms to   18.3 ms",
        "1 MiB   262144   float32   ring           4     18.8 ms     0.06 GB/s     0.08 GB/s     14.1 ms to   28.2 ms",
        "4 ranks on 2 cores take turns: their times include waiting for a core.",
    ]
    assert made(cores=1).table().notes == (shown[-1].replace("2 cores", "1 core"),)
    assert made(cores=4).table().notes == ()


def test_two_runs_compare_equal():
    """Tables that differ in the times only are the same to the comparison of notebooks, as text and as HTML."""
    slow, quick = (made(sizes=[256, 1 << 20], scale=scale) for scale in (2000, 1e-3))
    assert repr(quick) != repr(slow)
    assert sanitise(repr(quick)) == sanitise(repr(slow))
    assert sanitise(quick._repr_html_()) == sanitise(slow._repr_html_())


def test_a_table_as_html_is_escaped():
    """Titles, names and notes cannot break the page; numbers are aligned to the right."""
    table = Table("<t>", ("a", "b"), (("<x>", "  1"),), "lr", ("<n>",))
    shown = table._repr_html_()
    assert not re.search("<[txn]>", shown)
    assert 'text-align:right;white-space:nowrap">1</td>' in shown
    assert repr(replace(table, title="")).splitlines()[0] == "a       b"


def test_a_sweep_of_nothing_shows_itself():
    """What an interrupted sweep keeps may be empty: it still has a repr."""
    empty = Sweep((), "all_reduce", "float32", 2)
    assert repr(empty).splitlines()[0] == "all_reduce: median time of the slowest rank, its quartiles as the spread"


@pytest.mark.parametrize("counts", [(2,), (2, 3, 4)])
def test_the_plot(counts):
    """A panel for each number of ranks with its curves, and with lines of a model or a limit."""
    theory = {"memory copy": (SIZES, [m / 8e9 for m in SIZES])}
    figure = made(counts=counts, noise=1.2).plot(theory, "all-reduce")
    assert_tidy(figure)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == [f"all-reduce, {n} ranks" + (" on 2 cores" if n > 2 else "") for n in counts]
    for ax, n in zip(figure.axes, counts, strict=True):
        assert ax.get_xscale() == ax.get_yscale() == "log"
        assert labels(ax) == ["gloo", "memory copy", "ring"]
        assert list(ax.containers[0].lines[0].get_ydata()) == pytest.approx([n * (2e-3 + 1e-9 * m) for m in SIZES])
    assert plt.get_fignums() == []  # it is shown where it is the value of a cell, and not a second time


# --- arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"functions": [print]}, "functions must be a mapping of names to functions of a tensor, got"),
        ({"functions": {"a": 5}}, "functions must be a mapping of names to functions of a tensor, got {'a': 5}."),
        ({"sizes": [4, 1022]}, "sizes must be bytes above 0, multiples of the 4 of an element, got 1022. Call sweep("),
        ({"sizes": [0]}, "sizes must be bytes above 0, multiples of the 4 of an element, got 0."),
        ({"ranks": [2, 8]}, "ranks must be numbers of ranks from 1 to 4, got [2, 8]. Start a larger cluster for more."),
        ({"collective": "ring"}, "collective must be one of 'all_reduce', "),
        ({"repeat": 0}, "repeat must be a whole number of 1 or more, got 0. Give for example repeat=1."),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(arguments, message):
    """Every rule has its message; the cluster here is a number of ranks only, so nothing can have been sent."""
    given = {"functions": {"gloo": print}, "sizes": [4], **arguments}
    with pytest.raises(distlab.ArgumentError, match=f"^{re.escape(message)}"):
        distlab.sweep(SimpleNamespace(n=4), **given)
