"""distlab.plotting: what the figures say, that no text overlaps or is cut off, and that figs/ is what is drawn."""

import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import FancyBboxPatch

from distlab import plotting
from distlab.plotting.cells import Cell, format_value
from distlab.plotting.curves import spread
from distlab.plotting.diagrams import DIAGRAMS, diagram, example, write_figs
from distlab.plotting.grids import before_after
from distlab.plotting.style import FAINT, MIXED, rank_color, rank_colors, style
from distlab.plotting.units import format_bandwidth, format_bytes, format_seconds

ROOT = Path(__file__).parents[2]
SIZES = [4 * 8**k for k in range(8)]
FIT = SimpleNamespace(alpha=40e-6, beta=5e-10, seconds=lambda n: 40e-6 + 5e-10 * n)


@pytest.fixture(autouse=True)
def headless():
    """Draw without a screen, and leave no figure behind."""
    before = matplotlib.get_backend()
    plt.switch_backend("agg")
    yield
    plt.close("all")
    plt.switch_backend(before)


def curve(alpha, beta=5e-10, xs=SIZES):
    """A measured curve as sweep gives it."""
    medians = [alpha + beta * x for x in xs]
    return xs, medians, [0.9 * t for t in medians], [1.3 * t for t in medians]


def visible_texts(figure):
    """Every text that is drawn: of the axes, their ticks and the legends."""
    figure.draw_without_rendering()
    for ax in figure.axes:
        yield from (text for text in (*ax.texts, ax.title, ax._left_title) if text.get_text())
        for axis in (ax.xaxis, ax.yaxis) if ax.axison else ():
            yield from [axis.label] if axis.label.get_text() else []
            low, high = sorted(axis.get_view_interval())
            labels = (tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high)
            yield from (label for label in labels if label.get_visible() and label.get_text())
    yield from (text for legend in figure.legends for text in legend.get_texts())


def assert_tidy(figure):
    """No text overlaps another, none leaves the figure, and one that begins in a cell stays in it."""
    texts = [(text.get_text(), text.get_window_extent()) for text in visible_texts(figure)]
    assert texts
    for name, box in texts:
        assert box.x0 >= 0, name
        assert box.y0 >= 0, name
        assert box.x1 <= figure.bbox.width, name
        assert box.y1 <= figure.bbox.height, name
    for (one, box), (other, second) in combinations(texts, 2):
        assert not box.overlaps(second), f"{one!r} overlaps {other!r}"
    cells = [p.get_window_extent() for ax in figure.axes for p in ax.patches if isinstance(p, FancyBboxPatch)]
    for name, box in texts:
        for cell in cells:
            if cell.contains((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2):
                assert cell.x0 < box.x0 < box.x1 < cell.x1, name


# What is seen of linear red, green, blue. Source: Machado, Oliveira and Fernandes, "A Physiologically-based Model for
# Simulation of Color Vision Deficiency" (2009), severity 1.
PROTANOPIA = (
    (0.152286, 1.052583, -0.204868),
    (0.114503, 0.786281, 0.099216),
    (-0.003882, -0.048116, 1.051998),
)
DEUTERANOPIA = (
    (0.367322, 0.860646, -0.227968),
    (0.280085, 0.672501, 0.047413),
    (-0.011820, 0.042940, 0.968881),
)


def linear(color):
    """Linear red, green and blue of a colour, each 0 to 1."""
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]


def values(rows):
    return [[cell.value for cell in row] for row in rows]


def cell_colors(figure):
    """The fill of each cell by its text, in the order of drawing."""
    (ax,) = figure.axes
    cells = [patch for patch in ax.patches if isinstance(patch, FancyBboxPatch)]
    return [to_hex(cell.get_facecolor()).upper() for cell in cells]


# --- style


def test_front_door():
    """Every public name can be imported, and the package's list of homes holds the same names."""
    assert sorted(name for _, names in plotting.HOMES for name in names) == sorted(plotting.__all__) == dir(plotting)
    assert all(getattr(plotting, name) is not None for name in plotting.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'pie'"):
        _ = plotting.pie


def test_colors_cost_no_matplotlib():
    """The colours of ranks can be had without the import of matplotlib."""
    code = "import sys; from distlab.plotting import rank_color; rank_color(0); sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0


def test_rank_colors_differ():
    """24 ranks have 24 colours, and the first eight differ for those who see no red or no green as well."""
    assert len(set(rank_colors(24))) == 24
    assert rank_color(24) == rank_color(0)
    for matrix in (PROTANOPIA, DEUTERANOPIA):
        seen = torch.tensor([linear(color) for color in rank_colors(8)]) @ torch.tensor(matrix).T
        assert torch.pdist(seen).min() > 0.1


@pytest.mark.parametrize("rank", [-1, 1.5, True, "0"])
def test_rank_color_refuses(rank):
    """What is no rank is refused with the value and a call that works."""
    message = f"rank must be an integer of 0 or more, got {rank!r}. Call it as rank_color(0)."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        rank_color(rank)


def test_style_is_restored():
    """Neither style() nor a figure changes the user's settings, and no figure stays with pyplot."""
    before = dict(matplotlib.rcParams)
    with style():
        assert matplotlib.rcParams["svg.hashsalt"] == "distlab"
    diagram("reduce")
    plotting.latency_bandwidth(SIZES, curve(1e-5)[1])
    assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == []


# --- diagrams


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_diagrams_follow_the_definitions(n):
    """What a diagram shows after a collective is what the torch formula of its definition gives."""
    ones, table = torch.arange(1, n + 1).reshape(n, 1), 10 * torch.arange(n).reshape(n, 1) + torch.arange(n)
    none = [None] * n
    root, rest = ones.T.tolist(), [none] * (n - 1)
    total = ones.sum(0, keepdim=True)
    expected = {
        "send_recv": ([[1]] + [[None]] * (n - 1), [[1], [1]] + [[None]] * (n - 2)),
        "broadcast": ([[1]] + [[None]] * (n - 1), torch.ones(n, 1).tolist()),
        "scatter": (root + rest, ones.tolist()),
        "gather": (ones.tolist(), root + rest),
        "reduce": (ones.tolist(), total.tolist() + [["?"]] * (n - 1)),
        "all_reduce": (ones.tolist(), total.expand(n, 1).tolist()),
        "all_gather": (ones.tolist(), ones.T.expand(n, n).tolist()),
        "reduce_scatter": (table.tolist(), table.sum(0).reshape(n, 1).tolist()),
        "all_to_all": (table.tolist(), table.T.tolist()),
    }
    assert tuple(expected) == DIAGRAMS
    for name, (before, after) in expected.items():
        shown = example(name, n)
        assert (values(shown.before), values(shown.after)) == (before, after), name


@pytest.mark.parametrize("name", DIAGRAMS)
def test_flows_explain_the_colors(name):
    """A cell that came from another rank has an arrow from there, and a sum has one from every rank."""
    shown = example(name, 4)
    for rank, row in enumerate(shown.after):
        for cell in row:
            if cell.origin == "mixed":
                assert rank in shown.adds
                assert {(src, rank) for src in range(4)} <= set(shown.flows)
            elif isinstance(cell.origin, int) and cell.origin != rank:
                assert (cell.origin, rank) in shown.flows


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("name", DIAGRAMS)
def test_diagrams_are_tidy(name, n):
    """No text in a diagram overlaps another, leaves the figure or leaves its cell."""
    assert_tidy(diagram(name, n))


@pytest.mark.parametrize("name", DIAGRAMS)
def test_diagrams_read_at_half_width(name):
    """At 400 pixels the text of a diagram of four ranks is at least 8 pixels high, from top to bottom of its font."""
    figure = diagram(name)
    heights = [text.get_window_extent().height for text in visible_texts(figure) if text.get_text()[:4] == "rank"]
    assert min(heights) * 400 / figure.bbox.width >= 8


def test_figs_are_reproducible(tmp_path):
    """Diagrams drawn twice, the second time with other settings of the user, have the same bytes."""
    first = write_figs(tmp_path / "first")
    with matplotlib.rc_context({"font.size": 20, "savefig.facecolor": "red", "figure.autolayout": True}):
        second = write_figs(tmp_path / "second")
    assert [path.name for path in first] == [f"{name}.{kind}" for name in DIAGRAMS for kind in ("svg", "png")]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_figs_are_committed(tmp_path):
    """figs/ holds what is drawn now."""
    tested = re.search(r"^matplotlib==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.M)
    if tested and tested[1] != matplotlib.__version__:
        pytest.skip(f"figs/ is drawn by matplotlib {tested[1]}, this is {matplotlib.__version__}")
    for path in write_figs(tmp_path):
        assert path.read_bytes() == (ROOT / "figs" / path.name).read_bytes(), f"{path.name} is stale: run `make figs`"


def test_diagram_refuses_unknown_names():
    """An unknown diagram is refused with the names that there are."""
    message = (
        "name must be one of send_recv, broadcast, scatter, gather, reduce, all_reduce, all_gather, reduce_scatter, "
        "all_to_all, got 'allreduce'. Call it as diagram(\"all_reduce\")."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        diagram("allreduce")


@pytest.mark.parametrize("n", [1, 9, 2.0, "4"])
def test_diagram_refuses_sizes(n):
    """A number of ranks that cannot be drawn is refused with the range and a call that works."""
    message = f'world_size must be an integer from 2 to 8, got {n!r}. Call it as diagram("gather", world_size=4).'
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        diagram("gather", n)


# --- before/after grids


def test_grid_traces_origins():
    """A value has the colour of the one rank that had it, light grey if several had it, dark grey if none had it."""
    figure = before_after([1, torch.tensor([2.0, 7.0]), (3, 7)], [torch.tensor(3), 7, None], "call")
    empty = "#000000"  # what to_hex makes of a fill with no colour
    own = [rank_color(0), empty, rank_color(1), rank_color(1), rank_color(2), rank_color(2)]
    assert cell_colors(figure) == [*own, rank_color(2), FAINT, empty]
    assert cell_colors(before_after([1, 2], [3, 3]))[2:] == [MIXED, MIXED]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(3, "3"), (3.0, "3"), (-2, "-2"), (True, "1"), (0.125, "0.125"), (1 / 3, "0.333"), (123456, "123456")],
        *[(2.5e7, "2.5e+07"), (float("nan"), "nan"), (float("inf"), "inf")],
        *[("a\nlong object", "a long obje…"), (None, "")],
    ],
)
def test_values_as_text(value, text):
    """Integral values are written as integers, others with three digits, long texts are cut."""
    assert format_value(value) == text


def test_cells_are_empty_by_default():
    """A cell with nothing in it is an empty one."""
    assert Cell() == Cell(None, "empty")


@pytest.mark.parametrize(("ranks", "slots"), [(1, 1), (2, 3), (3, 20), (4, 8), (8, 8)])
def test_grids_are_tidy(ranks, slots):
    """No text in a grid overlaps another or leaves its cell, whatever the numbers of ranks and slots."""
    before = [torch.arange(slots) * 1.37 + 10 * rank for rank in range(ranks)]
    after = [sum(before)] * ranks
    assert_tidy(before_after(before, after, "dist.all_reduce(t)", slots=[f"slot {i}" for i in range(slots)]))
    assert_tidy(
        before_after(list(range(ranks)), [list(range(ranks))] * ranks, "a title that is longer than its figure")
    )


def test_grid_takes_nested_values():
    """Matrices and nested lists are laid end to end, None in a list is an empty slot, texts are drawn as they are."""
    figure = before_after([torch.ones(2, 2, requires_grad=True), [[1], [None, 2]]], ["$cat", ["a", "b"]])
    shown = [text.get_text() for text in visible_texts(figure)]
    assert shown == ["rank 0", "rank 1", "before", "1", "1", "1", "1", "1", "2", "after", "$cat", "a", "b", "→"]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ([], [], 'before must be a list of at least one rank, got []. Give before=cluster.pull("t").'),
        (
            [1, 2],
            [1],
            "after must be a list of as many ranks as before (2), got 1. Pull both from the same ranks.",
        ),
        (5, [1], "before must be a list by rank, got 'int'. Give before=cluster.pull(\"t\")."),
        (
            [1],
            [{1}],
            "after[0] must be None, a number, a text, a tensor or a list of these, got {1}. Give its .tolist().",
        ),
    ],
)
def test_grid_refuses(before, after, message):
    """What cannot be drawn is refused with the rule, the value and what to give."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        before_after(before, after)


# --- timings


def test_units():
    """Sizes, times and bandwidths are written in the unit that leaves two digits or three."""
    assert [format_bytes(n) for n in (4, 1000, 32768, 1e6, 1.5e9)] == ["4 B", "1 kB", "33 kB", "1 MB", "1.5 GB"]
    assert [format_seconds(t) for t in (0, 2e-9, 38e-6, 1e-3, 0.25, 3)] == [
        "0",
        "2 ns",
        "38 µs",
        "1 ms",
        "250 ms",
        "3 s",
    ]
    assert format_bandwidth(2.31e9) == "2.3 GB/s"


def test_labels_are_pushed_apart():
    """Labels that touch are moved to be the distance apart, around their mean; others stay."""
    assert spread([0.0, 1.0, 50.0], 10) == [-4.5, 5.5, 50.0]
    assert spread([0.0, 9.0, 11.0, 20.0], 10) == [-5.0, 5.0, 15.0, 25.0]


@pytest.mark.parametrize("xs", [SIZES, SIZES[:3], [1000, 1100], [1000]])
def test_latency_bandwidth(xs):
    """Time and bandwidth share an x axis, the fit is named with its alpha and 1/beta, and the figure is tidy."""
    measured = curve(FIT.alpha, FIT.beta, xs)
    figure = plotting.latency_bandwidth(*measured, fit=FIT, title="ping-pong")
    assert_tidy(figure)
    upper, lower = figure.axes
    assert [text.get_text() for text in (*upper.texts, *lower.texts)] == ["fit: α + βn\nα = 40 µs", "1/β = 2 GB/s"]
    points = lower.containers[0].lines[0].get_ydata()
    assert points == pytest.approx([n / t for n, t in zip(xs, measured[1], strict=True)])
    assert_tidy(plotting.latency_bandwidth(*measured[:2]))


def test_time_against_size():
    """Every curve and every theory of its own has a label at its end, and close ends do not make labels overlap."""
    curves = {"gloo": curve(6e-5), "ring": curve(2e-4), "naive": curve(1e-4, 1e-9), "tree": curve(9e-5)}
    theory = {"ring": (SIZES, [2e-4] * 8), "memory copy": (SIZES, [1e-6 + n / 8e9 for n in SIZES])}
    ax = plotting.time_against_size(curves, "all-reduce", theory=theory)
    assert sorted(text.get_text() for text in ax.texts) == ["gloo", "memory copy", "naive", "ring", "tree"]
    assert_tidy(ax.figure)


def test_time_against_ranks():
    """Where there are more ranks than cores is shaded and said, and not where there are none."""
    curves = {"broadcast": curve(1e-5, 3e-5, [2, 3, 4, 8]), "barrier": curve(1e-5, 2.9e-5, [2, 3, 4, 8])}
    ax = plotting.time_against_ranks(curves, "1 MB", cores=2)
    assert "more ranks than the 2 cores" in [text.get_text() for text in ax.texts]
    assert_tidy(ax.figure)
    ax = plotting.time_against_ranks(curves, cores=8)
    assert sorted(text.get_text() for text in ax.texts) == ["barrier", "broadcast"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["2", "3", "4", "8"]


def test_overlap():
    """A kind is written in each bar that is wide enough, and in a legend if none is; times start at zero."""
    bars = [
        ("blocking", 5.0, 5.01, "communicate"),
        ("blocking", 5.01, 5.02, "compute"),
        ("async_op=True", 5.0, 5.01, "communicate"),
        ("async_op=True", 5.0, 5.0098, "compute"),
        ("async_op=True", 5.0098, 5.01, "wait"),
    ]
    ax = plotting.overlap(bars, "one all-reduce")
    assert sorted(text.get_text() for text in ax.texts) == ["communicate", "communicate", "compute", "compute"]
    assert [text.get_text() for legend in ax.figure.legends for text in legend.get_texts()] == ["wait"]
    assert ax.get_xlim() == pytest.approx((0, 0.02))
    first, second = ax.containers[2].patches[0], ax.containers[3].patches[0]
    assert not first.get_window_extent().overlaps(second.get_window_extent())
    assert_tidy(ax.figure)


def test_axes_that_are_given_are_used():
    """A figure is drawn on the axes that are given, and no other is made."""
    figure, (one, two, three) = plt.subplots(3, layout="constrained")
    assert plotting.time_against_size({"a": curve(1e-5)}, ax=one) is one
    assert plotting.time_against_ranks({"a": curve(1e-5, 1e-5, [2, 4])}, ax=two) is two
    assert plotting.overlap([("rank 0", 0, 1, "wait")], ax=three) is three
    assert plt.get_fignums() == [figure.number]


CURVE = "must be four lists of one length, 1 or more, got the lengths"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: plotting.time_against_size({}),
            'curves must be at least one curve, got {}. Give {"gloo": (x, medians, lows, highs)}.',
        ),
        (
            lambda: plotting.time_against_ranks({"a": ([1, 2], [1], [1], [1])}),
            f"curves['a'] {CURVE} [2, 1, 1, 1]. Give (x, medians, lows, highs).",
        ),
        (
            lambda: plotting.latency_bandwidth([], []),
            f"curves['measured'] {CURVE} [0, 0, 0, 0]. Give (x, medians, lows, highs).",
        ),
        (
            lambda: plotting.time_against_size({"a": ([0], [1], [1], [1])}),
            "curves['a'] must be positive numbers, got 0. Measure a longer time, or leave this point out.",
        ),
        (
            lambda: plotting.overlap([]),
            'bars must be at least one bar, got []. Give ("rank 0", 0.0, 0.01, "compute").',
        ),
        (
            lambda: plotting.overlap([("rank 0", 0, 1, "sleep")]),
            "bars[0][3] must be one of compute, communicate, wait, got 'sleep'. "
            'Give ("rank 0", 0.0, 0.01, "compute").',
        ),
        (
            lambda: plotting.overlap([("rank 0", 2, 1, "wait")]),
            'bars[0] must be a bar that ends after its start 2, got 1. Give ("rank 0", 0.0, 0.01, "compute").',
        ),
    ],
)
def test_timings_refuse(call, message):
    """What cannot be drawn is refused with the rule, the value and what to give, and leaves no figure."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()
    assert plt.get_fignums() == []
