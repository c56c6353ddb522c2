"""A server and its clients over time, and the staleness of gradients."""

from distlab import plotting
from tests.unit.plotting.conftest import assert_tidy, texts

LANES = {
    "rank 0": [(10.02, 10.05, "2")],
    "rank 1": [(10.0, 10.06, ""), (10.01, 10.06, ""), (10.07, 10.09, "")],
    "rank 2": [],
}


def test_bars_that_overlap_are_one_below_the_other():
    """A lane has as many rows as it has bars at the same time, and the time begins with the first of all."""
    ax = plotting.served(LANES, "t")
    forward, first, second, third = ax.patches
    assert [round(bar.get_x(), 3) for bar in (forward, first, second, third)] == [0.02, 0, 0.01, 0.07]
    assert first.get_y() == third.get_y() < second.get_y()
    assert {"rank 0", "rank 1", "rank 2", "2", "time", "t"} <= {*texts(ax.figure)}
    assert_tidy(ax.figure)


def test_no_text_in_a_bar_that_is_too_narrow():
    """A text that would leave its bar is left out."""
    ax = plotting.served({"rank 0": [(0.0, 0.001, "backward"), (0.5, 1.0, "forward")]})
    assert [text.get_text() for text in ax.texts] == ["forward"]


def test_staleness_adds_up_over_the_trainers():
    """The bars of the trainers are one on top of the other, with the run's name above its panel."""
    figure = plotting.staleness({"equal": {1: [0, 1, 1], 2: [1]}, "slow": {1: [0], 2: [7]}}, "t")
    tops = {}
    for bar in figure.axes[0].patches:
        age = round(bar.get_x() + bar.get_width() / 2)
        tops[age] = max(tops.get(age, 0), bar.get_y() + bar.get_height())
    assert tops == {0: 1, 1: 3}
    assert {"staleness", "gradients", "t", "equal", "slow"} <= {*texts(figure)}
    assert_tidy(figure)
