"""Machines, their processes, and the lines between these."""

import pytest

from distlab import ArgumentError, plotting
from distlab.plotting.style import INK
from tests.unit.plotting.conftest import assert_tidy, texts

PROCESSES = {"here": ["notebook", "controller"], "nodeA": ["store", "rank 0", "rank 1"], "nodeB": ["rank 2"]}


def test_machines_are_drawn():
    """Each process stands once, and each kind of line is explained where there are several."""
    lines = {"commands": [("controller", "rank 2")], "tensors": [("rank 0", "rank 1"), ("rank 2", "rank 1")]}
    figure = plotting.machines(PROCESSES, lines, "who talks to whom")
    names = [name for names in PROCESSES.values() for name in names]
    assert sorted(texts(figure)) == sorted([*names, *PROCESSES, *lines, "who talks to whom"])
    assert_tidy(figure)
    assert "tensors" not in texts(plotting.machines(PROCESSES, {"tensors": lines["tensors"]}, arrows=True))


def test_a_line_of_an_unknown_process():
    with pytest.raises(ArgumentError, match=r"lines must be pairs of names of processes, got 'rank 5'\."):
        plotting.machines(PROCESSES, {"tensors": [("rank 0", "rank 5")]})


def test_the_shortest_exchange_has_the_colour_of_the_rank():
    """Each exchange is drawn from the least to the greatest offset that it allows, seen from the best estimate."""
    figure = plotting.clocks([(0.0, 5.3, 0.4), (1.0, 6.1, 1.2), (2.0, 7.0, 2.3)], truth=5.05)
    assert_tidy(figure)
    bars = figure.axes[1].lines[:6:2]
    assert [[round(y, 3) for y in bar.get_ydata()] for bar in bars] == [[-0.1, 0.3], [-0.1, 0.1], [-0.3, 0.0]]
    assert [bar.get_color() == INK for bar in bars] == [True, False, True]
    with pytest.raises(ArgumentError, match=r"exchanges must be one exchange or more, got \[\]\."):
        plotting.clocks([], truth=0)
