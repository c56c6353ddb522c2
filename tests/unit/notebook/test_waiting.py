"""Interrupts that are held, and how long ranks are waited for: by their own time, without the wait
for a CPU.
"""

import os
import signal
import threading
from types import SimpleNamespace

import pytest

from distlab.notebook import waiting
from distlab.notebook.waiting import Patience, allowed, held
from distlab.wire import messages
from distlab.wire.messages import Answer, RankStatus
from distlab.wire.seconds import GIVE_UP, GIVE_UP_LATE, LIMIT

pytestmark = pytest.mark.usefixtures("python_handles_sigint")

# --- interrupts ---


def interrupt():
    signal.raise_signal(signal.SIGINT)


def interrupted(function):
    """Whether a KeyboardInterrupt came out of a function."""
    try:
        function()
    except KeyboardInterrupt:
        return True
    return False


def test_what_is_allowed_is_interrupted_at_once_and_what_follows_is_held():
    """Also by an interrupt that came before."""
    done = []

    @allowed()
    def wait():
        interrupt()
        done.append("never")

    with held():
        assert interrupted(wait)
        interrupt()
        done.append("held")
        assert interrupted(wait)
    assert done == ["held"]


def test_an_error_is_not_hidden_by_an_interrupt_before_it():
    """The error says more."""

    @held()
    def fail():
        interrupt()
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        fail()


def test_an_interrupt_waits_until_the_block_is_over():
    """What is held is finished first, in every call of a function; what another thread allows is no
    matter of it.
    """
    done = []

    def other():
        with held(), allowed():
            done.append("other")

    @held()
    def finishes():
        interrupt()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        done.append("held")

    assert [interrupted(finishes), interrupted(finishes)] == [True, True]
    assert done == ["other", "held"] * 2


def test_a_signal_that_is_ignored_stays_ignored():
    """A program that runs in the background of a shell."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with held(), allowed():
        interrupt()
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is signal.SIG_IGN


# --- patience ---

BUSY = Answer(1, RankStatus(0, messages.COMPUTING))
IDLE = Answer(1, RankStatus(0, messages.IDLE, idle=True))


@pytest.fixture
def machine(monkeypatch):
    """A machine on paper: its clock, and for how long its processes have waited for a CPU."""
    there = SimpleNamespace(now=100.0, queued=5.0)
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: there.now))
    monkeypatch.setattr(waiting, "_queued", lambda pid: {str(pid): there.queued})
    return there


def channel(answers):
    """To ranks that give these answers."""
    return SimpleNamespace(
        ask=lambda ranks, limit, want: {rank: answers[rank] for rank in ranks if rank in answers}
    )


def test_own_time_of_this_process_is_at_most_the_clocks():
    """The system's numbers are read; a process that has ended has waited for nothing."""
    patience = Patience(None, {0: os.getpid(), 1: 2**22 + 1})
    sum(range(100_000))
    # it may have waited since before the first look
    assert -1 < patience.own_time(0) <= patience.own_time(1)


def test_an_idle_rank_has_time_for_its_reply(machine):
    """It may come at any moment, but is not waited for without a limit."""
    answers = {1: IDLE, 0: IDLE}
    patience = Patience(channel(answers), {1: 8, 0: 7})
    machine.now += 2 * GIVE_UP
    assert patience.given_up([1, 0]) == set()
    answers[1] = BUSY
    machine.now += GIVE_UP - 0.1
    assert patience.given_up([1, 0]) == set()
    machine.now += 0.2
    assert patience.given_up([1, 0]) == {1}
    machine.now += GIVE_UP_LATE
    assert patience.given_up([0]) == {0}


def test_no_rank_is_waited_for_without_a_limit(machine):
    """However long it waits for a CPU."""
    patience = Patience(channel({}), {0: 7})
    for wait, given_up in ((LIMIT - 1, set()), (1, {0})):
        machine.now += wait
        machine.queued += wait
        assert patience.given_up([0]) == given_up
