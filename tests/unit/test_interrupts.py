"""Interrupts that are held, and where they are allowed."""

import contextlib
import signal
import threading

import pytest

from distlab import interrupts


@pytest.fixture(autouse=True)
def python_handles_sigint():
    """As in a notebook; a background shell ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def interrupt():
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_waits_until_the_block_is_over():
    """What is held is finished, and the interrupt comes then."""
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts.held():
        interrupt()
        done.append(1)
    assert done == [1]


def test_what_is_allowed_is_interrupted_at_once_and_what_follows_is_held():
    """Also by an interrupt that came before; the second one waits."""
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts.held():
        with pytest.raises(KeyboardInterrupt), interrupts.allowed():
            interrupt()
            done.append("never")
        interrupt()
        with pytest.raises(KeyboardInterrupt), interrupts.allowed():
            done.append("never")
        interrupt()
        done.append("held")
    assert done == ["held"]


def test_held_in_allowed_in_held():
    """The innermost block decides."""
    done = []
    with interrupts.held():
        with pytest.raises(KeyboardInterrupt), interrupts.allowed():
            with interrupts.held():
                interrupt()
                done.append(1)
            done.append("never")
    assert done == [1]


def test_an_error_is_not_hidden_by_an_interrupt_before_it():
    """The error says more."""
    with pytest.raises(ValueError, match="first"), interrupts.held():
        interrupt()
        raise ValueError("first")


def test_a_function_can_be_held():
    """As a decorator, anew for every call."""

    @interrupts.held()
    def twice():
        interrupt()
        done.append(1)

    done = []
    for _ in range(2):
        with contextlib.suppress(KeyboardInterrupt):
            twice()
    assert done == [1, 1]


def test_another_thread_opens_nothing():
    """Only the main thread is interrupted; what another one allows is no matter of it."""
    done = []

    def other():
        with interrupts.held(), interrupts.allowed():
            done.append("other")

    with pytest.raises(KeyboardInterrupt), interrupts.held():
        interrupt()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        done.append("held")
    assert done == ["other", "held"]


def test_a_signal_that_is_ignored_stays_ignored():
    """A program that runs in the background of a shell."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts.held(), interrupts.allowed():
        interrupt()
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is signal.SIG_IGN
