"""Sweeps: arguments, table, fit and pictures, on points whose times are known."""

import re
import threading
from dataclasses import replace
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest
import torch

import distlab
from distlab.measure.sweep import Point, Sweep
from distlab.measure.tables import Table
from distlab.measure.timing import Timing
from tests.refused import refused
from tests.unit.plotting.conftest import assert_tidy, headless, labels  # noqa: F401 - headless applies by itself
from tests.unit.project.test_sanitiser import sanitise

SIZES = [4**k for k in range(4, 12)]
SIZE = "size must be one of the sizes [256, 1024],"
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


def of_one(times):
    """A sweep of one function on 2 ranks, from its times by size."""
    return Sweep(tuple(Point("f", 2, Timing(m, (t,))) for m, t in times.items()), "all_reduce", "float32", 2)


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


def test_the_fit_finds_the_costs_that_made_the_times():
    """Each function's alpha and beta come back; times of two lines have an error."""
    for name, (alpha, beta) in COSTS.items():
        fit = made().fit(name, 2)
        assert (fit.alpha, fit.beta) == (pytest.approx(2 * alpha), pytest.approx(2 * beta))
    knee = of_one({m: 1e-3 + m * 1e-9 if m <= 4096 else 2e-3 + m * 5e-9 for m in SIZES})
    assert knee.fit().error > 0.01


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.fit(), "function must be one of 'gloo', 'ring', got None. Give the name that it was swept as."),
        (lambda s: s.fit("gloo", 3), "ranks must be one of 2, 4, got 3. Leave ranks out to mean the most."),
        (lambda s: s.timing(5, "gloo"), f"{SIZE} got 5. Measure it: distlab.sweep(cluster, fn, [size])."),
        (
            lambda s: replace(s, points=s.points[:1]).fit("gloo"),
            "num_bytes must be two different sizes or more, one for each time, got [256]. Measure more sizes.",
        ),
    ],
)
def test_what_was_not_measured_is_refused(call, message):
    """A function, number of ranks or size that was not swept is refused with those that were."""
    assert str(refused(call, made(sizes=[256, 1024]))) == message


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
    empty = of_one({})
    assert repr(empty).splitlines()[0] == "all_reduce: median time of the slowest rank, its quartiles as the spread"
    with pytest.raises(distlab.ArgumentError, match=r"^points must be one or more to be drawn, got \(\)\."):
        empty.plot()


@pytest.mark.parametrize("counts", [(2,), (2, 3, 4)])
def test_the_plot(counts):
    """A panel for each number of ranks says how many there are, and on how few cores; points lie on fitted lines."""
    figure = made(counts=counts, noise=1.2).plot(title="all-reduce")
    assert_tidy(figure)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == [f"all-reduce, {n} ranks" + (" on 2 cores" if n > 2 else "") for n in counts]
    for ax, n in zip(figure.axes, counts, strict=True):
        assert ax.get_xscale() == ax.get_yscale() == "log"
        lines = [line for line in ax.lines if line.get_linestyle() == "--"]
        for line, (alpha, beta) in zip(lines, COSTS.values(), strict=True):
            assert line.get_ydata() == pytest.approx([n * (alpha + beta * m) for m in line.get_xdata()])
        assert {*COSTS, f"gloo: α {2 * n} ms, 1/β {1000 / n:.3g} MB/s"} <= {*labels(ax)}
    assert plt.get_fignums() == []  # it is shown where it is the value of a cell, and not a second time


def test_the_plot_of_some():
    """Fits can be left out, and lines of a model or a limit added with their names."""
    figure = made(counts=[4]).plot(fit=False, theory={"memory copy": (SIZES, [m / 8e9 for m in SIZES])})
    (ax,) = figure.axes
    assert labels(ax) == ["gloo", "memory copy", "ring"]
    assert_tidy(figure)


def test_numbers_that_would_mislead_or_fill_the_figure_are_not_written():
    """Six fits have lines and no numbers; times that do not grow with the size have a latency and no bandwidth."""
    sweep = made(["gloo"], [2])
    points = [replace(point, function=f"ring {k}") for point in sweep.points for k in range(6)]
    figure = replace(sweep, points=tuple(points)).plot()
    assert labels(figure.axes[0]) == [f"ring {k}" for k in range(6)]
    assert_tidy(figure)
    assert labels(of_one({4: 1e-3, 8: 1e-3, 16: 1e-3}).plot().axes[0]) == ["f", "f: α 1 ms"]


# --- arguments


EXAMPLE = re.escape('Call sweep(cluster, {"gloo": dist.all_reduce}, [1 << 10, 1 << 20]).')
SIZES_RULE = "sizes must be a list of different sizes in bytes above 0, multiples of the"
COUNTS = "a list of different numbers of ranks from 1 to 4"
LARGER = "This cluster has 4 ranks: start a larger one, or leave ranks out."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *[
            ({"functions": wrong}, f"functions must be a mapping of names to functions, got {re.escape(repr(wrong))}. ")
            for wrong in ({}, [print], print, 5)
        ],
        ({"functions": {"a": 5}}, rf"functions\['a'\] must be a function of a tensor, got 5. {EXAMPLE}"),
        *[
            ({"sizes": sizes}, f"{SIZES_RULE} 4 of an element, got {re.escape(repr(sizes))}. {EXAMPLE}")
            for sizes in ([], 1024, [4, 4], [4, 1022], [0], [-8], [1e6], [[4]])
        ],
        ({"sizes": [4], "dtype": torch.float64}, rf"{SIZES_RULE} 8 of an element, got \[4\]. {EXAMPLE}"),
        *[
            ({"ranks": ranks}, rf"ranks must be {COUNTS}, got {re.escape(repr(ranks))}. {LARGER}")
            for ranks in ([2, 8], [2, 2], [0], 2, [])
        ],
        ({"dtype": "float32"}, "dtype must be a torch.dtype, got 'float32'. Give for example dtype=torch.float64."),
        ({"collective": "ring"}, "collective must be one of all_reduce, .*, send_recv, got 'ring'. Give the one whose"),
        ({"repeat": 0}, "repeat must be a whole number of 1 or more, got 0. Give for example repeat=5."),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(arguments, message):
    """Every rule has its message; the cluster here is a number of ranks only, so nothing can have been sent."""
    given = {"functions": {"gloo": print}, "sizes": [4], **arguments}
    with pytest.raises(distlab.ArgumentError, match=f"^{message}"):
        distlab.sweep(SimpleNamespace(n=4), **given)


def test_a_function_that_cannot_travel_is_named():
    """A function that holds a lock is refused with its name."""
    lock = threading.Lock()
    with pytest.raises(distlab.SerializationError, match=r"^functions\['locked'\] cannot be sent to the ranks"):
        distlab.sweep(SimpleNamespace(n=4), {"locked": lambda tensor: lock.acquire()}, [4])
