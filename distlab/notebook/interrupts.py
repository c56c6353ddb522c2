"""Holds interrupts back while something must not stop half-way, and allows them in waits.

Runs on the notebook's kernel, used by everything that starts, ends or waits for ranks.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


class _Gate:
    """A handler of SIGINT that keeps the signal while it is closed.

    Args:
        handler: the handler before, which gets the signal when the gate is open.

    Attributes:
        open: whether an interrupt takes effect at once.
        kept: whether one has come while the gate was closed.
    """

    def __init__(self, handler: Callable[[int, FrameType | None], Any]):
        self.handler = handler
        self.open = False
        self.kept = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.kept = not self.open
        if self.open:
            self.open = False  # the handling of the interrupt must not be interrupted either
            self.handler(number, frame)

    def turn(self, open_now: bool) -> None:
        """Open or close the gate; a signal that was kept takes effect when it opens."""
        self.open = open_now
        if open_now and self.kept:
            self(signal.SIGINT, None)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Have an interrupt wait until the block is over, or until something in it is `allowed`.

    A KeyboardInterrupt can come between any two steps of Python, for example after a process has
    been started and before it is noted, and then nothing would end that process. One that came
    before an error does not replace it. Python interrupts only the main thread, and only if SIGINT
    has a handler; elsewhere this changes nothing.
    """
    with _turned(open_now=False):
        yield


@contextlib.contextmanager
def allowed() -> Iterator[None]:
    """Within `held`, let a wait be interrupted; after an interrupt, everything is held again."""
    with _turned(open_now=True):
        yield


@contextlib.contextmanager
def _turned(open_now: bool) -> Iterator[None]:
    """Open or close the gate; the outermost `held` installs it, and removes it at the end."""
    handler = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or not callable(handler):
        yield
        return
    is_outermost = not isinstance(handler, _Gate)
    if is_outermost and open_now:  # nothing is held here
        yield
        return
    gate = handler if isinstance(handler, _Gate) else _Gate(handler)
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
        if not is_outermost:
            gate.turn(before)
    if is_outermost and gate.kept:
        handler(signal.SIGINT, None)
