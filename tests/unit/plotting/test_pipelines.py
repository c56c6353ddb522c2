"""The schedules of pipelines: a lane for each rank, a box for each micro-batch, and what is idle."""

import pytest

from distlab import plotting
from distlab.plotting.pipelines import idle
from tests.unit.plotting.conftest import assert_tidy, texts

# by rank: kind, stage, micro-batch, begin, end; two ranks, two micro-batches, a second later than zero
GPIPE = [
    [("F", 0, 0, 1.0, 1.1), ("F", 0, 1, 1.1, 1.2), ("B", 0, 0, 1.4, 1.6), ("B", 0, 1, 1.6, 1.8)],
    [("F", 1, 0, 1.1, 1.2), ("F", 1, 1, 1.2, 1.3), ("B", 1, 0, 1.3, 1.5), ("B", 1, 1, 1.5, 1.7)],
]
V = [[("F", 0, 0, 0.0, 0.1), ("F", 3, 0, 0.3, 0.4), ("I", 3, 0, 0.4, 0.5), ("W", 3, 0, 0.5, 0.6)], []]


def test_idle():
    """Of 0.8 s on two ranks, each computes for 0.6 s: a quarter is idle, (p - 1) / (m + p - 1) would be a third."""
    assert idle(GPIPE) == pytest.approx((0.25, 0.8))


def test_a_box_for_each_micro_batch():
    """Lanes are named, boxes begin where their micro-batch did, and the title has the idle share."""
    figure = plotting.pipeline({"GPipe": GPIPE}, "simulated: 2 ranks")
    (ax,) = figure.axes
    assert ax.get_title("left") == "GPipe: idle 25%"
    assert {"rank 0", "rank 1", "0", "1", "forward", "backward", "time (simulated: 2 ranks)"} <= {*texts(figure)}
    boxes = [patch for patch in ax.patches if patch.get_linewidth() == 0.8]
    assert [round(box.get_x(), 3) for box in boxes] == [0, 0.1, 0.4, 0.6, 0.1, 0.2, 0.3, 0.5]
    assert_tidy(figure)


def test_a_row_for_each_stage():
    """A rank with two stages has a row for each; schedules share one scale, measured ones say so."""
    figure = plotting.pipeline({"V": V, "GPipe": GPIPE})
    assert {"stage 0", "stage 3", "backward, input only", "time, measured"} <= {*texts(figure)}
    assert len({ax.get_xlim() for ax in figure.axes}) == 1
    assert_tidy(figure)
