"""Each figure, once: what is written on it, that it is tidy, and that it can be read."""

import io
import re

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.pylabtools import select_figure_formats
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex, to_rgba
from matplotlib.patches import FancyArrowPatch, Patch
from PIL import Image

from distlab import plotting
from distlab.plotting.bars import ACTIVITY_LOOKS, outline
from distlab.plotting.describing import along, counted, number
from distlab.plotting.drawing import with_alt
from distlab.plotting.lanes import SHARES
from distlab.plotting.palette import ALGORITHMS, MODEL_COLOR, OTHERS, curve_colors, known_color
from distlab.plotting.style import (
    CURVE_COLORS,
    FAINT,
    INK,
    MIXED,
    PAGE,
    SHAPE_CONTRAST,
    WORD_CONTRAST,
    contrast,
    edge_color,
    filled,
    line_color,
    new_figure,
    rank_color,
    style,
    text_color,
)
from distlab_course import figures
from distlab_course.figures.in_memory import PART_LOOKS
from tests.unit.plotting import gallery
from tests.unit.plotting.conftest import assert_tidy, texts, visible_texts

WIDEST = 7.5  # inches: read in a narrow window without scrolling
WIDER = {"steps": 9.2, "clocks": 8.6}  # what would be wider goes on below, but for these


def on_page(color):
    """A colour's contrast on the figure's page."""
    return contrast(to_hex(color), PAGE)


def fill_below(figure, text):
    """The opaque colour below a text: its own box, or the last shape; None for the page."""
    box = text.get_bbox_patch()
    if box is not None:
        return to_hex(box.get_facecolor())
    extent = text.get_window_extent()
    middle = ((extent.x0 + extent.x1) / 2, (extent.y0 + extent.y1) / 2)
    below = None
    for shape, face, path in sorted(filled_shapes(figure), key=lambda one: one[0].get_zorder()):
        is_opaque = to_rgba(face)[3] == 1
        if is_opaque and path.contains_point(middle, shape.get_transform()):
            below = to_hex(face)
    return below


def filled_shapes(figure):
    """Each shape of a figure with its colour and its outline, in the order of drawing."""
    for ax in figure.axes:
        for patch in ax.patches:
            if not isinstance(patch, FancyArrowPatch):
                yield patch, patch.get_facecolor(), patch.get_path()
        for collection in ax.collections:
            for face in collection.get_facecolors()[:1]:
                for path in collection.get_paths():
                    yield collection, face, path


def test_a_figure_is_there_for_those_who_do_not_see_it():
    """A deadlock says who waits; another figure says what is written on it."""
    stuck = figures.who_waits(gallery.STUCK)
    words = (
        "rank 0 waits for rank 1, rank 1 waits for rank 2, rank 3 waits for rank 1, "
        "rank 2 has finished"
    )
    assert stuck.in_words() == f"who waits for whom: {words}"
    assert stuck._repr_mimebundle_() == ({}, {"image/png": {"alt": stuck.in_words()}})
    assert repr(stuck).startswith("<Figure size ")
    written = new_figure(2, 2)
    written.add_subplot(title="a title", xlabel="epoch")
    assert written.in_words() == "a title, epoch"
    image = with_alt((b"png", {"width": 7}), 'a "b" < c')["text/html"]
    assert 'src="data:image/png;base64,cG5n" alt="a &quot;b&quot; &lt; c" width="7"' in image


@pytest.mark.parametrize("is_person", [False, True])
def test_a_notebook_has_sharp_pictures(monkeypatch, is_person):
    """Half as many pixels again as the page has; its size and its words stand beside the PNG."""
    shell = InteractiveShell()
    monkeypatch.setattr("distlab.plotting.drawing.notebook_shell", lambda: shell)
    monkeypatch.setattr("distlab.plotting.drawing.is_for_a_person", lambda: is_person)
    figure = figures.who_waits(gallery.STUCK)
    words = {"image/png": {"alt": figure.in_words()}}
    assert figure._repr_mimebundle_() == ({}, words)  # the person has chosen another format
    select_figure_formats(shell, {"png"})
    shown, about = shell.display_formatter.format(figure)
    width, height = Image.open(io.BytesIO(shown["image/png"])).size
    about = about["image/png"]
    assert about["alt"] == figure.in_words()
    assert abs(1.5 * about["width"] - width) < 1
    assert abs(1.5 * about["height"] - height) < 1
    assert ("text/html" in shown) == is_person
    select_figure_formats(shell, {"svg"})
    shown, _ = shell.display_formatter.format(figure)
    assert {*shown} == {"image/svg+xml", "text/plain"}


@pytest.mark.parametrize("name", gallery.FIGURES)
def test_a_figure(name):
    """Its words are there, none overlaps another or is cut off, and it is narrow enough.

    It has a white page of its own, so that a dark theme changes nothing.
    A word has a contrast of 4.5 on the shape on which it stands, or 7 on the page; a line has 3 or
    more, and so has a filled shape or its edge.
    """
    draw, arguments, words = gallery.FIGURES[name]
    made = draw(*arguments)
    figure = getattr(made, "figure", made)
    assert words <= {*texts(figure)}
    if name not in gallery.MAPS:  # a lesson writes the words of a map beside it
        assert_says_what_it_shows(figure)
    assert_tidy(figure)
    for part in (figure, *figure.axes):
        assert to_hex(part.get_facecolor()).upper() == PAGE
    assert figure.get_figwidth() <= WIDER.get(name, WIDEST)
    for text in visible_texts(figure):
        if text.get_text().strip():
            assert_can_be_read(figure, text)
    for ax in figure.axes:
        assert min(map(on_page, line_colors(ax) - {"#ffffff"}), default=3) >= 3
    for fill, edge in fills_and_edges(figure):
        assert max(on_page(fill), on_page(edge)) >= SHAPE_CONTRAST, fill


def assert_says_what_it_shows(figure):
    """Its alternative text has numbers or ranks, and is not too long to be listened to."""
    assert re.search(r"\d", figure.alt), figure.alt
    assert len(figure.alt) <= 1000
    assert "\n" not in figure.alt


def test_the_words_of_a_figure_have_its_numbers():
    """Of a curve the ends and what is above and below; of the rest what a label would say."""
    measured = plotting.time_against_size(gallery.CURVES, "a title")
    words = "a title, time of one call: gloo: 60 µs at 4 B, 4.25 ms at 8 MiB; "
    assert measured.figure.in_words().startswith(words)
    plotting.badge(measured, gallery.SIMULATED)
    assert measured.figure.in_words().endswith(f" ({gallery.SIMULATED})")
    cells = plotting.before_after([[1, 2], [3, 4]], [[4, 6], None], "a call")
    held = "a call: rank 0 held 1, 2 and then 4, 6; rank 1 held 3, 4 and then -"
    assert cells.in_words() == held
    ups = ([1, 2, 4, 8], [1.0, 3.0, 0.5, 2.0])
    found = along(*ups, counted("ranks"), number)
    assert found == "1 at 1 rank, 2 at 8 ranks, at least 0.5 at 4 ranks, at most 3 at 2 ranks"


def assert_can_be_read(figure, text):
    """A text has enough contrast on what it stands on."""
    fill = fill_below(figure, text)
    color = to_hex(text.get_color())
    where = f"{text.get_text()!r} in {color} on {fill or 'the page'}"
    if fill in (None, PAGE.lower()):
        assert on_page(color) >= WORD_CONTRAST, where
    else:
        assert contrast(color, fill) >= 4.5, where


def fills_and_edges(figure):
    """The fill of each opaque shape that is not white, and its edge, or its fill without one."""
    legends = [handle for legend in figure.legends for handle in legend.legend_handles]
    patches = [patch for ax in figure.axes for patch in ax.patches]
    for patch in (*patches, *[handle for handle in legends if isinstance(handle, Patch)]):
        if not isinstance(patch, FancyArrowPatch):
            yield from opaque(patch.get_facecolor(), patch.get_edgecolor(), patch.get_linewidth())
    for collection in [one for ax in figure.axes for one in ax.collections]:
        if not isinstance(collection, QuadMesh):  # a map
            edges = [*collection.get_edgecolors()[:1], None]
            for fill in collection.get_facecolors()[:1]:
                yield from opaque(fill, edges[0], collection.get_linewidths()[0])


def opaque(fill, edge, width):
    """A fill and its edge, unless one sees through it, or it is white like the page."""
    red, green, blue, opacity = to_rgba(fill)
    if opacity == 1 and (red, green, blue) != (1, 1, 1):
        has_edge = width > 0 and edge is not None and to_rgba(edge)[3] == 1
        yield fill, edge if has_edge else fill


def line_colors(ax):
    """The colours of lines, arrows and edges.

    An edge in the colour of the fill is none.
    """
    colors = {to_hex(line.get_color()) for line in ax.lines}
    arrows = [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]
    arrows += [text.arrow_patch for text in ax.texts if getattr(text, "arrow_patch", None)]
    colors |= {to_hex(arrow.get_edgecolor()) for arrow in arrows}
    for collection in ax.collections:
        edges = {to_hex(color) for color in collection.get_edgecolors()}
        colors |= edges - {to_hex(color) for color in collection.get_facecolors()}
    return colors


def test_style_is_restored():
    """Neither style() nor a figure changes the user's settings, and no figure stays with pyplot."""
    assert all(getattr(plotting, name) is not None for name in plotting.__all__)
    before = dict(matplotlib.rcParams)
    with style():
        assert matplotlib.rcParams["svg.hashsalt"] == "distlab"
    plotting.before_after([1, 2], [3, None])
    assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == []


def test_the_shares_of_a_map_are_those_of_the_drawn_area():
    """One batch in three is more than half of a logarithmic axis: log 3 of log 7."""
    bandwidths = np.geomspace(1e9, 1e11, 11)
    small_batches = np.array([[1.0] * 11, [3.0] * 11, [3.0] * 11])
    seconds = {"a": small_batches, "b": np.full((3, 11), 2.0)}
    tokens = 1024 * np.arange(1, 4)
    ax = figures.quickest(seconds, bandwidths, tokens, "a model", {}, 8)
    assert "a in 56% of the map; b in 44% of the map" in ax.figure.alt


def test_an_algorithm_keeps_its_colour():
    """A rank has its own, the model's line also, and no colour is there twice."""
    ring, doubling = (curve_colors([name])[name] for name in ("ring", "recursive doubling"))
    together = ["copy", "gloo", "my ring", "whole ring", "gloo's ring", "recursive doubling"]
    together += ["tree", "halving doubling", "rank 1", "two levels", "by hosts, 4 x 4", "string"]
    colors = curve_colors(together)
    assert list(colors) == together
    assert (colors["my ring"], colors["recursive doubling"]) == (ring, doubling)
    assert colors["two levels"] != colors["by hosts, 4 x 4"]
    assert colors["rank 1"] == line_color(1, WORD_CONTRAST)
    assert len({*colors.values()}) == len(together)
    assert {known_color(name) for name in ("string", "copy", "a small model")} == {""}
    own = {color for color, _ in ALGORITHMS.values()}
    assert own == {*OTHERS}
    others = curve_colors(["all_reduce", "broadcast", "all_gather", "reduce_scatter"])
    assert ring not in others.values()
    assert len(own) == len(ALGORITHMS)
    assert min(map(on_page, own)) >= WORD_CONTRAST
    ax = figures.time_against_ranks({"ring": ([2, 4], *[[1, 2]] * 3)}, "", {"the law": ([2], [1])})
    assert to_hex(ax.lines[-1].get_color()).upper() == MODEL_COLOR


def test_the_colours_can_be_read():
    """Words have 7 on the page, lines 4, words on fills 4.5; no curve has a rank's colour."""
    ranks = [rank_color(rank) for rank in range(24)]
    assert len({*ranks, *CURVE_COLORS}) == 24 + len(CURVE_COLORS)
    words = [line_color(rank, WORD_CONTRAST) for rank in range(24)]
    for color in (INK, *CURVE_COLORS, *words):
        assert on_page(color) >= WORD_CONTRAST
    for rank in range(24):
        assert on_page(line_color(rank)) >= 4
    for color in (*ranks, FAINT, MIXED, *CURVE_COLORS):
        assert on_page(edge_color(color)) >= SHAPE_CONTRAST
        assert filled(color)["edgecolor"] in ("none", edge_color(color))
    for look in (*ACTIVITY_LOOKS.values(), *SHARES, *PART_LOOKS.values()):
        edge = outline(look)["edgecolor"]
        assert max(on_page(look.fill), on_page(edge)) >= SHAPE_CONTRAST
    looks = [look.fill for look in (*ACTIVITY_LOOKS.values(), *SHARES)]
    for fill in (*ranks, FAINT, MIXED, *looks):
        assert contrast(fill, text_color(fill)) >= 4.5


# --- what the shapes say ---


def test_bars_that_overlap_are_one_below_the_other():
    """A lane has a row for each; a text that does not fit is left out."""
    bars = [
        (10.0, 10.5, "forward"),
        (10.1, 10.6, "much too long for its bar, and so it is left out altogether"),
    ]
    ax = plotting.spans({"rank 0": bars, "rank 1": [(10.7, 11.0, "")]})
    assert [text.get_text() for text in ax.texts] == ["forward"]
    boxes = []
    for collection in ax.collections:
        boxes += [path.get_extents() for path in collection.get_paths()]
    first, second, other = sorted(boxes, key=lambda box: box.x0)
    assert [round(box.x0, 3) for box in (first, second, other)] == [0, 0.1, 0.7]
    assert first.y1 < second.y0 < second.y1 < other.y0


def test_a_theory_has_the_colour_of_its_curve():
    """The points that it explains are not joined, and it may go on beyond them."""
    theory = {"ring": ([2, 4, 64], [1, 2, 3])}
    ax = figures.time_against_ranks({"ring": ([2, 4], *[[1, 2]] * 3)}, "", theory)
    points = ax.containers[0].lines[0]
    line = ax.lines[-1]
    assert (points.get_linestyle(), line.get_linestyle()) == ("None", "--")
    assert points.get_color() == line.get_color()


def test_a_training_that_begins():
    """One point, and values below zero, are drawn; a line's colour is fixed."""
    (ax,) = plotting.training_curves({"loss": {"rank 0": ([], []), "rank 1": ([1], [-2.0])}}).axes
    assert [text.get_text() for text in ax.texts] == ["rank 1"]
    assert ax.lines[0].get_color() == line_color(1, WORD_CONTRAST)
    assert ax.get_ylim()[0] < -2
