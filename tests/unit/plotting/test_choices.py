"""What ways to share a model cost: bubbles, micro-batches alive, predictions, and the map of the quickest way."""

import numpy as np
import pytest

from distlab import plotting
from distlab.errors import ArgumentError
from tests.unit.plotting.conftest import assert_tidy, texts

M = (1, 2, 4, 8)


def test_bubbles_lie_on_their_lines():
    """Points and the theory's line are in percent, and a schedule with two stages a rank has a line of its own."""
    shares = {"GPipe": {m: 3 / (m + 3) for m in M}, "Interleaved1F1B": {m: 3 / (2 * m + 3) for m in M[2:]}}
    ax = plotting.bubbles(shares, 4, (1, 2), "simulated: 4 ranks")
    lines = [line.get_xydata() for line in ax.lines]
    assert [len(line) for line in lines] == [41, 41, 4, 2]
    assert lines[0][[0, -1]] == pytest.approx(lines[2][[0, -1]])
    assert lines[1][[0, -1]] == pytest.approx(lines[3][[0, -1]])
    assert {"GPipe", "Interleaved1F1B", "simulated: 4 ranks; dashed: 3 / (v m + 3)"} <= {*texts(ax.figure)}
    assert_tidy(ax.figure)


def test_alive():
    """Steps over time on the left, the most on any rank on the right, each with its name beside it."""
    over_time = {"GPipe": ([0, 0.1, 0.2, 0.5, 0.6], [0, 1, 2, 1, 0]), "1F1B": ([0, 0.1, 0.3], [0, 1, 0])}
    most = {"GPipe": {m: m for m in M}, "1F1B": dict.fromkeys(M, 1)}
    figure = plotting.alive(over_time, most, "simulated: 2 ranks")
    left, right = figure.axes
    assert [line.get_ydata().max() for line in left.lines] == [2, 1]
    assert [line.get_ydata().tolist() for line in right.lines] == [[*M], [1] * 4]
    assert [*texts(figure)].count("GPipe") == 2
    assert_tidy(figure)


def test_predictions():
    """A hatched bar for what was predicted and a full one for what was simulated, in bytes and in seconds."""
    ways = {"DDP": (4e5, 2e-4), "pipeline": (1e5, 5e-4)}
    figure = plotting.predictions(ways, ways, "simulated: 4 ranks")
    for place, ax in enumerate(figure.axes):
        assert [bar.get_width() for bar in ax.patches] == [way[place] for way in ways.values() for _ in range(2)]
        assert [bool(bar.get_hatch()) for bar in ax.patches] == [False, True] * 2
    assert_tidy(figure)


def test_quickest():
    """Each point of the map has the shade of the way with the least time, and each way is named where it wins."""
    rows, columns = np.arange(1, 9)[:, None], np.geomspace(1, 100, 11)
    seconds = {"a": rows + 0 * columns, "b": columns / 10 + 0 * rows}
    ax = plotting.quickest(seconds, 1e9 * columns, 1024 * rows.ravel(), "a model", {"NVLink": 4e10})
    (mesh,) = ax.collections
    assert mesh.get_array().reshape(8, 11)[0].tolist() == [1] * 5 + [0] * 6
    assert {"a", "b", "NVLink", "a model", "8,192"} <= {*texts(ax.figure)}
    assert_tidy(ax.figure)
    with pytest.raises(ArgumentError, match="1 to 3 ways"):
        plotting.quickest(dict.fromkeys("abcd", rows), columns, rows.ravel())
