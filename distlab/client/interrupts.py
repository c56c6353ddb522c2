"""Ctrl-C at a moment when it does no harm: what must not be torn is finished first, and waiting is cut short.

Runs on the notebook's kernel, called wherever processes are started, ended or sent something. A KeyboardInterrupt comes
between any two steps of Python; between a process's start and the note of it, say, and then nobody would end it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


class _Gate:
    """A handler of SIGINT that keeps the signal while it is closed, and hands it on to `handler` while it is open."""

    def __init__(self, handler: Callable[..., Any]):
        self.handler, self.open, self.kept = handler, False, False

    def __call__(self, number: int, frame: Any) -> None:
        self.kept = not self.open
        if self.open:
            self.open = False  # what is done about the interrupt is not to be torn either
            self.handler(number, frame)

    def turn(self, open_now: bool) -> None:
        self.open = open_now
        if open_now and self.kept:
            self(signal.SIGINT, None)


def held() -> contextlib.AbstractContextManager[None]:
    """An interrupt waits until this is over, or until something in it is `allowed` to be interrupted.

    One that came before an error does not take the error's place. Only the main thread is interrupted by Python, and
    only where SIGINT has a handler: elsewhere nothing is changed.
    """
    return _turned(False)


def allowed() -> contextlib.AbstractContextManager[None]:
    """Within `held`, what only waits and may be interrupted; after an interrupt all is held again."""
    return _turned(True)


@contextlib.contextmanager
def _turned(open_now: bool) -> Iterator[None]:
    """The gate open or closed; the first that closes one puts it there, and takes it away in the end."""
    handler = signal.getsignal(signal.SIGINT)
    first = not isinstance(handler, _Gate)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or not callable(handler) or (first and open_now):
        yield
        return
    gate = _Gate(handler) if first else handler
    before = gate.open
    signal.signal(signal.SIGINT, gate)
    try:
        gate.turn(open_now)
        yield
    except KeyboardInterrupt:
        before = False
        raise
    finally:
        signal.signal(signal.SIGINT, handler)
        if not first:
            gate.turn(before)
    if first and gate.kept:
        handler(signal.SIGINT, None)
