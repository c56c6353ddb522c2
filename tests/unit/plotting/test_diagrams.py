"""Before and after: what the grids show, and that figs/ is what is drawn."""

import re

import matplotlib
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch

from distlab.plotting import before_after
from distlab.plotting.cells import format_value
from distlab.plotting.style import FAINT, MIXED, rank_color
from tests.tool import ROOT, load
from tests.unit.plotting.conftest import texts

TOOL = load("diagrams")


def cell_colors(figure):
    """The fill of each cell, in the order of drawing."""
    cells = [patch for patch in figure.axes[0].patches if isinstance(patch, FancyBboxPatch)]
    return [to_hex(cell.get_facecolor()).upper() for cell in cells]


def test_figs_are_committed(tmp_path):
    """figs/ holds what is drawn now, byte for byte, whatever the user's own settings are."""
    tested = re.search(r"^matplotlib==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.M)
    if tested and tested[1] != matplotlib.__version__:
        pytest.skip(f"figs/ is drawn by matplotlib {tested[1]}, this is {matplotlib.__version__}")
    with matplotlib.rc_context(
        {"font.size": 20, "savefig.facecolor": "red", "figure.autolayout": True}
    ):
        paths = TOOL.write_figs(tmp_path)
    others = ["ring", "comparison", "staircase", *TOOL.maps.MAPS]
    assert len(paths) == 2 * len([*TOOL.EXAMPLES, *TOOL.BARRIERS, *others])
    for path in paths:
        assert path.read_bytes() == (ROOT / "figs" / path.name).read_bytes(), (
            f"{path.name} is stale: run `make figs`"
        )


def test_grid_traces_origins():
    """A value has its one rank's colour, light grey if several had it, else dark grey."""
    figure = before_after([1, torch.tensor([2.0, 7.0]), (3, 7)], [torch.tensor(3), 7, None], "call")
    own = [rank_color(0), rank_color(1), rank_color(1), rank_color(2), rank_color(2)]
    # which to_hex makes of no colour
    assert cell_colors(figure) == [*own, rank_color(2), FAINT, "#000000"]
    assert cell_colors(before_after([1, 2], [3, 3]))[2:] == [MIXED, MIXED]


def test_values_as_text():
    """Integral values are written as integers, others with three digits, long texts are cut."""
    shown = {
        3: "3",
        -2.0: "-2",
        0.125: "0.125",
        1 / 3: "0.333",
        2.5e7: "2.5e+07",
        float("inf"): "inf",
        None: "",
    }
    assert {value: format_value(value) for value in shown} == shown
    assert format_value("a\nlong object") == "a long obje…"


def test_grid_takes_nested_values():
    """Nested lists are laid end to end, None is an empty slot, texts are drawn."""
    figure = before_after(
        [torch.ones(2, 2, requires_grad=True), [[1], [None, 2]]], ["$cat", ["a", "b"]]
    )
    assert texts(figure) == [
        "rank 0",
        "rank 1",
        "before",
        *"111112",
        "after",
        "$cat",
        "a",
        "b",
        "→",
    ]
