"""Every figure of distlab.plotting on a light page and on a dark one: no background, and colours that read on both."""

import functools
import io
from types import SimpleNamespace

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.colors import to_hex, to_rgba
from matplotlib.patches import FancyArrowPatch
from matplotlib_inline.backend_inline import _fetch_figure_metadata

from distlab import plotting
from distlab.plotting.curves import sweep_panels
from distlab.plotting.heat import BAD, COLORS
from distlab.plotting.style import FAINT, INK, MIXED, PAGES, contrast, curve_color, rank_color, style, text_color
from distlab.plotting.timelines import LOOKS, LOST
from distlab.traces.events import Event, Message
from tests.tool import load
from tests.unit.plotting.conftest import FIT, curve, visible_texts
from tests.unit.plotting.test_backends import CALLS, TABLE
from tests.unit.plotting.test_steps import played
from tests.unit.plotting.test_timelines import collective, halves, many, message
from tests.unit.plotting.test_training import accuracies, losses

DIAGRAMS = load("diagrams")
WIDEST = 7.5  # inches: read in a narrow window without scrolling
RATES = {f"model {i}": ([1, 2, 4], [100, 120, 80 + i], [90, 100, 70], [110, 180, 190]) for i in range(8)}
BARS = [("a", 0.0, 1.0, "communicate"), ("a", 1.0, 2.0, "compute"), ("b", 0.0, 1.0, "wait"), ("b", 1.0, 1.01, "wait")]


PARTS = ("parameters", "gathered parameters", "gradients", "optimizer states", "activations", "another part")
MEMORY = dict.fromkeys(PARTS, 2**20)


def one_step():
    """A space-time diagram with every kind of mark."""
    whole = collective([0, 4, 2], 6)
    spans = {"forward": (6, 10), "backward": (10, 18), "optimizer": (18, 20)}
    events = [Event(r, k, k, a / 1e3, b / 1e3) for r in range(3) for k, (a, b) in spans.items()]
    flying = message(0, 1, 11, 13, 17, 4000, blocking=False)
    what = {"ready": float("inf"), "peer": 1, "group": (0, 1, 2), "tag": 0, "num_bytes": 4, "failed": True}
    lost = Event(2, "send", "send", 0.020, 0.023, **what)
    messages = [flying, Message(2, 1, 0, (0, 1, 2), 4, lost, None)]
    return plotting.space_time(
        range(3), [*whole.events, *events, *halves([flying]), lost], messages, [whole], title="t"
    )


def many_ranks():
    events, messages = many(8, 40)
    return plotting.space_time(range(8), events, messages, title="many")


FIGURES = {
    **{name: lambda name=name: DIAGRAMS.diagram(name) for name in (*DIAGRAMS.EXAMPLES, *DIAGRAMS.BARRIERS)},
    "ring of messages": DIAGRAMS.ring,
    "grid": lambda: plotting.before_after([1, [2, 7], (3, 7)], [3, [7, "?", 14], None], "call", slots=["a", "b", "c"]),
    "latency": lambda: plotting.latency_bandwidth(*curve(FIT.alpha), fit=FIT, title="t"),
    "sizes": lambda: plotting.time_against_size({"a": curve(1e-5), "b": curve(2e-4)}).figure,
    "ranks": lambda: plotting.time_against_ranks({"a": curve(1e-5, xs=[2, 4])}, cores=2).figure,
    "overlap": lambda: plotting.overlap(BARS, "t").figure,
    "memory": lambda: plotting.memory({"rank 0": MEMORY, "rank 1": {"parameters": 2**21}}, "t", limit=2**23).figure,
    "moments": lambda: plotting.memory_at({"at rest": {}, "forward 0": MEMORY, "forward 1": MEMORY}, "t").figure,
    "training": lambda: plotting.training_curves({"loss": losses(8), "accuracy, %": accuracies(4), "c": losses(2)}),
    "scaling": lambda: plotting.scaling(RATES, "t", cores=2),
    "speedup": lambda: plotting.speedup(RATES, "t", cores=2).figure,
    "step times": lambda: plotting.step_times({"a": (0.05, 0.04, 0.06), "b": (0.1, 0.09, 0.3)}).figure,
    "shares": lambda: (
        plotting.time_shares(
            {"a": SimpleNamespace(compute=0.3, hidden=0.2, communicate=0.2, wait=0.2, other=0.1)}
        ).figure
    ),
    "images": lambda: plotting.images(
        [torch.rand(6, 1, 8, 8), torch.rand(3, 3, 8, 8)], [range(6), range(3)], title="t"
    ),
    "pipeline": lambda: plotting.pipeline(
        {"t": [[("I", 0, 0, 0.0, 0.1), ("F", 1, 0, 0.1, 0.2), ("W", 0, 0, 0.2, 0.3)]]}
    ),
    "served": lambda: (
        plotting.served({"rank 0": [(0.0, 0.5, "a")], "rank 1": [(0.0, 1.0, ""), (0.5, 1.0, "b")]}, "t").figure
    ),
    "staleness": lambda: plotting.staleness({"a": {1: [0, 1], 2: [1]}, "b": {1: [5]}}, "t"),
    "heat": lambda: plotting.heat_maps([("today", TABLE)] * 5),
    "graph": lambda: plotting.graph({"a": 0, "b\n": 3, "c": 3}, [("a", "b\n")], "t", hollow={"c"}),
    "handshake": lambda: plotting.handshake(CALLS, "t"),
    "steps": lambda: plotting.steps(*played("ring", 3), "t"),
    "values": lambda: plotting.steps([torch.tensor([[1.0, 5.0], [2.0, 5.0]]), [[1, 3], ["x", None]]], [[(0, 1, 1)]]),
    "shards": lambda: plotting.shards([("a", [[[1], [None]], [[None], [2]]]), ("b", [[[3]], [[3]]])], ["sum"], "t"),
    "cuts": lambda: plotting.cuts([("a", (8, 4), 0), ("b", (4, 8), 1), ("c", (4,), None)], 4, {"b": "sum"}, "t"),
    "mesh": lambda: plotting.mesh((2, 2), [((0, 1), "1 sum"), ((0, 2), "a\nb")], "t"),
    "sweep": lambda: sweep_panels(
        {n: {"a": curve(6e-5), "b": curve(2e-4)} for n in (2, 4)}, {2: {"a": FIT}, 4: {"a": FIT}}, 2
    ),
    "simulated": lambda: sweep_panels({2: {"a": curve(6e-5)}}, {2: {}}, None, simulated="simulated: 2 ranks, a link"),
    "one step": one_step,
    "many ranks": many_ranks,
}

each_figure = pytest.mark.parametrize("name", FIGURES)


@functools.cache
def figure_of(name):
    """The figure of that name, drawn once for all tests."""
    return FIGURES[name]()


def on_pages(color):
    """The lower of a colour's contrasts on the light page and on the dark one."""
    return min(contrast(to_hex(color), page) for page in PAGES)


def fill_below(figure, text):
    """The opaque colour on which a text stands, None where that is the page: its own box, or the last shape drawn."""
    box = text.get_bbox_patch()
    if box is not None:
        return to_hex(box.get_facecolor())
    extent = text.get_window_extent()
    middle = ((extent.x0 + extent.x1) / 2, (extent.y0 + extent.y1) / 2)
    found = None
    for ax in figure.axes:
        filled = [patch for patch in ax.patches if not isinstance(patch, FancyArrowPatch)]
        shapes = [(p.get_path(), p.get_transform(), p.get_facecolor(), p.get_zorder()) for p in filled]
        for collection in ax.collections:
            faces = collection.get_facecolors()
            paths = collection.get_paths() if len(faces) else []
            shapes += [(path, collection.get_transform(), faces[0], collection.get_zorder()) for path in paths]
        for path, transform, color, _ in sorted(shapes, key=lambda shape: shape[3]):
            if to_rgba(color)[3] == 1 and path.contains_point(middle, transform):
                found = to_hex(color)
    return found


def test_the_colours_read_on_both_pages():
    """Every colour of words and lines has a contrast of nearly 4 or more on white and on #111111; 4.35 is the most."""
    assert max(on_pages(f"#{grey:02X}{grey:02X}{grey:02X}") for grey in range(256)) == on_pages(INK) > 4.3
    with style():
        labels = [f"{axis}tick.{what}" for axis in "xy" for what in ("color", "labelcolor")]
        names = ("text.color", "axes.labelcolor", "axes.edgecolor", *labels)
        assert min(on_pages(matplotlib.rcParams[name]) for name in names) > 3.9
    assert min(on_pages(curve_color(place)) for place in range(24)) >= 4
    assert on_pages(LOST) >= 4


def test_what_is_written_on_a_fill_reads():
    """Black or white has a contrast of 4.5 or more on every colour that a shape is filled with."""
    fills = [*map(rank_color, range(24)), *(color for color, _ in LOOKS.values()), *COLORS.values(), BAD, FAINT, MIXED]
    assert min(contrast(fill, text_color(fill)) for fill in fills) >= 4.5


@each_figure
def test_a_figure_lies_on_the_page(name):
    """It and what is saved of it are transparent, matplotlib-inline asks for no background, and it is narrow enough."""
    figure = figure_of(name)
    assert to_rgba(figure.get_facecolor())[3] == 0
    assert all(to_rgba(ax.get_facecolor())[3] == 0 or not ax.axison for ax in figure.axes)
    stream = io.BytesIO()
    figure.savefig(stream, format="rgba", dpi=20)
    corners = stream.getvalue()[3], stream.getvalue()[-1]  # alpha of the first pixel and of the last
    assert corners == (0, 0)
    if any(ax.axison and ax.get_yticks().size for ax in figure.axes):  # it asks for white where all numbers are dark
        assert _fetch_figure_metadata(figure) is None
    # what would be wider goes on below, but the pictures of many steps
    assert figure.get_figwidth() <= (9.2 if name == "steps" else WIDEST)


@each_figure
def test_every_word_and_line_reads_on_both_pages(name):
    """A word has 4.5 on the shape that it stands on, or nearly 4 on both pages; a line has 3 or more on both."""
    figure = figure_of(name)
    for text in visible_texts(figure):
        if not text.get_text().strip():
            continue
        fill, color = fill_below(figure, text), to_hex(text.get_color())
        reads = on_pages(color) > 3.9 if fill is None else contrast(color, fill) >= 4.5
        assert reads, f"{text.get_text()!r} in {color} on {fill or 'the page'}"
    for ax in figure.axes:
        lines = [line.get_color() for line in ax.lines]
        lines += [color for collection in ax.collections for color in collection.get_edgecolors()[:, :3].tolist()]
        arrows = [patch.get_edgecolor() for patch in ax.patches if isinstance(patch, FancyArrowPatch)]
        lines += arrows + [text.arrow_patch.get_edgecolor() for text in ax.texts if getattr(text, "arrow_patch", None)]
        seen = [to_hex(color) for color in lines if to_hex(color) != "#ffffff"]  # white parts two bars
        assert min(map(on_pages, seen), default=3) >= 3


def test_a_figure_of_your_own_has_the_same_look():
    """Plain matplotlib inside of style() draws on the page, in ink."""
    with style():
        figure, ax = plt.subplots()
        ax.plot([1, 2], label="a")
        ax.legend()
    assert to_rgba(figure.get_facecolor())[3] == to_rgba(ax.get_facecolor())[3] == 0
    assert all(on_pages(label.get_color()) > 3.9 for axis in (ax.xaxis, ax.yaxis) for label in axis.get_ticklabels())
    assert _fetch_figure_metadata(figure) is None
