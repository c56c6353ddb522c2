"""distlab.plotting's figures of measurements: what they say, and that they are tidy."""

import re
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest

from distlab import plotting
from tests.unit.plotting.conftest import FIT, SIZES, assert_tidy, curve, labels

RATES = {
    "small": ([1, 2, 4], [100, 120, 80], [90, 100, 70], [110, 130, 90]),
    "large": ([1, 2, 4], [10, 19, 20], [9, 18, 17], [11, 20, 21]),
}
CROWDED = "more ranks than the 2 cores"


def ticks(axis):
    axis.figure.draw_without_rendering()
    low, high = sorted(axis.get_view_interval())
    return [tick.label1.get_text() for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]


def legend(ax):
    return [text.get_text() for legend in ax.figure.legends for text in legend.get_texts()]


def shares(compute, hidden, communicate, wait, other):
    return SimpleNamespace(compute=compute, hidden=hidden, communicate=communicate, wait=wait, other=other)


# --- against message size


@pytest.mark.parametrize("xs", [SIZES, SIZES[:3], [1000, 1100], [1000]])
def test_latency_bandwidth(xs):
    """Time and bandwidth share an x axis, the fit is named with its alpha and 1/beta, and the figure is tidy."""
    measured = curve(FIT.alpha, FIT.beta, xs)
    figure = plotting.latency_bandwidth(*measured, fit=FIT, title="ping-pong")
    assert_tidy(figure)
    upper, lower = figure.axes
    assert labels(upper) + labels(lower) == ["fit: α + βn\nα = 40 µs", "1/β = 2 GB/s"]
    assert upper.get_xlim() == lower.get_xlim()
    points = lower.containers[0].lines[0].get_ydata()
    assert points == pytest.approx([n / t for n, t in zip(xs, measured[1], strict=True)])


def test_time_against_size():
    """Every curve has a label at its end; sizes are at powers of two."""
    curves = {"gloo": curve(6e-5), "ring": curve(2e-4), "naive": curve(1e-4, 1e-9), "tree": curve(9e-5)}
    curves["memory copy"] = curve(1e-6, 1.25e-10)
    ax = plotting.time_against_size(curves, "all-reduce")
    assert labels(ax) == ["gloo", "memory copy", "naive", "ring", "tree"]
    assert len(ticks(ax.xaxis)) >= 3
    assert all(re.fullmatch(r"\d+ (B|KiB|MiB)", tick) for tick in ticks(ax.xaxis))
    assert {"1 µs", "1 ms"} <= set(ticks(ax.yaxis))
    assert_tidy(ax.figure)


# --- against the number of ranks


def test_time_against_ranks():
    """Where there are more ranks than cores is shaded and said, and not where there are none."""
    curves = {"broadcast": curve(1e-5, 3e-5, [2, 3, 4, 8]), "barrier": curve(1e-5, 2.9e-5, [2, 3, 4, 8])}
    ax = plotting.time_against_ranks(curves, "1 MB", cores=2)
    assert labels(ax) == ["barrier", "broadcast", CROWDED]
    assert_tidy(ax.figure)
    ax = plotting.time_against_ranks(curves, cores=8)
    assert labels(ax) == ["barrier", "broadcast"]
    assert ticks(ax.xaxis) == ["2", "3", "4", "8"]
    assert ticks(ax.yaxis)[:2] == ["0 s", "100 µs"]


def test_theory_goes_on_beyond_the_ranks_that_were_measured():
    """Its label is at its end, in the colour of its curve, and a badge says that the times are virtual."""
    theory = {"ring": ([2, 4, 64], [1e-3, 2e-3, 3e-3])}
    ax = plotting.time_against_ranks({"ring": ([2, 4], *[[1e-3, 2e-3]] * 3)}, "1 MiB", theory=theory)
    plotting.badge(ax, "simulated: 4 ranks, 5 us, 12.5 GB/s")
    assert labels(ax) == ["ring", "simulated: 4 ranks, 5 us, 12.5 GB/s"]
    points, line = ax.containers[0].lines[0], ax.lines[-1]
    assert (points.get_linestyle(), line.get_linestyle()) == ("None", "--")
    assert points.get_color() == line.get_color()
    assert (list(line.get_xdata()), ticks(ax.xaxis)) == ([2, 4, 64], ["2", "4", "64"])
    assert_tidy(ax.figure)


def test_speedup():
    """Rates become multiples of one rank's; each curve ends with its efficiency; more ranks than cores are shaded."""
    ax = plotting.speedup(RATES, "digits", cores=2)
    assert labels(ax) == ["ideal", "large, 50%", CROWDED, "small, 20%"]
    assert list(ax.containers[1].lines[0].get_ydata()) == [1, 1.9, 2]
    assert ticks(ax.xaxis) == ["1", "2", "4"]
    assert_tidy(ax.figure)
    assert_tidy(plotting.speedup({"one": ([1], [5], [4], [6])}).figure)


def test_scaling():
    """Three panels: rates, multiples of one rank's, and these as shares of the ideal."""
    figure = plotting.scaling(RATES, "digits", cores=2)
    drawn = [list(ax.containers[1].lines[0].get_ydata()) for ax in figure.axes]
    assert drawn == [[10, 19, 20], [1, 1.9, 2], [100, 95, 50]]
    assert [ax.get_ylabel() for ax in figure.axes] == ["throughput, samples/s", "speed-up", "efficiency, %"]
    assert labels(figure.axes[2]) == ["ideal", "large", CROWDED, "small"]
    assert_tidy(figure)
    assert_tidy(plotting.scaling({"one": ([1], [5], [4], [6])}, cores=8))


# --- bars


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
    assert labels(ax) == ["communicate", "communicate", "compute", "compute"]
    assert legend(ax) == ["wait"]
    assert ax.get_xlim() == pytest.approx((0, 0.02))
    first, second = ax.containers[2].patches[0], ax.containers[3].patches[0]
    assert not first.get_window_extent().overlaps(second.get_window_extent())
    assert_tidy(ax.figure)


@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_time_shares(ranks):
    """Each bar is as long as its rank's time, with percentages in the wide parts and the kinds in the legend."""
    bars = {f"rank {rank}": shares(0.02, 0.01, 0.0056, 0.0037, 0.0007) for rank in range(ranks)}
    ax = plotting.time_shares(bars, "a step")
    assert labels(ax) == sorted(["50%", "25%", "14%", "9%"] * ranks)
    assert [label.get_text() for label in ax.get_yticklabels()] == list(bars)
    assert ax.patches[4].get_x() + ax.patches[4].get_width() == pytest.approx(0.04)
    assert legend(ax) == ["computes", "computes while data travel", "data travel", "waits for others", "other"]
    assert_tidy(ax.figure)


def test_time_shares_of_different_lengths():
    """Relative bars are all as long as each other, whatever time they took."""
    ax = plotting.time_shares({"short": shares(0.001, 0, 0.001, 0, 0), "long": shares(3, 0, 1, 0, 0)}, relative=True)
    assert labels(ax) == ["25%", "50%", "50%", "75%"]
    assert ax.get_xlabel() == "share of the time"
    assert ax.patches[7].get_x() + ax.patches[7].get_width() == 100
    assert_tidy(ax.figure)


def test_step_times():
    """Each way has its bar, from the top down, with its median beside it."""
    ax = plotting.step_times({"none": (0.05, 0.04, 0.06), "buckets": (0.1, 0.09, 0.3)}, "one step")
    assert labels(ax) == ["100 ms", "50 ms"]
    assert ax.yaxis_inverted()
    assert [label.get_text() for label in ax.get_yticklabels()] == ["none", "buckets"]
    assert [bar.patches[0].get_width() for bar in ax.containers] == [0.05, 0.1]
    assert_tidy(ax.figure)


def test_axes_that_are_given_are_used():
    """Times against sizes are drawn on the axes that are given, and no other figure is made."""
    figure, ax = plt.subplots(layout="constrained")
    assert plotting.time_against_size({"a": curve(1e-5)}, ax=ax) is ax
    assert plt.get_fignums() == [figure.number]


# --- memory


def test_memory():
    """A bar is as long as all of its parts; wide parts say their size, and the sum stands beside the bar."""
    parts = {"parameters": 8 * 2**20, "gradients": 2**20, "optimizer states": 16 * 2**20}
    ax = plotting.memory({"replica": parts, "shard": {"parameters": 2 * 2**20}}, "t", limit=32 * 2**20)
    assert [bar.get_width() for bars in ax.containers for bar in bars] == [8, 1, 16, 2]
    assert {"25", "16", "8", "2"} <= set(labels(ax))
    assert legend(ax) == ["parameters", "gradients", "optimizer states", "device: 32 MiB"]
    assert_tidy(ax.figure)


def test_memory_at_moments():
    """Moments that differ in the last word share a label below; a part that is empty everywhere is not explained."""
    parts = {"parameters": 2**20, "gathered parameters": 2**20, "gradients": 0}
    moments = {"at rest": {"parameters": 2**20}, "forward 0": parts, "forward 1": parts, "after forward": parts}
    ax = plotting.memory_at(moments, "t")
    assert [text.get_text() for text in ax.get_xticklabels()] == ["", "0", "1", ""]
    (below,) = ax.child_axes
    assert [text.get_text() for text in below.get_xticklabels()] == ["at\nrest", "forward", "after\nforward"]
    assert legend(ax) == ["parameters", "gathered parameters"]
    assert_tidy(ax.figure)
