"""Waits for other ranks that are Python code, which the watchdog can end, and notes of waits in a learner's own stores.

Runs on every rank. A wait in C++ ends with its connections; those in Python look whether this rank was freed. hooks.py
puts the wrappers of stores in place; what torch asks a store for, as it builds a group, passes unchanged.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import Any

import torch.distributed as dist

from distlab.rank.log import LOG, Note, waits
from distlab.wire.messages import OTHER, WAITING, is_shown

SHORTEST_LOOK, LONGEST_LOOK = 0.0005, 0.05  # seconds from one look whether a wait is over or freed to the next
FREED_FROM_STORE = "Freed while it waited for other ranks through a store."
STORE_WAITS = ("get", "multi_get", "wait")  # methods that return when the keys are there


class waiting(waits):
    """A context manager around a wait for other ranks that is Python code, as in a loop that looks at shared memory.

        with distlab.waiting("through shared memory", [2]) as wait:
            while not there():
                wait.check()
                time.sleep(0.001)

    A report then says "waits through shared memory for rank 2", a deadlock is proven, and `check` frees the rank by a
    RuntimeError. Inside of a call of a process group, that call is what reports show. Without a cluster it changes
    nothing.

    Runs on: a rank, any thread.

    Args:
        words: by what means it waits.
        ranks: those that must act before the wait can end.
    """

    def __init__(self, words: str, ranks: Iterable[int]):
        self._words, self._freed = f"Freed while it waited for other ranks {words}.", LOG.freed
        super().__init__(LOG.now.get(threading.get_ident()) or Note("waiting", WAITING, ranks, words))

    def __enter__(self) -> waiting:
        if LOG.closed:
            raise RuntimeError(self._words)
        super().__enter__()
        return self

    def check(self) -> None:
        """Raise a RuntimeError if this rank was freed since the wait began."""
        if LOG.freed != self._freed:
            raise RuntimeError(self._words)


def wait_until(holds: Callable[[float], Any], freed_with: str, limit: float = math.inf) -> bool:
    """Wait in Python until `holds`, which waits so many seconds at most, is true; RuntimeError when freed.

    Returns:
        whether it was within `limit` seconds.
    """
    freed, began, look = LOG.freed, time.monotonic(), SHORTEST_LOOK
    while not holds(look):
        if LOG.freed != freed:
            raise RuntimeError(freed_with)
        if time.monotonic() - began > limit:
            return False
        look = min(2 * look, LONGEST_LOOK)
    return True


def wait_elsewhere(call: Callable[[], Any], freed_with: str) -> Any:
    """Wait on another thread, so that the watchdog can free this one, which raises a RuntimeError with these words.

    For waits in C++ that belong to no connection of this process. The thread that is left behind ends at its timeout.
    """
    outcome: futures.Future[Any] = futures.Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except Exception as error:  # raised where it is waited for
            outcome.set_exception(error)

    threading.Thread(target=work, name="distlab-wait", daemon=True).start()
    wait_until(lambda seconds: futures.wait([outcome], seconds).done, freed_with)
    return outcome.result()


# --- wrappers of the learner's own stores ---


def in_store(name: str, original: Callable[..., Any], store: dist.Store, *args: Any, **kwargs: Any) -> Any:
    """A method that waits for keys, in C++: until they are there, or the connection to the store is shut down."""
    if not args or not _is_of_learner():
        return original(store, *args, **kwargs)
    with waits(_note(f"store.{name}", repr(args[0]))):
        return original(store, *args, **kwargs)


def connecting(original: Callable[..., Any], store: dist.TCPStore, *args: Any, **kwargs: Any) -> None:
    """TCPStore's __init__, which waits for its server, or as that for its clients; its port is remembered."""
    if not _is_of_learner():
        return original(store, *args, **kwargs)
    with waits(_note("TCPStore", ", ".join(map(repr, args[:2])))):
        wait_elsewhere(functools.partial(original, store, *args, **kwargs), FREED_FROM_STORE)
    LOG.store_ports.add(store.port)


def _note(op: str, words: str) -> Note:
    """A wait for what others write into a store; any process may, also a program that is no rank."""
    return Note(op, OTHER, words=words, has_limit=True)


def _is_of_learner() -> bool:
    """Whether a line of the learner's makes the call of a wrapper; C++ calls from no frame at all."""
    caller = sys._getframe(2).f_back  # frames 0 to 2 are this function's, its caller's and the wrapper's
    return caller is not None and is_shown(caller.f_code.co_filename)
