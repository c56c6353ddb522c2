"""Pictures of an algorithm's steps: they show the states and messages that were given, as PNG and in the player."""

import base64
import html
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import matplotlib
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch

import distlab
from distlab import plotting
from distlab.plotting.style import FAINT, MIXED, rank_color

from .test_plotting import assert_tidy, headless, visible_texts  # noqa: F401 - headless applies by itself

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def ring(n):
    """The chunked ring by its definition: rank r passes on chunk r - s, adding for n - 1 steps, copying for n - 1."""
    state = [[{rank} for _ in range(n)] for rank in range(n)]
    states, messages = [state], []
    for step in range(2 * (n - 1)):
        adds = step < n - 1
        chunks = [(rank - step if adds else rank + 1 - (step - (n - 1))) % n for rank in range(n)]
        messages.append([(r, (r + 1) % n, chunks[r], "reduce" if adds else "copy") for r in range(n)])
        after = [list(row) for row in state]
        for src, dst, chunk, _ in messages[-1]:
            after[dst][chunk] = state[src][chunk] | (state[dst][chunk] if adds else set())
        states.append(state := after)
    return states, messages


def whole_ring(n):
    """The ring that passes whole buffers on, as objects with several fields."""
    states = [[[{(rank - k) % n for k in range(s + 1)}] for rank in range(n)] for s in range(n)]
    fields = {"chunks": range(1), "operation": "reduce"}
    steps = [
        [SimpleNamespace(src=r, dst=(r + 1) % n, origin=(r - s) % n, **fields) for r in range(n)] for s in range(n - 1)
    ]
    return states, steps


class Image(HTMLParser):
    """The attributes of the one image in a piece of HTML."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)
        (self.attributes,) = self.found
        self.svg = base64.b64decode(self.attributes["src"].removeprefix("data:image/svg+xml;base64,"))

    def handle_starttag(self, tag, attributes):
        if tag == "img":
            self.found.append(dict(attributes))


def pictures_of(player):
    """What the SVG inside of a player shows: by picture, its heading, cells as sets of fills, and messages."""
    root = ElementTree.fromstring(Image(player.html).svg)
    shown = []
    for picture in root.findall(f"{SVG}g[@class='picture']"):
        cells = {}
        for group in picture.iter(f"{SVG}g"):
            if group.get("class") == "cell":
                _, *parts = group.findall(f"{SVG}rect")
                cells[group.get("data-at")] = {part.get("fill"): float(part.get("x")) for part in parts}
        moves = [group for group in picture.iter(f"{SVG}g") if group.get("class") == "move"]
        shown.append(SimpleNamespace(heading=picture.find(f"{SVG}text").text, cells=cells, moves=moves))
    return shown


def fill_of(patch):
    """Its fill as the SVG has it; a tint counts as its colour."""
    color = patch.get_facecolor()
    return to_hex(color).upper() if color[3] else "none"


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_the_pictures_show_the_states(n):
    """In every picture each cell has exactly the colours of its set, each at its rank's place, and all at the end."""
    states, messages = ring(n)
    shown = pictures_of(plotting.play(states, messages))
    assert [picture.heading for picture in shown] == [f"step {k + 1}" for k in range(2 * (n - 1))] + ["end"]
    places = {}
    for picture, state in zip(shown, states, strict=True):
        for rank in range(n):
            for chunk in range(n):
                fills = picture.cells[f"{rank},{chunk}"]
                assert set(fills) == {rank_color(owner) for owner in state[rank][chunk]}
                for fill, x in fills.items():
                    assert places.setdefault(fill, x) == x
    assert all(len(fills) == n for fills in shown[-1].cells.values())


def test_the_pictures_show_the_messages():
    """Each message is an arrow from cell to cell: a plus where it adds, a head where it copies; the last has none."""
    states, messages = ring(4)
    *shown, end = pictures_of(plotting.play(states, messages))
    assert end.moves == []
    for picture, step in zip(shown, messages, strict=True):
        found = [(m.get("data-from"), m.get("data-to"), m.find(f"{SVG}circle") is not None) for m in picture.moves]
        assert found == [(f"{s},{c}", f"{d},{c}", operation == "reduce") for s, d, c, operation in step]


def test_a_message_of_several_chunks_is_an_arrow_for_each():
    """Chunks may be a range or a list, and the operation may be left out."""
    state = [[{0}] * 3, [{1}] * 3]
    (first, _) = pictures_of(plotting.play([state, state], [[(0, 1, range(2)), (1, 0, [2])]]))
    assert [(m.get("data-from"), m.get("data-to")) for m in first.moves] == [
        *[("0,0", "1,0"), ("0,1", "1,1"), ("1,2", "0,2")]
    ]


def test_a_message_with_an_origin_carries_what_that_rank_had_at_first():
    """In the ring of whole buffers an arrow has the colour of the rank whose buffer it carries."""
    shown = pictures_of(plotting.play(*whole_ring(3)))
    firsts = [[move.get("data-first") for move in picture.moves] for picture in shown]
    assert firsts == [["0,0", "1,0", "2,0"], ["2,0", "0,0", "1,0"], []]
    colors = [[move.find(f"{SVG}path").get("stroke") for move in picture.moves] for picture in shown[:2]]
    assert colors[1] == [colors[0][2], colors[0][0], colors[0][1]]


def test_the_figure_shows_the_same_as_the_svg():
    """matplotlib draws a box for every box of the SVG, at the same place and in the same colour."""
    states, messages = ring(4)
    player = plotting.play(states, messages, "ring")
    figure = player.figure
    (ax,) = figure.axes
    drawn = {
        (round(p.get_x(), 1), round(p.get_y(), 1), fill_of(p)) for p in ax.patches if isinstance(p, FancyBboxPatch)
    }
    written = set()

    def collect(group, dx, dy):
        x, y = map(float, re.findall(r"[-\d.]+", group.get("transform", "translate(0 0)")))
        for box in group.findall(f"{SVG}rect"):
            if box.get("x"):
                corner = float(box.get("x")) + dx + x, float(box.get("y")) + dy + y
                written.add((*(round(place, 1) for place in corner), box.get("fill")))
        for inner in group.findall(f"{SVG}g"):
            collect(inner, dx + x, dy + y)

    collect(ElementTree.fromstring(Image(player.html).svg), 0, 0)
    assert drawn == written
    assert len(drawn) > 7 * 16 * 2


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_figures_are_tidy_and_fit_a_notebook(n):
    """No text overlaps another or leaves the figure, and no figure is wider than a notebook."""
    for states, messages in (ring(n), whole_ring(n)):
        figure = plotting.steps(states, messages, f"all-reduce on {n} ranks")
        assert_tidy(figure)
        assert figure.get_size_inches()[0] <= 9.2
        texts = [text.get_text() for text in visible_texts(figure)]
        assert texts.count("end") == 1
        assert texts.count("rank 0") == len(
            {t.get_position()[1] for t in figure.axes[0].texts if "step" in t.get_text()}
        )


def test_the_ring_of_four_has_its_two_halves_below_each_other():
    """Seven pictures stand in rows of four and three, each with the names of the ranks."""
    figure = plotting.steps(*ring(4))
    assert [text.get_text() for text in figure.axes[0].texts].count("rank 0") == 2
    rows = [t.get_position()[1] for t in figure.axes[0].texts if t.get_text()[:4] in ("step", "end")]
    assert [rows.count(y) for y in sorted(set(rows))] == [4, 3]


def test_values_have_the_colour_of_their_origin():
    """Numbers, texts and tensors are written; a value that one rank had at first keeps its colour, a sum is dark."""
    first, last = torch.tensor([[1.0, 5.0], [10.0, 5.0]]), [[1, 11], ["x", None]]
    figure = plotting.steps([first, last], [[(0, 1, 1)]], headings=["before", "after"])
    (ax,) = figure.axes
    assert_tidy(figure)
    texts = [text.get_text() for text in ax.texts]
    assert [t for t in texts if t in ("1", "5", "10", "11", "x", "before", "after")] == [
        *["before", "1", "1", "5", "10", "5"],  # the second "1" and the next row's are chunk and value
        *["after", "1", "1", "11", "x"],
    ]
    boxes = [p for p in ax.patches if isinstance(p, FancyBboxPatch)]
    fills = [to_hex(p.get_facecolor()).upper() for p in boxes if p.get_facecolor()[3] == 1]  # a lane is a tint
    for color, count in ((rank_color(0), 3), (rank_color(1), 2), (FAINT, 2), (MIXED, 2)):
        assert fills.count(color) == count  # a lane's name has one of its rank's colour


def test_a_picture_of_one_state():
    """Without any message there is one picture, the end."""
    assert [picture.heading for picture in pictures_of(plotting.play([[[{0}]]], []))] == ["end"]
    assert_tidy(plotting.steps([[[{0}]]], []))


def test_the_bundle_has_a_form_for_every_viewer():
    """HTML with the player, a PNG for where HTML is not shown, and a line of text."""
    player = plotting.play(*ring(3), title="ring")
    bundle = player._repr_mimebundle_()
    assert sorted(bundle) == ["image/png", "text/html", "text/plain"]
    assert bundle["text/plain"] == repr(player) == "<ring: 4 steps to play>"
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert repr(plotting.play([[[{0}], [{1}]]] * 2, [[(0, 1, 0)]])) == "<1 step to play>"


def test_the_player_needs_nothing_from_elsewhere():
    """No script, style or image is loaded from anywhere, and no title can break the page or the script."""
    title = """</div><script>alert("1")</script>'&"""
    player = plotting.play(*ring(3), title=title)
    image = Image(player.html)
    assert image.attributes["data-title"] == title
    assert image.attributes["alt"].startswith(title)
    assert ElementTree.fromstring(image.svg).find(f"{SVG}text").text == title
    outside = player.html.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|<script|@import|url\(", html.unescape(outside).replace(title, ""))
    assert image.svg.isascii()


DRAW = """
import sys
from distlab import plotting
owners = [frozenset({k, 7 - k, 3}) for k in range(8)]
states = [[[owner] for owner in owners]] * 2
sys.stdout.write(plotting.play(states, [[(0, 1, 0, "reduce")]], "eight")._repr_mimebundle_()["%s"])
"""


@pytest.mark.parametrize("kind", ["text/html", "image/png"])
def test_drawn_again_it_has_the_same_bytes(kind):
    """The output is equal in another process with other hashes of sets, and with other settings of the user."""
    player = plotting.play(*ring(4), title="ring")
    with matplotlib.rc_context({"font.size": 20, "savefig.facecolor": "red", "figure.autolayout": True}):
        again = plotting.play(*ring(4), title="ring")._repr_mimebundle_()
    assert again[kind] == player._repr_mimebundle_()[kind]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", DRAW % kind],
            cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True, timeout=60,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(outputs) == 1


STATE = [[{0}, {0}], [{1}, {1}]]
GIVE = re.escape("Call steps(algorithms.holdings(plan), plan.steps).")
FORM = r"\(src, dst, chunks\) or \(src, dst, chunks, operation\)"


@pytest.mark.parametrize(
    ("states", "messages", "message"),
    [
        ([], [], rf"states must be a list that is not empty, got \[\]. {GIVE}"),
        (5, [], f"states must be a list that is not empty, got 5. {GIVE}"),
        ([[5]], [], rf"states\[0\]\[0\] must be a list that is not empty, got 5. {GIVE}"),
        (
            [STATE, [[{0}], [{1}]]],
            [[]],
            rf"states must be of as many ranks, .* got \[\(1, 1\), \(2, 2\)\]. {GIVE}",
        ),
        ([[[{0}]] * 9], [], "states must be states of 1 to 8 ranks, got 9. Draw a smaller case: it shows the same."),
        ([[[{0}] * 17]], [], "states must be states of 1 to 16 chunks, got 17."),
        (
            [STATE],
            [[]],
            r"messages must be one list of messages between each two of the 1 states \(0\), got 1. "
            "Give the state before the first step as well as after each.",
        ),
        ([[[{2}], [{1}]]], [], r"states must be of sets of ranks from 0 to 1, got \{2\}."),
        ([[[object]]], [], "states must be of sets of ranks, numbers, texts or None, got <class 'object'>."),
        ([STATE] * 2, [[(0, 0, 1)]], rf"messages\[0\]\[0\] must be from one rank to another, of 0 to 1: {FORM}, got"),
        ([STATE] * 2, [[(0, 2, 1)]], rf"messages\[0\]\[0\] must be from one rank to another, of 0 to 1: {FORM}, got"),
        ([STATE] * 2, [[(0, 1, 2)]], rf"messages\[0\]\[0\] must be of chunks from 0 to 1: {FORM}, got \(0, 1, 2\)."),
        ([STATE] * 2, [[(0, 1, [])]], r"messages\[0\]\[0\] must be of chunks from 0 to 1"),
        ([STATE] * 2, [[(0, 1, 1, "max")]], r'messages\[0\]\[0\] must be with the operation "reduce" or "copy"'),
        ([STATE] * 2, [[(0, 1)]], rf"messages\[0\]\[0\] must be {FORM}, got \(0, 1\)."),
        ([STATE] * 2, [[7]], rf"messages\[0\]\[0\] must be {FORM}, got 7."),
    ],
)
def test_what_does_not_fit_is_refused(states, messages, message):
    """States and messages that cannot be drawn are refused with the rule, the value and what to give."""
    for draw in (plotting.steps, plotting.play):
        with pytest.raises(distlab.ArgumentError, match=f"^{message}"):
            draw(states, messages)


def test_headings_fit_the_states():
    """A heading for each picture, or none."""
    with pytest.raises(distlab.ArgumentError, match=r"^headings must be as many as there are states \(1\), got \[\]\."):
        plotting.steps([STATE], [], headings=[])
