"""Interrupts that do no harm: held while processes are started, ended or sent something, and
allowed in waits.

Runs on the notebook's kernel, used by everything that starts, ends or waits for ranks.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


class _Gate:
    """A handler of SIGINT that holds the signal while it is closed, and passes it to `handler` when
    it is open.
    """

    def __init__(self, handler: Callable[..., Any]):
        self.handler, self.open, self.kept = handler, False, False

    def __call__(self, number: int, frame: Any) -> None:
        self.kept = not self.open
        if self.open:
            self.open = False  # the handling of the interrupt must not be interrupted either
            self.handler(number, frame)

    def turn(self, open_now: bool) -> None:
        self.open = open_now
        if open_now and self.kept:
            self(signal.SIGINT, None)


def held() -> contextlib.AbstractContextManager[None]:
    """An interrupt waits until this is over, or until something inside is `allowed` to be
    interrupted.

    A KeyboardInterrupt can come between any two steps of Python, for example after a process has
    been started and before it is noted, and then nothing would end that process. One that came
    before an error does not replace it. Python interrupts only the main thread, and only if SIGINT
    has a handler; elsewhere this changes nothing.
    """
    return _turned(False)


def allowed() -> contextlib.AbstractContextManager[None]:
    """Within `held`, a wait that may be interrupted; after an interrupt, everything is held again."""
    return _turned(True)


@contextlib.contextmanager
def _turned(open_now: bool) -> Iterator[None]:
    """Open or close the gate; whoever closes it first installs it, and removes it at the end."""
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
