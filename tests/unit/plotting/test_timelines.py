"""The space-time diagram: what it draws of which event, and that it stays readable."""

import io

import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch

from distlab.plotting import space_time
from distlab.plotting.bars import ACTIVITY_LOOKS
from distlab.plotting.style import line_color
from distlab.plotting.timelines import ARROW_GAP, IN_FLIGHT_HEIGHT, MOST_ARROWS, bars_of, lay_out
from distlab.traces.events import Collective, Event, Message
from tests.unit.plotting.conftest import assert_tidy, texts
from tests.unit.plotting.scenes import GROUP, collective, halves, many, message


def artists(figure, kind):
    """The artists of a kind, in the order of drawing."""
    return [artist for artist in figure.axes[0].get_children() if isinstance(artist, kind)]


def legend(figure):
    """The entries of the legend."""
    return [text.get_text() for text in figure.legends[0].get_texts()]


def bars(*events, window=(0.0, 0.1)):
    """The bars of a rank as (activity, start, end), in ms."""
    names = {look: name for name, look in ACTIVITY_LOOKS.items()}
    found = bars_of(lay_out(events), window, lost=(), sized=False)
    shown = []
    for bar in sorted(found, key=lambda bar: bar.start):
        shown.append((names[bar.look], round(1e3 * bar.start, 2), round(1e3 * bar.end, 2)))
    return shown


def test_a_call_is_cut_where_it_stops_to_wait():
    """Waiting is hatched, the rest is full; a call without a partner is all hatched."""
    late = message(0, 1, 0, 20, 30)
    assert bars(late.send) == [("wait", 0, 20), ("move", 20, 30)]
    assert bars(late.send, window=(0.025, 0.1)) == [("move", 25, 30)]
    assert bars(late.recv) == [("move", 20, 30)]
    assert bars(Event(0, "send", "send", 0.0, 0.03, ready=float("inf"))) == [("wait", 0, 30)]
    assert bars(Event(0, "send", "send", 0.0, 0.03)) == [("move", 0, 30)]
    assert bars(Event(0, "backward", "backward", 0.0, 0.03)) == [("backward", 0, 30)]


def test_calls_in_flight_are_below():
    """Each in a row where none is; more than there are rows for are in the last one."""
    events = [Event(0, "send", "isend", 0.0, 0.01, blocking=False) for _ in range(5)]
    rows = [round((upper - 1) / IN_FLIGHT_HEIGHT) for upper, _ in lay_out(events).values()]
    assert rows == [0, 1, 2, 2, 2]


def test_an_arrow_leaves_when_data_can_move():
    """It starts when both sides are there, in the sender's colour, at the edge of its lane.

    A bar has its call's name and partner, a collective its bytes, a message where they differ; the
    legend explains what is there and nothing else.
    """
    short = message(1, 0, 0, 20, 40, num_bytes=4000)
    long = message(1, 0, 40, 40, 90, num_bytes=8000)
    reduced = Event(
        0, "collective", "all_reduce", 0.04, 0.1, ready=0.04, group=GROUP, num_bytes=1_000_000
    )
    figure = space_time([0, 1], [*halves([short]), reduced], [short])
    (arrow,) = artists(figure, FancyArrowPatch)
    middle = figure.axes[0].get_yticks()[1]  # of the sender's lane
    tail, head = arrow._posA_posB
    assert tail == pytest.approx((0.02, middle - 0.5))
    assert head == pytest.approx((0.04, 1))
    assert to_hex(arrow.get_facecolor()).upper() == line_color(1)
    words = {"Each message is 4000 B.", "send → 0", "recv ← 1", "all_reduce, 977 KiB"}
    assert words <= {*texts(figure)}
    assert legend(figure) == [
        "communicating",
        "waiting for a partner",
        "message, coloured by sender",
    ]
    both = space_time([0, 1], halves([short, long]), [short, long])
    assert "send → 0, 8000 B" in texts(both)


def test_an_arrow_keeps_out_of_the_lanes_of_its_ranks():
    """It leaves and ends at their edges, so that it crosses no text of their bars."""
    down = message(0, 1, 0, 10, 40, blocking=False)
    up = message(1, 0, 0, 10, 40, blocking=False)
    figure = space_time([0, 1], halves([down, up]), [down, up])
    gaps = [sorted(y for _, y in arrow._posA_posB) for arrow in artists(figure, FancyArrowPatch)]
    lane = 1 + 2 * IN_FLIGHT_HEIGHT
    assert gaps == [pytest.approx([lane, lane + ARROW_GAP])] * 2


def test_a_message_without_a_partner_is_drawn_as_one():
    """Red if nobody received it or nothing came; not if the partner was not traced."""
    what = {"ready": float("inf"), "group": GROUP, "tag": 0, "num_bytes": 4}
    send = Event(0, "send", "send", 0.0, 0.01, peer=1, **what)
    recv = Event(1, "recv", "recv", 0.001, 0.01, peer=0, **what)
    lost = [Message(0, 1, 0, GROUP, 4, send, None), Message(0, 1, 3, GROUP, 4, None, recv)]
    figure = space_time([0, 1], [send, recv], lost)
    assert legend(figure) == ["without a partner"]
    unknown = Message(0, 1, 0, GROUP, 4, send, None, traced=False)
    assert "without a partner" not in texts(space_time([0], [send], [unknown]))


def test_the_last_rank_of_a_collective_is_marked():
    """A dotted line where the last rank has arrived; none where no moment is known."""
    whole = collective([0, 4, 2], 6)
    figure = space_time([0, 1, 2], whole.events, (), [whole])
    (line,) = artists(figure, LineCollection)
    assert [x for x, _ in line.get_segments()[0]] == pytest.approx([0.004] * 2)
    assert "the last rank has arrived" in texts(figure)
    open_ended = Collective("all_reduce", GROUP, whole.events[:2], False)
    figure = space_time([0, 1], open_ended.events, (), [open_ended])
    assert "the last rank has arrived" not in texts(figure)


@pytest.mark.parametrize(
    ("ranks", "steps", "window"), [(4, 12, None), (16, 320, None), (4, 50, (0.010, 0.012))]
)
def test_it_stays_readable(ranks, steps, window):
    """From a few events to thousands: words keep apart, and the file is small."""
    events, messages = many(ranks, steps)
    figure = space_time(
        range(ranks), events, messages, window=window, title=f"{ranks} ranks", notes=["A note."]
    )
    assert_tidy(figure)
    shown = " ".join(texts(figure))
    crowded = window is None and len(messages) > MOST_ARROWS
    assert ("are too many for arrows" in shown) == crowded
    assert bool(artists(figure, FancyArrowPatch)) == (not crowded)
    assert "10 ms 10.5 ms" in shown or window is None
    stream = io.BytesIO()
    figure.savefig(stream)
    assert len(stream.getvalue()) < 300_000
