"""Waits for other ranks that are Python code, so that the watchdog can end them.

Runs on every rank. A wait in C++ ends with its connections; these look whether this rank was freed, or are interrupted
by a signal.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent import futures
from types import FrameType
from typing import Any

from distlab.rank import log
from distlab.rank.log import LOG

FREED_SECONDS = 0.05  # between two looks whether the watchdog has freed this rank


def leave(frame: FrameType | None) -> None:
    """Raise where this frame of the main thread is inside a wait that is Python code: the handler of a signal calls it.

    Not in the log, where a wait begins or ends, not on top of a KeyboardInterrupt, and once for each wait.
    """
    note = LOG.now.get(threading.get_ident())
    inside = frame is not None and frame.f_globals is not vars(log)
    if note is not None and note.freed_with and inside and not isinstance(sys.exc_info()[1], KeyboardInterrupt):
        freed_with, note.freed_with = note.freed_with, ""
        raise RuntimeError(freed_with)


def wait_until(holds: Callable[[float], bool], freed_with: str) -> None:
    """Wait in Python until `holds`, which waits that many seconds at most, is true; RuntimeError when freed."""
    freed = LOG.freed
    while not holds(FREED_SECONDS):
        if LOG.freed != freed:
            raise RuntimeError(freed_with)


def wait_elsewhere(call: Callable[[], Any], freed_with: str) -> Any:
    """Wait on another thread, so that the watchdog can free this one, which raises a RuntimeError with these words.

    For waits in C++ that belong to no connection of this process. The thread that is left behind ends at its timeout.
    """
    outcome = completed_by(call, futures.Future())
    wait_until(lambda seconds: bool(futures.wait([outcome], seconds).done), freed_with)
    return outcome.result()


def completed_by(call: Callable[[], Any], future: Any) -> Any:
    """The future, which a thread of its own completes by what `call` returns or raises."""

    def work() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # whoever waits for the future gets it
            future.set_exception(error)

    threading.Thread(target=work, name="distlab-wait", daemon=True).start()
    return future
