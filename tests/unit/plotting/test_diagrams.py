"""Before and after: what the diagrams and grids show, that they are tidy, and that figs/ is what is drawn."""

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
from tests.unit.plotting.conftest import assert_tidy, texts, visible_texts

TOOL = load("diagrams")
EXAMPLES = TOOL.EXAMPLES
NAMES = [*EXAMPLES, *TOOL.BARRIERS]


def cell_colors(figure):
    """The fill of each cell, in the order of drawing."""
    cells = [patch for patch in figure.axes[0].patches if isinstance(patch, FancyBboxPatch)]
    return [to_hex(cell.get_facecolor()).upper() for cell in cells]


def test_diagrams_follow_the_definitions():
    """What a diagram shows after a collective is what the torch formula of its definition gives."""
    ones, table = torch.arange(1, 5).reshape(4, 1), 10 * torch.arange(4).reshape(4, 1) + torch.arange(4)
    root, rest = ones.T.tolist(), [[]] * 3
    total = ones.sum(0, keepdim=True)
    expected = {
        "send_recv": ([[1], [0], [0], [0]], [[1], [1], [0], [0]]),
        "broadcast": ([[1]] + [[None]] * 3, torch.ones(4, 1).tolist()),
        "scatter": (root + rest, ones.tolist()),
        "gather": (ones.tolist(), root + rest),
        "reduce": (ones.tolist(), total.tolist() + [["?"]] * 3),
        "all_reduce": (ones.tolist(), total.expand(4, 1).tolist()),
        "all_gather": (ones.tolist(), ones.T.expand(4, 4).tolist()),
        "reduce_scatter": (table.tolist(), table.sum(0).reshape(4, 1).tolist()),
        "all_to_all": (table.tolist(), table.T.tolist()),
    }
    assert {name: (list(shown.before), list(shown.after)) for name, shown in EXAMPLES.items()} == expected


@pytest.mark.parametrize("name", NAMES)
def test_diagrams_read_at_half_width(name):
    """At 400 pixels the names of the ranks are at least 8 pixels high."""
    figure = TOOL.diagram(name)
    heights = [text.get_window_extent().height for text in visible_texts(figure) if text.get_text()[:4] == "rank"]
    assert min(heights) * 400 / figure.bbox.width >= 8


def test_figs_are_committed(tmp_path):
    """figs/ holds what is drawn now, byte for byte, whatever the user's own settings are."""
    tested = re.search(r"^matplotlib==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.M)
    if tested and tested[1] != matplotlib.__version__:
        pytest.skip(f"figs/ is drawn by matplotlib {tested[1]}, this is {matplotlib.__version__}")
    with matplotlib.rc_context({"font.size": 20, "savefig.facecolor": "red", "figure.autolayout": True}):
        paths = TOOL.write_figs(tmp_path)
    assert [path.name for path in paths] == [f"{name}.{kind}" for name in [*NAMES, "ring"] for kind in ("svg", "png")]
    for path in paths:
        assert path.read_bytes() == (ROOT / "figs" / path.name).read_bytes(), f"{path.name} is stale: run `make figs`"


def test_grid_traces_origins():
    """A value has the colour of the one rank that had it, light grey if several had it, dark grey if none had it."""
    figure = before_after([1, torch.tensor([2.0, 7.0]), (3, 7)], [torch.tensor(3), 7, None], "call")
    empty = "#000000"  # what to_hex makes of a fill with no colour
    own = [rank_color(0), rank_color(1), rank_color(1), rank_color(2), rank_color(2)]
    assert cell_colors(figure) == [*own, rank_color(2), FAINT, empty]
    assert cell_colors(before_after([1, 2], [3, 3]))[2:] == [MIXED, MIXED]


def test_values_as_text():
    """Integral values are written as integers, others with three digits, long texts are cut."""
    shown = {3: "3", -2.0: "-2", 0.125: "0.125", 1 / 3: "0.333", 2.5e7: "2.5e+07", float("inf"): "inf", None: ""}
    assert {value: format_value(value) for value in shown} == shown
    assert format_value("a\nlong object") == "a long obje…"


@pytest.mark.parametrize(("ranks", "slots"), [(1, 1), (3, 20), (8, 8)])
def test_grids_are_tidy(ranks, slots):
    """No text in a grid overlaps another or leaves its cell, whatever the numbers of ranks and slots."""
    before = [torch.arange(slots) * 1.37 + 10 * rank for rank in range(ranks)]
    names = [f"slot {i}" for i in range(slots)]
    assert_tidy(before_after(before, [sum(before)] * ranks, "a title that is longer than its figure", slots=names))


def test_grid_takes_nested_values():
    """Matrices and nested lists are laid end to end, None in a list is an empty slot, texts are drawn as they are."""
    figure = before_after([torch.ones(2, 2, requires_grad=True), [[1], [None, 2]]], ["$cat", ["a", "b"]])
    assert texts(figure) == ["rank 0", "rank 1", "before", *"111112", "after", "$cat", "a", "b", "→"]
