"""When a proof counts: with ranks and a clock on paper, looked at four times a second."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from distlab.diagnosis.needs import Need
from distlab.notebook import cell
from distlab.notebook.cell import DeadlockWatch
from distlab.notebook.seconds import TICK, UNMOVED
from distlab.wire.messages import IDLE
from tests.unit.paper import Paper

STUCK = Paper("2 ranks; 0 recv 1; 1 recv 0").states(fingerprint=(1, 2, 3, 4), is_quiescent=True)


@pytest.fixture
def statuses():
    """Two ranks that receive from each other; a test changes what they say next."""
    return dict(STUCK)


@pytest.fixture
def seconds_until_told(statuses, monkeypatch):
    """Looks once a tick; gives the seconds until a deadlock is told, None when it is not."""
    clock, asked = SimpleNamespace(now=100.0), []
    monkeypatch.setattr(cell, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def states(patient):
        asked.append(patient)
        return {
            rank: replace(status, gloo_wakeups=status.gloo_wakeups or (len(asked),))
            for rank, status in statuses.items()
        }

    watch = DeadlockWatch(states)

    def look_for(seconds):
        began = clock.now
        while clock.now - began < seconds:
            if watch.look():
                assert watch.needs == {0: Need((1,)), 1: Need((0,))} or statuses[1].doing == IDLE
                return clock.now - began
            clock.now += TICK
        return None

    return look_for


@pytest.mark.parametrize(
    "rank_1",
    [STUCK[1], replace(STUCK[1], doing=IDLE, idle=True, call=None)],
    ids=["waits", "idle without work"],
)
def test_a_proof_counts_when_nothing_has_moved_for_long_enough(
    statuses, seconds_until_told, rank_1
):
    """Not at the first look, but within a tick after the time has passed."""
    statuses[1] = rank_1
    assert UNMOVED <= seconds_until_told(10) <= UNMOVED + TICK


@pytest.mark.parametrize(
    "status",
    [
        replace(STUCK[0], fingerprint=(1, 2, 3, 5)),
        replace(STUCK[0], is_quiescent=False),
        replace(STUCK[0], call=replace(STUCK[0].call, own_limit=True)),
    ],
    ids=["a mark", "not quiet", "no proof"],
)
def test_movement_starts_the_count_again(statuses, seconds_until_told, status):
    """What moves just before the time has passed puts it off by all of it."""
    assert seconds_until_told(UNMOVED) is None
    statuses[0] = status
    assert seconds_until_told(TICK) is None
    statuses[0] = STUCK[0]
    assert UNMOVED - TICK <= seconds_until_told(10) <= UNMOVED + TICK
