"""What tests of figures need: drawing without a screen, curves, words on a figure."""

from itertools import combinations
from types import SimpleNamespace

import matplotlib
import matplotlib.pyplot as plt
import pytest
from matplotlib.patches import FancyBboxPatch

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
    """Every text that is drawn: of the figure, the axes, their ticks and the legends."""
    figure.draw_without_rendering()
    yield from (text for text in figure.texts if text.get_text())
    for ax in figure.axes:
        for text in (*ax.texts, ax.title, ax._left_title):
            if text.get_text().strip():
                yield text
        if ax.axison:
            yield from _labels(ax.xaxis)
            yield from _labels(ax.yaxis)
    for legend in figure.legends:
        yield from legend.get_texts()


def _labels(axis):
    """The label of an axis, and those of its ticks."""
    if axis.label.get_text():
        yield axis.label
    low, high = sorted(axis.get_view_interval())
    for tick in axis.get_major_ticks():
        label = tick.label1
        if low <= tick.get_loc() <= high and label.get_visible() and label.get_text():
            yield label


def texts(figure):
    """What is written on a figure."""
    return [text.get_text() for text in visible_texts(figure)]


def assert_tidy(figure):
    """No text overlaps another, leaves the figure, or leaves the cell in which it begins."""
    boxes = [(text.get_text(), text.get_window_extent()) for text in visible_texts(figure)]
    assert boxes
    for name, box in boxes:
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width, name
        assert 0 <= box.y0 < box.y1 <= figure.bbox.height, name
    for (one, box), (other, second) in combinations(boxes, 2):
        assert not box.overlaps(second), f"{one!r} overlaps {other!r}"
    for cell in _cells(figure):
        for name, box in boxes:
            if cell.contains((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2):
                assert cell.x0 < box.x0 < box.x1 < cell.x1, name


def _cells(figure):
    """Where the cells of a figure are."""
    for ax in figure.axes:
        for patch in ax.patches:
            if isinstance(patch, FancyBboxPatch):
                yield patch.get_window_extent()
