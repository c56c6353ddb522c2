"""How long ranks are waited for: by their own time, which stands still while they wait for a CPU."""

import os
from types import SimpleNamespace

import pytest

from distlab import patience
from distlab.patience import LIMIT_SECONDS, OwnTime, Patience, ask, has_had_time
from distlab.patience import LONG_PATIENCE_SECONDS as LONG
from distlab.patience import PATIENCE_SECONDS as SHORT

BUSY, IDLE, IMPORTING = {"doing": "computing"}, {"doing": "idle"}, {"doing": "computing", "importing": True}


@pytest.fixture
def machine(monkeypatch):
    """A machine on paper: its clock, and how long each process has waited for a CPU."""
    there = SimpleNamespace(now=100.0, queued={7: 5.0, 8: 0.0})
    monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: there.now))
    monkeypatch.setattr(patience, "_queued", lambda pid: {"main": there.queued[pid], "other": 1.0})
    return there


class Line:
    """Ranks that answer only when they are given so many seconds."""

    def __init__(self, machine, answers, needs):
        self.machine, self.answers, self.needs, self.asked = machine, answers, needs, []

    def ask(self, ranks, seconds, **what):
        self.asked.append((sorted(ranks), what))
        quick = {rank: self.answers[rank] for rank in ranks if self.needs.get(rank, 0.0) <= seconds}
        if len(quick) < len(ranks):
            self.machine.now += seconds
            self.machine.queued[7] += 0.9 * seconds
        return quick


@pytest.mark.parametrize(
    ("excused", "own"),
    [(0.0, SHORT), (3.0, 3.0 + SHORT), (LONG - 0.1, LONG)],
    ids=["busy", "idle until then", "idle for long"],
)
def test_a_rank_is_given_up_by_its_own_time(excused, own):
    """It gets as long again after it was idle; the clock alone does not decide, up to a limit."""
    assert not has_had_time(own - 0.1, excused, LIMIT_SECONDS - 0.1)
    assert has_had_time(own, excused, own)
    assert has_had_time(excused, excused, LIMIT_SECONDS)


def test_own_time_leaves_out_what_a_process_waits_for_a_cpu(machine):
    """Ten seconds of the clock, of which rank 0 waited nine, and what it waited before does not count."""
    time = OwnTime({0: 7, 1: 8})
    machine.now += 10
    machine.queued[7] += 9
    assert (time.clock(), time.of(0), time.of(1)) == (10, 1, 10)


def test_own_time_of_this_process_is_at_most_the_clocks():
    """The system's numbers are read; a process that has ended has waited for nothing."""
    time = OwnTime({0: os.getpid(), 1: 2**22 + 1})
    sum(range(100_000))
    assert 0 <= time.of(0) <= time.clock()
    assert time.of(1) <= time.clock()


def test_only_ranks_that_had_time_are_asked_and_given_up(machine):
    """Of two ranks that compute, one waits for a CPU."""
    line = Line(machine, {0: BUSY, 1: BUSY}, {})
    waiting = Patience(line, {0: 7, 1: 8})
    assert (waiting.given_up([0, 1]), line.asked) == (set(), [])
    machine.now += SHORT
    machine.queued[7] += 1.5
    assert waiting.given_up([0, 1]) == {1}
    assert line.asked == [([1], {})]


@pytest.mark.parametrize("excuse", [IDLE, IMPORTING], ids=["idle", "importing"])
def test_a_rank_has_time_after_its_import(machine, excuse):
    """An interrupt comes when the import is done, which may be at any moment."""
    line = Line(machine, {1: excuse}, {})
    waiting = Patience(line, {1: 8})
    machine.now += 2 * SHORT
    assert waiting.given_up([1]) == set()
    line.answers[1] = BUSY
    machine.now += SHORT - 0.1
    assert waiting.given_up([1]) == set()
    machine.now += 0.2
    assert waiting.given_up([1]) == {1}


def test_a_rank_that_waits_for_a_cpu_is_asked_again(machine):
    """Rank 0 needs three seconds for an answer and waits for a CPU in nine tenths of them; rank 1 answers at once."""
    line = Line(machine, {0: BUSY, 1: IDLE}, {0: 3.0})
    assert ask(line, {1: 8, 0: 7}, 0.5, variables=True) == {0: BUSY, 1: IDLE}
    assert line.asked == [([0, 1], {"variables": True}), ([0], {"variables": True}), ([0], {"variables": True})]


def test_a_rank_that_is_silent_though_it_has_a_cpu_is_asked_once(machine):
    """It is stopped, or holds Python's lock."""
    line = Line(machine, {}, {1: 99.0})
    assert ask(line, {1: 8}, 0.5) == {}
    assert len(line.asked) == 1
