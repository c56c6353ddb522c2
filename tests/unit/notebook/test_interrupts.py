"""Interrupts that are held, and waits in which they are allowed."""

import signal
import threading

import pytest

from distlab.notebook.interrupts import allowed, held

pytestmark = pytest.mark.usefixtures("python_handles_sigint")


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
    """The held block ends first; what another thread allows does not matter."""
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
