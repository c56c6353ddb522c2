"""Figures of tensors in parts: which rank holds what, how weights are cut, who talks to whom."""

import torch
from matplotlib.colors import to_hex
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

from distlab import plotting
from distlab.plotting.style import FAINT, MIXED, rank_color
from tests.unit.plotting.conftest import assert_tidy, texts

WHOLE = torch.arange(4.0).reshape(2, 2)
NOTHING = torch.full((2, 2), torch.nan)


def part(rank, dim):
    """The matrix as a rank holds it that has one of two parts."""
    place = NOTHING.clone()
    place.chunk(2, dim)[rank].copy_(WHOLE.chunk(2, dim)[rank])
    return place


def fills(figure, kind):
    """The colours of the filled shapes of a kind, in the order in which they were drawn."""
    shapes = [patch for patch in figure.axes[0].patches if isinstance(patch, kind) and patch.get_facecolor()[3] == 1]
    return [to_hex(shape.get_facecolor()).upper() for shape in shapes]


def test_a_number_keeps_the_colour_of_the_rank_that_held_it():
    """Below an arrow, numbers have the colour of the rank that had them above it, sums are dark grey."""
    rows = [part(rank, 0) for rank in range(2)]
    figure = plotting.shards([("rows", rows), ("all", [WHOLE] * 2), ("sum", [WHOLE + 10] * 2)], ["gather", "add"], "t")
    zero, one = rank_color(0), rank_color(1)
    assert fills(figure, FancyBboxPatch) == [zero] * 2 + [one] * 2 + [zero, zero, one, one] * 2 + [MIXED] * 8
    assert {"t", "rank 0", "rank 1", "rows", "all", "sum", "gather", "add"} <= set(texts(figure))
    assert_tidy(figure)


def test_a_state_without_an_arrow_begins_afresh():
    """Its numbers have the colours of the ranks that hold them, or light grey where all ranks hold the same."""
    columns = [part(rank, 1) for rank in range(2)]
    figure = plotting.shards([("x", [WHOLE] * 2), ("y", columns)])
    assert fills(figure, FancyBboxPatch) == [FAINT] * 8 + [rank_color(0)] * 2 + [rank_color(1)] * 2
    assert not [patch for patch in figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]


def test_a_vector_is_a_row_and_lists_are_drawn_as_tensors():
    """None stands for what a rank does not hold, as NaN does."""
    figure = plotting.shards([("v", [[1, None], torch.tensor([torch.nan, 2.0])])])
    assert fills(figure, FancyBboxPatch) == [rank_color(0), rank_color(1)]


def test_weights_are_cut_as_they_lie_on_the_ranks():
    """A stripe for each rank along the cut dimension, and one box where every rank has all."""
    figure = plotting.cuts([("up", (8, 2), 0), ("norm", (2,), None), ("down", (2, 8), 1)], 2, {"down": "sum"}, "t")
    *boxes, _, _, _ = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    assert fills(figure, Rectangle)[:5] == [rank_color(0), rank_color(1), FAINT, rank_color(0), rank_color(1)]
    upper, lower, _, left, right = boxes
    assert (upper.get_x(), upper.get_y()) < (lower.get_x(), lower.get_y())
    assert left.get_y() == right.get_y()
    assert left.get_x() < right.get_x()
    assert {"up", "8 x 2", "norm", "down", "2 x 8", "sum", "every rank"} <= set(texts(figure))
    assert_tidy(figure)


def test_a_mesh_joins_the_ranks_of_each_group():
    """A line along a row or a column, with what its ranks call."""
    figure = plotting.mesh((2, 2), [((0, 1), "1 add"), ((1, 3), "1 gather\n1 scatter")])
    assert fills(figure, Circle) == [rank_color(rank) for rank in range(4)]
    row, column = figure.axes[0].lines
    assert row.get_ydata()[0] == row.get_ydata()[1]
    assert column.get_xdata()[0] == column.get_xdata()[1]
    assert {"1 add", "1 gather\n1 scatter"} <= set(texts(figure))
    assert_tidy(figure)
