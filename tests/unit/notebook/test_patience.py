"""How long ranks are waited for: by their own time, without the wait for a CPU."""

import os
from types import SimpleNamespace

import pytest

from distlab.notebook import patience
from distlab.notebook.patience import Patience
from distlab.notebook.seconds import GIVE_UP, GIVE_UP_LATE, LIMIT
from distlab.wire import messages
from distlab.wire.messages import Answer, RankStatus

BUSY = Answer(1, RankStatus(0, messages.COMPUTING))
IDLE = Answer(1, RankStatus(0, messages.IDLE, idle=True))


@pytest.fixture
def machine(monkeypatch):
    """A machine on paper: its clock, and for how long its processes have waited for a CPU."""
    there = SimpleNamespace(now=100.0, queued=5.0)
    monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: there.now))
    monkeypatch.setattr(patience, "_queued", lambda pid: {pid: there.queued})
    return there


def channel(answers):
    """To ranks that give these answers."""
    return SimpleNamespace(
        ask=lambda ranks, limit, want: {rank: answers[rank] for rank in ranks if rank in answers}
    )


def test_own_time_of_this_process_is_at_most_the_clocks():
    """The system's numbers are read; a process that has ended has waited for nothing."""
    waits = Patience(None, {0: os.getpid(), 1: 2**22 + 1})
    sum(range(100_000))
    # it may have waited since before the first look
    assert -1 < waits.own_time(0) <= waits.own_time(1)


def test_an_idle_rank_has_time_for_its_reply(machine):
    """It may come at any moment, but is not waited for without a limit."""
    answers = {1: IDLE, 0: IDLE}
    waits = Patience(channel(answers), {1: 8, 0: 7})
    machine.now += 2 * GIVE_UP
    assert waits.given_up([1, 0]) == set()
    answers[1] = BUSY
    machine.now += GIVE_UP - 0.1
    assert waits.given_up([1, 0]) == set()
    machine.now += 0.2
    assert waits.given_up([1, 0]) == {1}
    machine.now += GIVE_UP_LATE
    assert waits.given_up([0]) == {0}


def test_no_rank_is_waited_for_without_a_limit(machine):
    """However long it waits for a CPU."""
    waits = Patience(channel({}), {0: 7})
    for wait, given_up in ((LIMIT - 1, set()), (1, {0})):
        machine.now += wait
        machine.queued += wait
        assert waits.given_up([0]) == given_up
