"""The learner's own stores: a wait for a key can be ended, and a connection outlives the group that is rebuilt.

Runs on every rank. `install` puts a thin layer on torch.distributed's stores, which only calls in the learner's lines
notice. What torch asks a store for, as it builds a group, passes unchanged.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any

import torch.distributed as dist

from distlab.rank.call_hooks import named, wait_elsewhere
from distlab.rank.call_log import NOTES, place_of, waiting_for
from distlab.wire import messages
from distlab.wire.messages import CallRecord
from distlab.wire.source import is_shown, line_of

WAITING = ("get", "multi_get", "wait")  # methods that return when the keys are there
FREED = "Freed while it waited for other ranks through a store."
POLL_SECONDS = (0.0005, 0.005)  # between the first two looks whether they are, and between two later ones


class StoreNote:
    """A wait for what others write into a store; anybody may, also a program that is no rank.

    Args:
        op: what the learner called. given: its arguments in words.
    """

    method, done, waits_shorter = "store", False, True

    def __init__(self, op: str, given: str):
        self.op, self._given = op, given
        _, self._lines = place_of(sys._getframe(2))

    def record(self) -> CallRecord:
        """It as another process can read it."""
        lines = tuple(line_of(*line) for line in reversed(self._lines))
        return CallRecord(self.op, messages.OTHER, own_limit=True, function=self._given, lines=lines)


def install() -> None:
    """Put the layer on the stores; a second time does nothing. Runs on: every rank, on its main thread."""
    if dist.TCPStore.__init__.__module__ == __name__:
        return
    for name in WAITING:
        setattr(dist.Store, name, _waiting(name, getattr(dist.Store, name)))
    dist.TCPStore.__init__ = _connecting(dist.TCPStore.__init__)


def _waiting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A method that waits for keys: until they are there in Python, where the watchdog can end it."""
    original = named(name, original)

    @functools.wraps(original)
    def call(self: dist.Store, *args: Any, **kwargs: Any) -> Any:
        if args and _is_learners(sys._getframe().f_back):
            keys = [args[0]] if isinstance(args[0], str) else args[0]
            with waiting_for(StoreNote(f"store.{name}", repr(args[0]))):
                _until_there(self, keys, (*args, self.timeout)[1])
        return original(self, *args, **kwargs)

    call.__module__ = __name__
    return call


def _is_learners(caller: FrameType | None) -> bool:
    """Whether a line of the learner's makes the call; C++ calls from no frame at all."""
    return caller is not None and is_shown(caller.f_code.co_filename)


def _until_there(store: dist.Store, keys: Sequence[str], limit: timedelta | float) -> None:
    """Return when a store has these keys, or cannot be asked, or torch will refuse what it is asked."""
    if isinstance(limit, (int, float)):  # as torch takes them
        limit = timedelta(seconds=limit)
    if not isinstance(limit, timedelta):
        return
    freed, began, (pause, longest) = NOTES.freed, time.monotonic(), POLL_SECONDS
    while not _has(store, keys):
        if NOTES.freed != freed:
            raise RuntimeError(FREED)
        if time.monotonic() - began > limit.total_seconds():
            _raise_late(store, keys, limit)
        time.sleep(pause)
        pause = min(2 * pause, longest)


def _has(store: dist.Store, keys: Sequence[str]) -> bool:
    """Whether a store has these keys; also true of one that cannot say, as torch does then."""
    try:
        return store.check(keys)
    except Exception:
        return True


def _raise_late(store: dist.Store, keys: Sequence[str], limit: timedelta) -> None:
    """Raise what torch does where the keys are not there in time."""
    moment = timedelta(milliseconds=1)
    try:
        store.wait(keys, moment)
    except RuntimeError as error:
        raise type(error)(str(error).replace("after 1ms", f"after {limit // moment}ms")) from None


def _connecting(original: Callable[..., Any]) -> Callable[..., Any]:
    """TCPStore's __init__, which waits for its server, or as that for its clients, and remembers the port."""

    @functools.wraps(original)
    def __init__(self: dist.TCPStore, *args: Any, **kwargs: Any) -> None:
        if not _is_learners(sys._getframe().f_back):
            return original(self, *args, **kwargs)
        with waiting_for(StoreNote("TCPStore", ", ".join(map(repr, args[:2])))):
            wait_elsewhere(functools.partial(original, self, *args, **kwargs), FREED)
        NOTES.store_ports.add(self.port)

    __init__.__module__ = __name__
    return __init__
