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
    return [patch for patch in figure.axes[0].patches if isinstance(patch, kind)]


def cells_of(figure, states):
    """The figure's cells by picture, rank and chunk."""
    places = [
        (k, r, c)
        for k, state in enumerate(states)
        for r, row in enumerate(state)
        for c in range(len(row))
    ]
    return dict(zip(places, patches_of(figure, FancyBboxPatch), strict=True))


def test_the_pictures_show_the_states():
    """In every picture each cell has exactly the colours of its set, each at its rank's place."""
    states, messages = played("ring", 3)
    figure = plotting.steps(states, messages)
    places = set()
    parts = [part for part in patches_of(figure, Rectangle) if part.get_facecolor()[3] == 1]
    for (k, rank, chunk), cell in cells_of(figure, states).items():
        inside = [part for part in parts if cell.get_bbox().contains(*part.get_xy())]
        colors = [to_hex(part.get_facecolor()).upper() for part in inside]
        assert sorted(colors) == sorted(map(rank_color, states[k][rank][chunk]))
        places |= {
            (color, round(part.get_x() - cell.get_x(), 6))
            for color, part in zip(colors, inside, strict=True)
        }
    assert len(places) == 3


@pytest.mark.parametrize(("states", "messages"), [played("ring", 3), played("whole ring", 3)])
def test_the_pictures_and_the_player_show_the_messages(states, messages):
    """A message is an arrow in the colour of the rank whose numbers it carries."""
    player = plotting.play(states, messages, "ring")
    data = json.loads(attribute(player, "data-steps"))
    cells = cells_of(player.figure, states)
    arrows = iter(patches_of(player.figure, FancyArrowPatch))
    corners = {place: [cell.get_x(), cell.get_y()] for place, cell in cells.items()}
    for k, (picture, step) in enumerate(zip(data["pictures"], [*messages, []], strict=True)):
        left, top = picture["corner"]
        right = left + data["size"][0] - data["names"]
        bottom = top + data["size"][1]
        assert all(
            left < x < right and top < y < bottom
            for place, (x, y) in corners.items()
            if place[0] == k
        )
        for message, flight in zip(step, picture["moves"], strict=True):
            origin = message.origin
            (chunk,) = message.chunks
            start = corners[k, message.src, chunk]
            end = corners[k, message.dst, chunk]
            looks = start if origin is None else corners[0, origin, chunk]
            assert flight == {"looks": looks, "start": start, "end": end}
            arrow = next(arrows)
            # of its curve; a head is behind it
            (_, tail), *_, (_, tip) = arrow.get_path().vertices[:4]
            assert start[1] < tail < start[1] + CELL_HEIGHT
            assert end[1] < tip < end[1] + CELL_HEIGHT
            assert to_hex(arrow.get_edgecolor()).upper() == line_color(
                message.src if origin is None else origin
            )
    assert list(arrows) == []
    adding = [message for step in messages for message in step if message.operation == "reduce"]
    assert len(patches_of(player.figure, Circle)) == len(adding)
    assert [picture["heading"] for picture in data["pictures"]][-2:] == [
        f"step {len(messages) - 1}",
        "end",
    ]
    assert data["cell"] == [cells[0, 0, 0].get_width(), CELL_HEIGHT]


def test_pictures_that_do_not_fit_side_by_side_go_on_below():
    """Rows are filled alike, and each has the names of the ranks."""
    figure = plotting.steps(*played("ring", 4))
    found = [(text.get_text(), text.get_position()[1]) for text in visible_texts(figure)]
    rows = [y for text, y in found if text[:4] == "step" or text == "end"]
    assert [rows.count(y) for y in sorted({*rows})] == [4, 3]
    assert [text for text, _ in found].count("rank 0") == 2


def test_the_player_needs_nothing_from_elsewhere():
    """No script, style or image comes from elsewhere, and no title breaks the page."""
    title = """</div><script>alert("1")</script>'&"""
    player = plotting.play(*played("ring", 3), title=title)
    assert json.loads(attribute(player, "data-steps"))["title"] == title
    assert attribute(player, "alt").startswith(title)
    assert not re.search(
        r"<script|https?:|@import|url\(", player.html.replace("http://www.w3.org/2000/svg", "")
    )
    assert player.html.isascii()
    bundle = player._repr_mimebundle_()
    assert bundle["text/plain"].endswith(": 4 steps to play>")
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
