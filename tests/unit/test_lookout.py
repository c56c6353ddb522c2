"""When a proof counts: with a line and a clock on paper, looked at four times a second."""

from types import SimpleNamespace

import pytest

from distlab import lookout
from distlab.deadlock import BETWEEN, COMMUNICATING, SILENT, Need
from distlab.lookout import ANSWER_SECONDS, UNMOVED_SECONDS, Lookout

TICK = 0.25
RECV = {
    **{"op": "recv", "kind": "message", "group": "0", "members": [0, 1], "own_limit": False, "sequence": 1},
    **{"is_send": False, "tag": 0, "lines": [], "tensors": [["float32", [1]]]},
}


class FakeLine:
    """Two ranks that receive from each other; a test changes what the next answers say."""

    def __init__(self):
        self.answers = {rank: self.stuck(rank) for rank in range(2)}
        self.asked = []
        self.rounds = 0

    @staticmethod
    def stuck(rank):
        return {
            **{"doing": COMMUNICATING, "lines": [], "call": {**RECV, "peer": 1 - rank}, "seconds": 1.0},
            **{"counts": {}, "groups": 1, "history": [], "traffic": [[False, "0", 1 - rank, 0, 1, 0]]},
            **{"mark": [1, 2, 3, 4], "quiet": True},
        }

    def ask(self, ranks, *patience):
        self.asked.append((list(ranks), *patience))
        self.rounds += 1
        return {rank: {**answer, "rounds": [self.rounds]} for rank, answer in self.answers.items()}


@pytest.fixture
def line():
    return FakeLine()


@pytest.fixture
def clock(monkeypatch):
    """The time that a lookout reads, moved by the test."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(lookout, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def new_lookout(line, with_work=frozenset()):
    return Lookout(line, range(2), lambda: set(with_work))


def look_for(seconds, clock, out):
    """Look once a tick; the seconds until a deadlock is told, None when it is not."""
    began = clock.now
    while clock.now - began < seconds:
        if out.look():
            return clock.now - began
        clock.now += TICK
    return None


def test_a_proof_counts_when_nothing_has_moved_for_long_enough(line, clock):
    """Not at the first look, which nothing is compared with, but within a tick after the time has passed."""
    out = new_lookout(line)
    told = look_for(10, clock, out)
    assert UNMOVED_SECONDS <= told <= UNMOVED_SECONDS + TICK
    assert out.needs == {0: Need((1,)), 1: Need((0,))}
    assert out.states[0].call["op"] == "recv"


def test_without_a_proof_nothing_is_told(line, clock):
    """Ranks that compute may stand still as long as they like."""
    line.answers[1]["doing"] = "computing"
    line.answers[1]["call"] = None
    out = new_lookout(line)
    assert look_for(10, clock, out) is None
    assert out.needs == {}


@pytest.mark.parametrize("change", [{"mark": [1, 2, 3, 5]}, {"quiet": False}])
def test_movement_starts_the_count_again(line, clock, change):
    """What moves just before the time has passed puts it off by all of it."""
    out = new_lookout(line)
    assert look_for(UNMOVED_SECONDS, clock, out) is None
    line.answers[0].update(change)
    assert not out.look()
    clock.now += TICK
    line.answers[0].update(FakeLine.stuck(0))
    told = look_for(10, clock, out)
    assert UNMOVED_SECONDS <= told <= UNMOVED_SECONDS + TICK


def test_a_proof_that_was_not_there_before_is_not_older_than_itself(line, clock):
    """Ranks that stood still without a proof have to stand still with it, too."""
    line.answers[0]["call"]["own_limit"] = True
    out = new_lookout(line)
    assert look_for(5, clock, out) is None
    line.answers[0]["call"]["own_limit"] = False
    told = look_for(10, clock, out)
    assert told >= UNMOVED_SECONDS - TICK


def test_gloos_threads_have_to_run_between_two_looks(line, clock, monkeypatch):
    """A machine so busy that gloo has not looked at its sockets proves nothing."""
    out = new_lookout(line)
    monkeypatch.setattr(
        line, "ask", lambda ranks, *patience: {r: {**a, "rounds": [7]} for r, a in line.answers.items()}
    )
    assert look_for(10, clock, out) is None


@pytest.mark.parametrize("answer", [None, {"doing": "unknown", "why": "KeyError()"}])
def test_a_silent_rank_prevents_a_proof(line, clock, answer):
    """Of a rank that does not answer nothing is known."""
    if answer is None:
        del line.answers[1]
    else:
        line.answers[1] = answer
    out = new_lookout(line)
    assert look_for(10, clock, out) is None
    assert out.states[1].doing == SILENT


def test_a_rank_that_is_silent_once_starts_the_count_again(line, clock):
    """It may have done anything meanwhile."""
    out = new_lookout(line)
    assert look_for(UNMOVED_SECONDS, clock, out) is None
    answer = line.answers.pop(1)
    assert not out.look()
    clock.now += TICK
    line.answers[1] = answer
    assert look_for(10, clock, out) >= UNMOVED_SECONDS


def test_an_idle_rank_with_work_prevents_a_proof(line, clock):
    """A rank that was sent the cell and has not begun will do its part; once it has answered, it will not."""
    line.answers[1].update(doing="idle", call=None)
    out = new_lookout(line, with_work={1})
    assert look_for(10, clock, out) is None
    assert out.states[1].doing == BETWEEN
    assert look_for(10, clock, new_lookout(line)) >= UNMOVED_SECONDS


def test_a_look_has_the_lines_patience_and_a_report_more(line, clock):
    """Every rank is asked each time; what was told last is kept."""
    out = new_lookout(line)
    out.look()
    assert out.report(line.ask) == out.states
    assert line.asked == [([0, 1],), ([0, 1], ANSWER_SECONDS)]
