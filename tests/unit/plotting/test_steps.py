"""Pictures of an algorithm's steps show the given states and messages."""

import base64
import html
import json
import re

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

from distlab import plotting
from distlab.plotting.stepping import CELL_HEIGHT
from distlab.plotting.style import line_color, rank_color
from tests.unit.plotting.conftest import visible_texts
from tests.unit.plotting.gallery import played


def attribute(player, name):
    """An attribute of the one image in the player's HTML."""
    (value,) = re.findall(f' {name}="([^"]*)"', player.html)
    return html.unescape(value)


def patches_of(figure, kind):
    """The patches of a kind, in the order of drawing."""
    return [patch for patch in figure.axes[0].patches if isinstance(patch, kind)]


def cells_of(figure, states):
    """The figure's cells by picture, rank and chunk."""
    places = []
    for picture, state in enumerate(states):
        for rank, row in enumerate(state):
            places += [(picture, rank, chunk) for chunk in range(len(row))]
    return dict(zip(places, patches_of(figure, FancyBboxPatch), strict=True))


def color_of(patch):
    """The colour of a filled shape, as `rank_color` gives it."""
    return to_hex(patch.get_facecolor()).upper()


def test_the_pictures_show_the_states():
    """In every picture each cell has exactly the colours of its set, each at its rank's place."""
    states, messages = played("ring", 3)
    figure = plotting.steps(states, messages)
    parts = [part for part in patches_of(figure, Rectangle) if part.get_facecolor()[3] == 1]
    places = set()
    for (picture, rank, chunk), cell in cells_of(figure, states).items():
        inside = [part for part in parts if cell.get_bbox().contains(*part.get_xy())]
        wanted = [rank_color(member) for member in states[picture][rank][chunk]]
        assert sorted(map(color_of, inside)) == sorted(wanted)
        for part in inside:
            places.add((color_of(part), round(part.get_x() - cell.get_x(), 6)))
    assert len(places) == 3


MESSAGES = [played("ring", 3), played("whole ring", 3)]


@pytest.mark.parametrize(("states", "messages"), MESSAGES)
def test_the_player_knows_where_the_messages_begin_and_end(states, messages):
    """A message looks like its origin's first cell, and moves between cells of its picture."""
    player = plotting.play(states, messages, "ring")
    data = json.loads(attribute(player, "data-steps"))
    cells = cells_of(player.figure, states)
    corners = {place: [cell.get_x(), cell.get_y()] for place, cell in cells.items()}
    for number, (picture, step) in enumerate(zip(data["pictures"], [*messages, []], strict=True)):
        left, top = picture["corner"]
        right = left + data["size"][0] - data["names"]
        bottom = top + data["size"][1]
        for (shown_in, _, _), (x, y) in corners.items():
            if shown_in == number:
                assert left < x < right
                assert top < y < bottom
        for message, move in zip(step, picture["moves"], strict=True):
            (chunk,) = message.chunks
            start = corners[number, message.src, chunk]
            end = corners[number, message.dst, chunk]
            looks = start if message.origin is None else corners[0, message.origin, chunk]
            assert move == {"looks": looks, "start": start, "end": end}
    headings = [picture["heading"] for picture in data["pictures"]]
    assert headings[-2:] == [f"step {len(messages) - 1}", "end"]
    assert data["cell"] == [cells[0, 0, 0].get_width(), CELL_HEIGHT]


@pytest.mark.parametrize(("states", "messages"), MESSAGES)
def test_the_pictures_show_the_messages(states, messages):
    """A message is an arrow in the colour of the rank whose numbers it carries."""
    figure = plotting.steps(states, messages)
    cells = cells_of(figure, states)
    arrows = iter(patches_of(figure, FancyArrowPatch))
    adding = 0
    for picture, step in enumerate(messages):
        for message in step:
            (chunk,) = message.chunks
            start = cells[picture, message.src, chunk].get_y()
            end = cells[picture, message.dst, chunk].get_y()
            arrow = next(arrows)
            # of its curve; a head is behind it
            (_, tail), *_, (_, tip) = arrow.get_path().vertices[:4]
            assert start < tail < start + CELL_HEIGHT
            assert end < tip < end + CELL_HEIGHT
            carried = message.src if message.origin is None else message.origin
            assert to_hex(arrow.get_edgecolor()).upper() == line_color(carried)
            if message.operation == "reduce":
                adding += 1
    assert list(arrows) == []
    assert len(patches_of(figure, Circle)) == adding


def test_pictures_that_do_not_fit_side_by_side_go_on_below():
    """Rows are filled alike, and each has the names of the ranks."""
    figure = plotting.steps(*played("ring", 4))
    heights = []
    names = 0
    for text in visible_texts(figure):
        written = text.get_text()
        if written.startswith("step") or written == "end":
            heights.append(text.get_position()[1])
        if written == "rank 0":
            names += 1
    assert [heights.count(height) for height in sorted({*heights})] == [4, 3]
    assert names == 2


def test_the_player_needs_nothing_from_elsewhere():
    """No script, style or image comes from elsewhere, and no title breaks the page."""
    title = """</div><script>alert("1")</script>'&"""
    player = plotting.play(*played("ring", 3), title=title)
    assert json.loads(attribute(player, "data-steps"))["title"] == title
    assert attribute(player, "alt").startswith(title)
    elsewhere = r"<script|https?:|@import|url\("
    assert not re.search(elsewhere, player.html.replace("http://www.w3.org/2000/svg", ""))
    assert player.html.isascii()
    bundle = player._repr_mimebundle_()
    assert bundle["text/plain"].endswith(": 4 steps to play>")
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
