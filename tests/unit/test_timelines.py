"""The space-time diagram: what it draws of which event, that texts keep apart, and that nothing ends in a smear."""

import io
import random

import pytest
from matplotlib.colors import to_hex

from distlab.plotting import space_time
from distlab.plotting.arrows import CROSSINGS
from distlab.plotting.captions import legend_rows
from distlab.plotting.lanes import COLUMN, boxes, lay_out, parts
from distlab.plotting.marks import LOST
from distlab.plotting.scenes import FEW, WIDE, compose, remarks
from distlab.plotting.style import curve_color
from distlab.trace.events import Collective, Event, Message
from tests.unit.test_plotting import assert_tidy, headless  # noqa: F401 - a fixture

GROUP = (0, 1)


def message(src, dst, sent, posted, end, num_bytes=4, group=GROUP, blocking=True):
    """A send at `sent` and its recv at `posted`, both over at `end`, in ms."""
    what = {"ready": max(sent, posted) / 1e3, "group": group, "num_bytes": num_bytes, "tag": 0, "blocking": blocking}
    send = Event(src, "send", "send" if blocking else "isend", sent / 1e3, end / 1e3, peer=dst, **what)
    recv = Event(dst, "recv", "recv" if blocking else "irecv", posted / 1e3, end / 1e3, peer=src, **what)
    return Message(src, dst, 0, group, num_bytes, send, recv)


def halves(messages):
    return [half for m in messages for half in (m.send, m.recv) if half is not None]


def collective(starts, end, op="all_reduce"):
    """All ranks enter at their own time, in ms, and leave together."""
    group, last = tuple(range(len(starts))), max(starts) / 1e3
    events = [Event(r, "collective", op, at / 1e3, end / 1e3, ready=last, group=group) for r, at in enumerate(starts)]
    return Collective(op, group, tuple(events), True)


def many(ranks, steps, seed=1):
    """A ring with computation: about 4 events for each rank and step, at times that look measured."""
    chance = random.Random(seed)
    messages, events, now = [], [], [0.0] * ranks
    for _ in range(steps):
        at = [time + chance.random() * 0.4 for time in now]
        for rank in range(ranks):
            events.append(Event(rank, "compute", "mm", now[rank] / 1e3, at[rank] / 1e3))
        for rank in range(ranks):
            after = (rank + 1) % ranks
            end = max(at[rank], at[after]) + chance.random() * 0.5
            messages.append(message(rank, after, at[rank], at[after], end, 400, tuple(range(ranks))))
            now[after] = end
    return events + halves(messages), messages


def texts(figure):
    return [text.get_text() for ax in figure.axes for text in ax.texts] + [t.get_text() for t in figure.texts]


def check(figure):
    """No text overlaps another or leaves the figure, those of the head included."""
    assert_tidy(figure)
    for text in figure.texts:
        box = text.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width, text.get_text()
        assert 0 <= box.y0 < box.y1 <= figure.bbox.height, text.get_text()


def test_a_call_is_cut_where_it_stops_to_wait():
    """Waiting is hatched, what follows is full; a call whose partner never came is hatched as a whole."""
    m = message(0, 1, 0, 2, 3)
    assert parts(m.send) == [("wait", 0.0, 0.002), ("move", 0.002, 0.003)]
    assert parts(m.recv) == [("move", 0.002, 0.003)]
    lost = Event(0, "send", "send", 0.0, 0.003, ready=float("inf"))
    assert parts(lost) == [("wait", 0.0, 0.003)]
    assert parts(Event(0, "send", "send", 0.0, 0.003)) == [("move", 0.0, 0.003)]
    assert parts(Event(0, "backward", "backward", 0.0, 0.003)) == [("backward", 0.0, 0.003)]


def test_calls_in_flight_have_rows_of_their_own():
    """Overlapping ones lie below each other; too many are drawn in one row, which is counted."""
    flying = halves(message(0, 1, start, start, 10, blocking=False) for start in range(2))
    lanes = lay_out([0, 1], flying)
    assert [len(row) for row in lanes[0].rows] == [1, 1]
    assert lanes[0].bars == []
    lanes = lay_out([0, 1], halves(message(0, 1, start, start, 10, blocking=False) for start in range(9)))
    assert ([len(row) for row in lanes[0].rows], lanes[0].crowd) == ([9], 9)


def test_narrow_bars_become_columns_of_shares():
    """Bars too narrow to be seen share a column, by their share of its time; nothing of the time is lost or added."""
    pixel = 1.0
    busy = [Event(0, "compute", "mm", at, at + 0.5) for at in range(int(COLUMN))]
    found, columns = boxes(busy, (0.0, 10.0), (0.0, 100.0), pixel)
    assert columns == 1
    ((left, right, top, bottom),) = found["compute"]
    assert (left, right, bottom) == (0.0, COLUMN, 10.0)
    assert (bottom - top) / 10 == pytest.approx(sum(e.seconds for e in busy) / COLUMN)
    found, columns = boxes(busy[:1], (0.0, 10.0), (0.0, 100.0), pixel)
    assert (columns, found["compute"]) == (0, [(0.0, 2.0, 0.0, 10.0)])


def test_an_arrow_leaves_when_data_can_move():
    """It starts in the sender's bar when both sides are there, ends at the receiver's, and has the sender's colour."""
    m = message(1, 0, 0, 2, 3, num_bytes=4000)
    figure = space_time([0, 1], halves([m]), [m])
    scene = compose([0, 1], halves([m]), [m], [], None)
    (arrow,) = scene.arrows
    assert (arrow.left, arrow.arrived, arrow.sizes) == (0.002, 0.003, (4000,))
    assert arrow.tail > arrow.head == scene.lanes[0].bottom
    colors = {to_hex(c) for collection in figure.axes[0].collections for c in collection.get_facecolors()}
    assert curve_color(1).lower() in colors
    assert "4 kB" in texts(figure)
    check(figure)


def test_bars_say_what_they_are():
    """A bar has its call's name and partner where that fits, a collective its bytes, computation its name."""
    m = message(0, 1, 0, 5, 50)
    reduced = Event(0, "collective", "all_reduce", 0.06, 0.09, ready=0.06, group=GROUP, num_bytes=1_000_000)
    forward = Event(1, "forward", "forward", 0.06, 0.09)
    named = Event(1, "range", "my step", 0.0, 0.09)
    figure = space_time([0, 1], [*halves([m]), reduced, forward, named], [m], title="two ranks")
    assert {"send → 1", "recv ← 0", "all_reduce 1 MB", "forward", "my step", "rank 0", "two ranks"} <= {*texts(figure)}
    check(figure)


def test_a_message_without_a_partner_is_drawn_as_one():
    """A cross and words for a send that nobody received and a recv that nothing came for, and an outline for errors."""
    what = {"ready": float("inf"), "group": GROUP, "tag": 0, "num_bytes": 4}
    send = Event(0, "send", "send", 0.0, 0.01, peer=1, failed=True, **what)
    recv = Event(1, "recv", "recv", 0.001, 0.01, peer=0, **what)
    lost = [Message(0, 1, 0, GROUP, 4, send, None), Message(0, 1, 3, GROUP, 4, None, recv)]
    figure = space_time([0, 1], [send, recv], lost)
    assert {"rank 1 never received it", "rank 0 never sent it"} <= {*texts(figure)}
    assert {"without a partner", "raised an error"} <= {*texts(figure)}
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert [to_hex(line.get_color()).upper() for line in crosses] == [LOST] * 2
    lanes = compose([0, 1], [send, recv], lost, [], None).lanes
    assert lanes[0].bottom < crosses[0].get_ydata()[0] < crosses[1].get_ydata()[0] < lanes[1].top
    check(figure)


def test_a_partner_that_was_not_traced_is_no_fault():
    """Its cross is grey, and the legend does not speak of messages without a partner."""
    send = Event(0, "send", "send", 0.0, 0.01, peer=7, group=(0, 7), tag=0, num_bytes=4)
    figure = space_time([0], [send], [Message(0, 7, 0, (0, 7), 4, send, None, traced=False)])
    assert "rank 7 was not traced" in texts(figure)
    assert "without a partner" not in texts(figure)
    check(figure)


def test_the_last_rank_of_a_collective_is_marked():
    """A dotted line where everybody has come; none where no moment is known."""
    whole = collective([0, 4, 2], 6)
    figure = space_time([0, 1, 2], whole.events, (), [whole])
    assert any(list(line.get_xdata()) == [4.0, 4.0] for line in figure.axes[0].lines)
    assert "everybody has come" in texts(figure)
    open_ended = Collective("all_reduce", GROUP, whole.events[:2], False)
    assert "everybody has come" not in texts(space_time([0, 1], open_ended.events, (), [open_ended]))


def test_a_window_shows_a_part():
    """Only what overlaps the window is laid out; the axis is in milliseconds."""
    events, messages = many(4, 50)
    scene = compose(range(4), events, messages, [], (0.010, 0.012))
    assert all(e.end >= 0.010 and e.start <= 0.012 for lane in scene.lanes.values() for e in lane.bars)
    assert 0 < len(scene.arrows) < len(messages)
    figure = space_time(range(4), events, messages, window=(0.010, 0.012))
    assert figure.axes[0].get_xlim() == (10.0, 12.0)
    check(figure)


@pytest.mark.parametrize(("ranks", "steps"), [(1, 3), (2, 3), (4, 12), (8, 160), (16, 40)])
def test_it_stays_readable(ranks, steps):
    """From a few events to thousands: few arrows and boxes, words that keep apart, a small file; and it says so."""
    events, messages = many(ranks, steps)
    if (ranks, steps) == (8, 160):
        events = [*events, *(Event(r, "compute", "mm", 0.1, 0.1001) for r in range(8) for _ in range(150))]
        assert len(events) >= 5000
    scene = compose(range(ranks), events, messages, [], None)
    assert len(scene.arrows) <= CROSSINGS * ranks
    assert sum(map(len, scene.boxes.values())) <= 6 * ranks * WIDE / COLUMN
    drawn = sum(arrow.count for arrow in scene.arrows)
    assert drawn == sum(m.src != m.dst for m in messages)
    said = " ".join(remarks(scene))
    assert ("are drawn as" in said) == (len(scene.arrows) < drawn)
    assert ("columns show what share" in said) == (scene.columns >= FEW)
    figure = space_time(range(ranks), events, messages, title=f"{ranks} ranks", notes=["A note."])
    check(figure)
    stream = io.BytesIO()
    figure.savefig(stream)
    assert len(stream.getvalue()) < 300_000
    assert figure.get_size_inches()[0] == 7.5


def test_the_legend_explains_what_is_there_and_nothing_else():
    """One entry for each look that is drawn, in rows no wider than the figure."""
    m = message(0, 1, 0, 2, 3)
    looks = [look for row in legend_rows(compose([0, 1], halves([m]), [m], [], None)) for look, _ in row]
    assert looks == ["move", "wait", "arrow"]
    flying = message(0, 1, 0, 2, 3, blocking=False)
    looks = [look for row in legend_rows(compose([0, 1], halves([flying]), [flying], [], None)) for look, _ in row]
    assert "flight" in looks
