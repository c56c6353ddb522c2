"""Sweeps: arguments, table, fit, files and pictures, on points whose times are known; progress of long work."""

import csv
import functools
import io
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pandas
import pytest
import torch
import torch.distributed as dist

import distlab
from distlab import frontend
from distlab import progress as progress_room
from distlab.measured import FIELDS, Point, Sweep
from distlab.tables import Table
from distlab.timing import Timing

from .test_plotting import assert_tidy, headless, visible_texts  # noqa: F401 - headless applies by itself
from .test_sanitiser import sanitise

SIZES = [4**k for k in range(4, 12)]
COSTS = {"gloo": (2e-3, 1e-9), "ring": (5e-4, 4e-9)}  # alpha in s, beta in s/byte


def made(functions=("gloo", "ring"), counts=(2, 4), sizes=SIZES, cores=2, noise=1.0):
    """A sweep whose times are alpha + beta m, times the number of ranks; each repetition `noise` off the median."""
    points = []
    for n in counts:
        for size in sizes:
            for name in functions:
                alpha, beta = COSTS[name]
                t = n * (alpha + beta * size)
                points.append(Point(name, n, Timing(size, (t / noise, t, t * noise))))
    return Sweep(tuple(points), "all_reduce", "float32", 4, cores)


# --- what it holds


def test_a_sweep_knows_what_was_swept():
    """Functions and numbers of ranks in their order, sizes ascending."""
    sweep = made(counts=(4, 2), sizes=[1024, 256])
    assert (sweep.functions, sweep.ranks, sweep.sizes) == (["gloo", "ring"], [4, 2], [256, 1024])
    assert sweep.timing(1024, "ring", 2).seconds == pytest.approx(2 * (5e-4 + 4e-9 * 1024))
    assert sweep.timing(1024, "ring") == sweep.timing(1024, "ring", 4)
    assert made(["gloo"]).timing(256, ranks=2).num_bytes == 256


def test_rows_have_the_factors_of_nccl_tests():
    """1 GB of float32 in 0.5 s on 4 ranks: 250 million elements, 2 GB/s, and a half more on the bus."""
    sweep = Sweep((Point("gloo", 4, Timing(10**9, (0.4, 0.5, 0.6))),), "all_reduce", "float32", 4, 8)
    (row,) = sweep.rows()
    assert tuple(row) == FIELDS
    assert (row["size"], row["count"], row["time"], row["algbw"], row["busbw"]) == (10**9, 250_000_000, 0.5, 2.0, 3.0)
    assert (row["low"], row["high"], row["repetitions"]) == (pytest.approx(0.45), pytest.approx(0.55), 3)
    assert replace(sweep, collective="broadcast").rows()[0]["busbw"] == 2.0


def test_the_fit_finds_the_costs_that_made_the_times():
    """Each function's alpha and beta come back, and each side of a knee can be fitted by itself."""
    sweep = made()
    for name, (alpha, beta) in COSTS.items():
        fit = sweep.fit(name, 2)
        assert (fit.alpha, fit.beta) == (pytest.approx(2 * alpha), pytest.approx(2 * beta))
        assert fit.error < 1e-9
    times = {m: 1e-3 + m * 1e-9 if m <= 4096 else 2e-3 + m * 5e-9 for m in SIZES}
    knee = Sweep(tuple(Point("f", 2, Timing(m, (t,))) for m, t in times.items()), "reduce", "uint8", 1, 2)
    assert knee.fit().error > 0.01
    for limits, beta in (({"largest": 4096}, 1e-9), ({"smallest": 4097}, 5e-9)):
        assert knee.fit(**limits).beta == pytest.approx(beta)
        assert knee.fit(**limits).error < 1e-9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.fit(), "function must be one of 'gloo', 'ring', got None. Give the name that it was swept as."),
        (lambda s: s.fit("gloo", 3), "ranks must be one of 2, 4, got 3. Leave ranks out to mean the most."),
        (lambda s: s.plot(3), "ranks must be one of 2, 4, got 3. Leave ranks out to mean the most."),
        (
            lambda s: s.timing(5, "gloo"),
            "size must be one of the sizes [256, 1024], got 5. Measure it: distlab.sweep(cluster, fn, [size]).",
        ),
        (
            lambda s: s.fit("gloo", smallest=1000),
            "num_bytes must be two different sizes or more, one for each time, got [1024]. Measure more sizes.",
        ),
    ],
)
def test_what_was_not_measured_is_refused(call, message):
    """A function, number of ranks or size that was not swept is refused with those that were."""
    with pytest.raises(distlab.ArgumentError, match=f"^{re.escape(message)}$"):
        call(made(sizes=[256, 1024]))


# --- how it looks


def test_the_table_as_text():
    """nccl-tests' columns, aligned; the number of ranks only where there are several; the note below."""
    assert repr(made(sizes=[256, 1 << 20], counts=[4], noise=2)) == (
        "all_reduce on 4 ranks: median time of the slowest rank, its quartiles as the spread\n"
        " size    count   type      function        time         algbw         busbw                   spread\n"
        "256 B       64   float32   gloo         8.00 ms     0.00 GB/s     0.00 GB/s     6.00 ms to   12.0 ms\n"
        "256 B       64   float32   ring         2.00 ms     0.00 GB/s     0.00 GB/s     1.50 ms to   3.01 ms\n"
        "1 MiB   262144   float32   gloo         12.2 ms     0.09 GB/s     0.13 GB/s     9.15 ms to   18.3 ms\n"
        "1 MiB   262144   float32   ring         18.8 ms     0.06 GB/s     0.08 GB/s     14.1 ms to   28.2 ms\n"
        "4 ranks on 2 cores take turns: their times include waiting for a core."
    )
    heads, *rows = [line.split() for line in repr(made(sizes=[256])).splitlines()[1:-1]]
    assert heads[4] == "ranks"
    assert [row[5] for row in rows] == ["2", "2", "4", "4"]


def test_the_note_is_there_only_where_ranks_exceed_cores():
    """It says so for 4 ranks on 2 cores and on 1, not on 4; a notebook that is compared elsewhere leaves it out."""
    assert made(cores=2).note == "4 ranks on 2 cores take turns: their times include waiting for a core."
    assert made(cores=1).note == "4 ranks on 1 core take turns: their times include waiting for a core."
    assert made(cores=4).note == ""
    assert made(cores=4).table().notes == made(cores=2).table(note=False).notes == ()


def test_two_runs_compare_equal():
    """Tables that differ in the times only are the same to the comparison of notebooks, as text and as HTML."""
    slow = made(sizes=[256, 1 << 20])
    for factor in (1e-3, 0.07, 30, 2000):
        points = [Timing(p.timing.num_bytes, tuple(t * factor for t in p.timing.repetitions)) for p in slow.points]
        other = replace(slow, points=tuple(replace(p, timing=t) for p, t in zip(slow.points, points, strict=True)))
        assert repr(other) != repr(slow)
        assert sanitise(repr(other)) == sanitise(repr(slow))
        assert sanitise(other._repr_html_()) == sanitise(slow._repr_html_())


def test_a_table_as_html_is_escaped():
    """Titles, names and notes cannot break the page; numbers are aligned to the right."""
    table = Table("<t>", ("a", "b"), (("<x>", "  1"),), "lr", ("<n>",))
    shown = table._repr_html_()
    assert not re.search("<[txn]>", shown)
    assert 'text-align:right;white-space:nowrap">1</td>' in shown


def test_a_sweep_of_nothing_shows_itself():
    """What an interrupted sweep keeps may be empty: it still has a repr, rows, and a file of heads."""
    empty = Sweep((), "all_reduce", "float32", 4, 2)
    assert repr(empty).splitlines()[0] == "all_reduce: median time of the slowest rank, its quartiles as the spread"
    assert (empty.rows(), empty.note) == ([], "")
    with pytest.raises(distlab.ArgumentError, match=r"^points must be one or more to be drawn, got \(\)\."):
        empty.plot()


@pytest.mark.parametrize("functions", [["gloo"], ["gloo", "ring"]])
@pytest.mark.parametrize("counts", [(2,), (2, 4), (2, 3, 4)])
def test_the_plot(functions, counts):
    """A panel for each number of ranks says how many there are, and on how few cores; points lie on fitted lines."""
    figure = made(functions, counts, noise=1.2).plot(title="all-reduce")
    assert_tidy(figure)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == [f"all-reduce, {n} ranks" + (" on 2 cores" if n > 2 else "") for n in counts]
    for ax, n in zip(figure.axes, counts, strict=True):
        assert ax.get_xscale() == ax.get_yscale() == "log"
        lines = [line for line in ax.lines if line.get_linestyle() == "--"]
        assert len(lines) == len(functions)
        for line, name in zip(lines, functions, strict=True):
            alpha, beta = COSTS[name]
            assert line.get_ydata() == pytest.approx([n * (alpha + beta * m) for m in line.get_xdata()])
        texts = [text.get_text() for text in ax.texts]
        assert next(text for text in texts if "α" in text).startswith("gloo: α ")
        assert set(functions) <= set(texts)
    assert figure.get_figwidth() <= 7.5


def test_the_plot_of_some():
    """One number of ranks can be chosen, fits left out, and lines of a model or a limit added with their names."""
    figure = made().plot(4, fit=False, theory={"memory copy": (SIZES, [m / 8e9 for m in SIZES])})
    (ax,) = figure.axes
    assert sorted(text.get_text() for text in ax.texts) == ["gloo", "memory copy", "ring"]
    assert_tidy(figure)


def test_many_fits_are_not_written():
    """Six functions have six lines and labels, and no numbers that would fill the figure."""
    sweep = made(["gloo"], [2])
    points = [replace(p, function=f"ring {k}") for p in sweep.points for k in range(6)]
    figure = replace(sweep, points=tuple(points)).plot()
    assert sorted(text.get_text() for text in figure.axes[0].texts) == [f"ring {k}" for k in range(6)]
    assert_tidy(figure)


def test_a_bandwidth_that_was_not_measured_is_not_written():
    """Times that do not grow with the size give a latency only."""
    sweep = Sweep(tuple(Point("f", 2, Timing(m, (1e-3,))) for m in (4, 8, 16)), "reduce", "float32", 4, 2)
    assert "f: α 1 ms" in [text.get_text() for text in sweep.plot().axes[0].texts]


def test_the_plot_leaves_no_figure_with_pyplot():
    """It is shown where it is the value of a cell, and not a second time."""
    made().plot()
    assert plt.get_fignums() == []


# --- files


def test_csv(tmp_path):
    """A CSV file has every row, with full precision."""
    sweep = made()
    path = sweep.to_csv(tmp_path / "sweep.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(sweep.points)
    for row, want in zip(rows, sweep.rows(), strict=True):
        assert {key: type(want[key])(value) for key, value in row.items()} == want


def test_dataframe(monkeypatch):
    """With pandas the rows as a DataFrame, without it an error that says what else there is."""
    sweep = made()
    assert sweep.to_dataframe().equals(pandas.DataFrame(sweep.rows()))
    monkeypatch.setitem(sys.modules, "pandas", None)
    message = (
        "to_dataframe needs pandas, which is not installed. Call rows() or to_csv(path) instead, or pip install pandas."
    )
    with pytest.raises(ModuleNotFoundError, match=f"^{re.escape(message)}$"):
        sweep.to_dataframe()


# --- arguments


def takes_group(tensor, group=None):
    """A function that can run on some of the ranks."""


EXAMPLE = re.escape('Call sweep(cluster, {"gloo": dist.all_reduce}, [1 << 10, 1 << 20]).')
SIZE = "must be a whole number of bytes above 0, and a multiple of the 4 of an element, got"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"functions": {}}, f"functions must be one function or more, got {{}}. {EXAMPLE}"),
        ({"functions": []}, f"functions must be one function or more, got {{}}. {EXAMPLE}"),
        ({"functions": 5}, f"functions must be a mapping of names to functions, got 5. {EXAMPLE}"),
        ({"functions": {"a": 5}}, rf"functions\['a'\] must be a function of a tensor, got 5. {EXAMPLE}"),
        ({"functions": {1: print}}, f"functions must be named by texts, got 1. {EXAMPLE}"),
        (
            {"functions": [lambda t: t]},
            f"functions must be functions with different names of their own, got .*lambda.*Name them. {EXAMPLE}",
        ),
        (
            {"functions": [takes_group, takes_group]},
            f"functions must be functions with different names of their own, got .*Name them. {EXAMPLE}",
        ),
        ({"sizes": []}, rf"sizes must be a list of different sizes in bytes, got \[\]. {EXAMPLE}"),
        ({"sizes": 1024}, f"sizes must be a list of different sizes in bytes, got 1024. {EXAMPLE}"),
        ({"sizes": [4, 4]}, rf"sizes must be a list of different sizes in bytes, got \[4, 4\]. {EXAMPLE}"),
        ({"sizes": [4, 1022]}, rf"sizes\[1\] {SIZE} 1022. Give for example 1024."),
        ({"sizes": [0]}, rf"sizes\[0\] {SIZE} 0. Give for example 4."),
        ({"sizes": [-8]}, rf"sizes\[0\] {SIZE} -8. Give for example 4."),
        ({"sizes": [1e6]}, rf"sizes\[0\] {SIZE} 1000000.0. Give for example 1000000."),
        ({"sizes": [[4]]}, rf"sizes\[0\] {SIZE} \[4\]. Give for example 4."),
        ({"sizes": [4], "dtype": torch.float64}, r"sizes\[0\] must be .* of the 8 of an element, got 4.*example 8."),
        (
            {"ranks": [2, 8]},
            r"ranks must be a list of different numbers of ranks from 1 to 4, got \[2, 8\]. "
            "This cluster has 4 ranks: start a larger one, or leave ranks out.",
        ),
        ({"ranks": [2, 2]}, r"ranks must be .* got \[2, 2\]."),
        ({"ranks": [0]}, r"ranks must be .* got \[0\]."),
        ({"ranks": 2}, "ranks must be .* got 2."),
        ({"ranks": []}, r"ranks must be .* got \[\]."),
        (
            {"ranks": [2, 4], "functions": {"ring": lambda tensor: tensor}},
            r"functions\['ring'\] must be a function that takes group=, to run on 2 ranks of this cluster, got .*"
            r"Write def fn\(tensor, group=None\), or sweep it on a cluster of 2 ranks.",
        ),
        ({"dtype": "float32"}, "dtype must be a torch.dtype, got 'float32'. Give for example dtype=torch.float64."),
        (
            {"collective": "ring"},
            "collective must be one of all_reduce, .*, send_recv, got 'ring'. "
            'Give the one whose data your functions move, or "broadcast" for a factor of 1.',
        ),
        ({"repeat": 0}, "repeat must be a whole number of 1 or more, got 0. Give for example repeat=5."),
        ({"warmup": 0}, "warmup must be a whole number of 1 or more, got 0. Give for example warmup=5."),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(arguments, message):
    """Every rule has its message; the cluster here is a number of ranks only, so nothing can have been sent."""
    given = {"functions": {"gloo": takes_group}, "sizes": [4], **arguments}
    functions, sizes = given.pop("functions"), given.pop("sizes")
    with pytest.raises(distlab.ArgumentError, match=f"^{message}"):
        distlab.sweep(SimpleNamespace(n=4), functions, sizes, **given)


def test_functions_that_take_a_group_are_recognised():
    """torch's collectives, functions with **kwargs, and partials take a group."""
    from distlab.sweeps import check_functions, check_group

    functions = {
        "torch": dist.all_reduce,
        "keywords": lambda tensor, **kwargs: None,
        "partial": functools.partial(dist.all_reduce, op=dist.ReduceOp.MAX),
    }
    check_group(functions, 2)
    assert check_functions(dist.all_reduce) == check_functions([dist.all_reduce]) == {"all_reduce": dist.all_reduce}


# --- progress


def test_progress_in_a_terminal_is_erased(monkeypatch):
    """One line on stderr, written over, and blanks at the end."""
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(frontend, "somebody_watches", lambda: True)
    with progress_room.progress(2) as tell:
        tell(0, "the first, a long one")
        tell(1, "more")
    first, second, blanks, end = screen.getvalue().split("\r")[1:]
    assert re.fullmatch(r"0 of 2, \d+ s: the first, a long one", first)
    assert re.fullmatch(r"1 of 2, \d+ s: more +", second)
    assert (len(first), blanks, end) == (len(second), " " * len(first), "")


def test_progress_is_silent_where_nobody_watches(monkeypatch, capsys):
    """A script whose output goes to a file writes nothing."""
    monkeypatch.setenv("IPP_NONINTERACTIVE", "1")
    with progress_room.progress(2) as tell:
        tell(1, "more")
    assert capsys.readouterr() == ("", "")
