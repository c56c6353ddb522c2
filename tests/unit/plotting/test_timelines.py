"""The space-time diagram: what it draws of which event, that texts keep apart, and that nothing ends in a smear."""

import io

import pytest
from matplotlib.colors import to_hex

from distlab.plotting import space_time
from distlab.plotting.lanes import COLUMN, LOOKS
from distlab.plotting.style import curve_color
from distlab.plotting.timelines import CROSSINGS, FEW, LOST, WIDE, compose, remarks
from distlab.traces.events import Collective, Event, Message
from tests.unit.plotting.conftest import assert_tidy, texts
from tests.unit.plotting.scenes import GROUP, collective, halves, many, message


def scene_of(ranks, events, messages=(), window=(0.0, 0.1)):
    return compose(ranks, events, messages, [], window)


def boxes_of(*events):
    """The boxes of a picture of 100 ms as (look, left, right), in ms."""
    boxes = sorted(scene_of([0, 1], events).boxes, key=lambda box: box.left)
    names = {look: name for name, look in LOOKS.items()}
    return [(names[box.look], round(100 * box.left / WIDE, 2), round(100 * box.right / WIDE, 2)) for box in boxes]


def test_a_call_is_cut_where_it_stops_to_wait():
    """Waiting is hatched, what follows is full; a call whose partner never came is hatched as a whole."""
    m = message(0, 1, 0, 20, 30)
    assert boxes_of(m.send) == [("wait", 0, 20), ("move", 20, 30)]
    assert boxes_of(m.recv) == [("move", 20, 30)]
    assert boxes_of(Event(0, "send", "send", 0.0, 0.03, ready=float("inf"))) == [("wait", 0, 30)]
    assert boxes_of(Event(0, "send", "send", 0.0, 0.03)) == [("move", 0, 30)]
    assert boxes_of(Event(0, "backward", "backward", 0.0, 0.03)) == [("backward", 0, 30)]


def test_narrow_bars_become_columns_of_shares():
    """Bars too narrow to be seen share a column, by their share of its time; one that is alone is drawn wider."""
    pixel = 0.1 / WIDE
    busy = [Event(0, "compute", "mm", at * pixel, (at + 0.5) * pixel) for at in range(int(COLUMN))]
    scene = scene_of([0], busy)
    (box,) = scene.boxes
    assert (scene.columns, box.left, box.right, box.bottom) == (1, 0, COLUMN, scene.lanes[0].under)
    assert (box.bottom - box.top) / scene.lanes[0].under == pytest.approx(0.5)
    scene = scene_of([0], busy[:1])
    assert (scene.columns, scene.boxes[0][1:5]) == (0, (0, 2, 0, scene.lanes[0].under))


def test_an_arrow_leaves_when_data_can_move():
    """It starts in the sender's bar when both sides are there, ends at the receiver's, and has the sender's colour.

    A bar has its call's name and partner, a collective its bytes; the legend explains what is there and nothing else.
    """
    m = message(1, 0, 0, 20, 30, num_bytes=4000)
    scene = scene_of([0, 1], halves([m]), [m])
    (arrow,) = scene.arrows
    assert arrow.tail == (pytest.approx(0.2 * WIDE), (scene.lanes[1].top + scene.lanes[1].under) / 2)
    assert arrow.head == (pytest.approx(0.3 * WIDE), scene.lanes[0].bottom)
    reduced = Event(0, "collective", "all_reduce", 0.04, 0.09, ready=0.04, group=GROUP, num_bytes=1_000_000)
    figure = space_time([0, 1], [*halves([m]), reduced], [m])
    colors = {to_hex(c) for collection in figure.axes[0].collections for c in collection.get_facecolors()}
    assert curve_color(1).lower() in colors
    assert {"4 kB", "send → 0", "recv ← 1", "all_reduce 1 MB"} <= {*texts(figure)}
    legend = ["communicating", "waiting for a partner", "message, coloured by sender"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == legend


def test_a_message_without_a_partner_is_drawn_as_one():
    """A cross and words for a send that nobody received and a recv that nothing came for; none where the partner was
    not traced: it is not missing but unknown."""
    what = {"ready": float("inf"), "group": GROUP, "tag": 0, "num_bytes": 4}
    send = Event(0, "send", "send", 0.0, 0.01, peer=1, **what)
    recv = Event(1, "recv", "recv", 0.001, 0.01, peer=0, **what)
    lost = [Message(0, 1, 0, GROUP, 4, send, None), Message(0, 1, 3, GROUP, 4, None, recv)]
    figure = space_time([0, 1], [send, recv], lost)
    words = {"rank 1 never received it", "rank 0 never sent it", "without a partner"}
    assert words <= {*texts(figure)}
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert [to_hex(line.get_color()).upper() for line in crosses] == [LOST] * 2
    lanes = scene_of([0, 1], [send, recv], lost).lanes
    assert lanes[0].bottom < crosses[0].get_ydata()[0] < crosses[1].get_ydata()[0] < lanes[1].top
    unknown = Message(0, 1, 0, GROUP, 4, send, None, traced=False)
    assert "without a partner" not in texts(space_time([0], [send], [unknown]))
    assert_tidy(figure)


def test_the_last_rank_of_a_collective_is_marked():
    """A dotted line where everybody has come; none where no moment is known."""
    whole = collective([0, 4, 2], 6)
    figure = space_time([0, 1, 2], whole.events, (), [whole], window=(0.0, 0.01))
    assert any(list(line.get_xdata()) == pytest.approx([0.4 * WIDE] * 2) for line in figure.axes[0].lines)
    assert "everybody has come" in texts(figure)
    open_ended = Collective("all_reduce", GROUP, whole.events[:2], False)
    assert "everybody has come" not in texts(space_time([0, 1], open_ended.events, (), [open_ended]))


def test_a_window_shows_a_part():
    """Only what overlaps the window is laid out; the axis is in milliseconds."""
    window = (0.010, 0.012)
    events, messages = many(4, 50)
    scene = scene_of(range(4), events, messages, window)
    assert all(e.end >= window[0] and e.start <= window[1] for e in scene.spans)
    assert 0 < sum(len(arrow.sizes) for arrow in scene.arrows) <= len(messages)
    figure = space_time(range(4), events, messages, window=window)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()][:2] == ["10.0", "10.5"]
    assert_tidy(figure)


@pytest.mark.parametrize(("ranks", "steps"), [(4, 12), (16, 320)])
def test_it_stays_readable(ranks, steps):
    """From a few events to thousands: few arrows and boxes, words that keep apart, a small file; and it says so."""
    events, messages = many(ranks, steps)
    scene = scene_of(range(ranks), events, messages, None)
    assert len(scene.arrows) <= CROSSINGS * ranks
    assert len(scene.boxes) <= 6 * ranks * WIDE / COLUMN
    drawn = sum(len(arrow.sizes) for arrow in scene.arrows)
    assert drawn == sum(m.src != m.dst for m in messages)
    notes = " ".join(remarks(scene))
    assert ("are drawn as" in notes) == (len(scene.arrows) < drawn)
    assert ("columns show what share" in notes) == (scene.columns >= FEW)
    figure = space_time(range(ranks), events, messages, title=f"{ranks} ranks", notes=["A note."])
    assert_tidy(figure)
    stream = io.BytesIO()
    figure.savefig(stream)
    assert len(stream.getvalue()) < 300_000
    assert figure.get_size_inches()[0] == 7.5
