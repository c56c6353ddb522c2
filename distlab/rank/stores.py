"""Wrappers of the learner's own stores: a wait for a key can be ended, and a connection outlives a rebuilt group.

Runs on every rank; hooks.py puts them in place. What torch asks a store for, as it builds a group, passes unchanged.
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

from distlab.rank.log import LOG, Note, waits
from distlab.rank.python_waits import wait_elsewhere, wait_until
from distlab.wire.messages import OTHER, is_shown

WAITING = ("get", "multi_get", "wait")  # methods that return when the keys are there
FREED = "Freed while it waited for other ranks through a store."
POLL_SECONDS = (0.0005, 0.005)  # between the first two looks whether they are, and between two later ones


def waiting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A method that waits for keys: until they are there in Python, where the watchdog can end it."""

    @functools.wraps(original)
    def call(self: dist.Store, *args: Any, **kwargs: Any) -> Any:
        if args and _is_learners(sys._getframe().f_back):
            keys = [args[0]] if isinstance(args[0], str) else args[0]
            with waits(_note(f"store.{name}", repr(args[0]))):
                _until_there(self, keys, (*args, self.timeout)[1])
        return original(self, *args, **kwargs)

    # pybind11 looks for a method in C++ when it is called from a frame of this name, and else for this one again
    call.__code__ = call.__code__.replace(co_name=name)
    return call


def connecting(_: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """TCPStore's __init__, which waits for its server, or as that for its clients, and remembers the port."""

    @functools.wraps(original)
    def __init__(self: dist.TCPStore, *args: Any, **kwargs: Any) -> None:
        if not _is_learners(sys._getframe().f_back):
            return original(self, *args, **kwargs)
        with waits(_note("TCPStore", ", ".join(map(repr, args[:2])))):
            wait_elsewhere(functools.partial(original, self, *args, **kwargs), FREED)
        LOG.store_ports.add(self.port)

    return __init__


def _note(op: str, words: str) -> Note:
    """A wait for what others write into a store; any process may, also a program that is no rank."""
    return Note(op, OTHER, words=words, ends_by_itself=True)


def _is_learners(caller: FrameType | None) -> bool:
    """Whether a line of the learner's makes the call; C++ calls from no frame at all."""
    return caller is not None and is_shown(caller.f_code.co_filename)


def _until_there(store: dist.Store, keys: Sequence[str], limit: timedelta | float) -> None:
    """Return when a store has these keys, or cannot be asked, or torch will refuse what it is asked."""
    if isinstance(limit, (int, float)):  # as torch takes them
        limit = timedelta(seconds=limit)
    if not isinstance(limit, timedelta):
        return
    began, (pause, longest) = time.monotonic(), POLL_SECONDS

    def there(_: float) -> bool:
        nonlocal pause
        if _has(store, keys):
            return True
        if time.monotonic() - began > limit.total_seconds():
            _raise_late(store, keys, limit)
        time.sleep(pause)
        pause = min(2 * pause, longest)
        return False

    wait_until(there, FREED)


def _has(store: dist.Store, keys: Sequence[str]) -> bool:
    """Whether a store has these keys; also true of one that cannot say, as torch says itself what is wrong."""
    try:
        return store.check(keys)
    except (RuntimeError, TypeError, NotImplementedError):
        return True


def _raise_late(store: dist.Store, keys: Sequence[str], limit: timedelta) -> None:
    """Raise what torch does where the keys are not there in time."""
    moment = timedelta(milliseconds=1)
    try:
        store.wait(keys, moment)
    except RuntimeError as error:
        raise type(error)(str(error).replace("after 1ms", f"after {limit // moment}ms")) from None
