"""Waits for other ranks in Python code, which the watchdog can end.

Runs on every rank. A wait in C++ ends with its connections; those in Python look whether this rank
was freed.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import Any

from distlab.arguments import refuse
from distlab.compat import torch as private
from distlab.rank import freed
from distlab.rank.log import LOG, InCall, Note
from distlab.rank.methods import ANY_SOURCE
from distlab.wire.messages import WAITING

# the name of a thread that waits in C++ in the place of another one
WAITING_THREAD = "distlab-wait"
# seconds between two looks at whether a wait is over or freed
SHORTEST_LOOK = 0.0005
LONGEST_LOOK = 0.05


class waiting(InCall):
    """A context manager around a wait for other ranks in Python code.

    Such as a loop that looks at shared memory:

        with distlab.waiting("through shared memory", [2]) as wait:
            while not there():
                wait.check()
                time.sleep(0.001)

    A report then says "waits through shared memory for rank 2", a deadlock can be proven, and
    `check` frees the rank by raising a RuntimeError. Inside a call of a process group, reports show
    that call. Without a cluster it changes nothing.

    Runs on: a rank, any thread.

    Args:
        words: by what means it waits.
        ranks: those that must act before the wait can end; if there are none, it is never called a
            deadlock.
    """

    def __init__(self, words: str, ranks: Iterable[int]):
        ranks = [private.whole(rank) for rank in ranks]
        for rank in ranks:
            if not isinstance(rank, int):
                advice = "For example: distlab.waiting(words, [1])."
                refuse("ranks", "whole numbers", ranks, advice)
        self._words = freed.from_waiting(words)
        self._freed_before = LOG.freed
        under_way = LOG.waiting_in.get(threading.get_ident())
        super().__init__(under_way or Note("waiting", WAITING, ranks, words))

    def check(self) -> None:
        """Raise a RuntimeError if this rank was freed since the wait began."""
        if LOG.freed != self._freed_before:
            raise RuntimeError(self._words)


def wait_until(condition: Callable[[], bool], freed_with: str, limit: float = math.inf) -> bool:
    """Wait in Python until a condition is true.

    Args:
        condition: looks whether it is so.
        freed_with: the words of the RuntimeError if this rank is freed meanwhile.
        limit: seconds to wait.

    Returns:
        whether it became true in time.
    """

    def look_and_sleep(seconds: float) -> bool:
        if condition():
            return True
        time.sleep(seconds)
        return False

    return wait_in_steps(look_and_sleep, freed_with, limit)


def wait_in_steps(step: Callable[[float], bool], freed_with: str, limit: float = math.inf) -> bool:
    """Wait in Python, in steps between which this rank can be freed.

    Args:
        step: waits for up to as many seconds as it is given; returns whether the wait is over.
        freed_with: the words of the RuntimeError if this rank is freed meanwhile.
        limit: seconds to wait.

    Returns:
        whether it was over in time.
    """
    freed_before = LOG.freed
    began = time.monotonic()
    seconds = SHORTEST_LOOK
    while not step(seconds):
        if LOG.freed != freed_before:
            raise RuntimeError(freed_with)
        if time.monotonic() - began > limit:
            return False
        seconds = min(2 * seconds, LONGEST_LOOK)
    return True


def wait_elsewhere(call: Callable[[], Any], freed_with: str) -> Any:
    """Wait on another thread, so that the watchdog can free this one.

    For waits in C++ that use no connection of this process. The thread that is left behind ends at
    its timeout.

    Args:
        call: waits in C++.
        freed_with: the words of the RuntimeError if this rank is freed meanwhile.
    """
    outcome: futures.Future[Any] = futures.Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except Exception as error:  # raised where it is waited for
            outcome.set_exception(error)

    def has_come_within(seconds: float) -> bool:
        done, _ = futures.wait([outcome], seconds)
        return bool(done)

    threading.Thread(target=work, name=WAITING_THREAD, daemon=True).start()
    wait_in_steps(has_come_within, freed_with)
    return outcome.result()


def close_blocked_groups() -> None:
    """Close the connections of groups in which this rank has dropped an irecv.

    gloo may have stopped reading from them. Then it does not see that they are shut down, and a
    wait in the group would not end.

    Runs on: a rank, any thread, where the group is to be left.
    """
    for group, name in list(private.GROUP_NAMES.items()):
        peers = _peers_of_dropped_irecvs(name)
        if ANY_SOURCE in peers:
            peers = set(range(group.size())) - {group.rank()}
        for peer in sorted(peers):
            private.close_connections(group, peer)


def _peers_of_dropped_irecvs(group: str) -> set[int]:
    """The sources, by their numbers in the group, of the irecvs that this rank has dropped."""
    peers = set()
    for kind in list(LOG.messages.dropped):  # a Work may go meanwhile
        if kind.group == group and not kind.is_send:
            peers.add(kind.peer)
    return peers


def has_abandoned_wait() -> bool:
    """Whether a thread still waits in C++ in the place of one that was freed.

    Runs on: a rank, where nothing else waits.
    """
    return any(thread.name == WAITING_THREAD for thread in threading.enumerate())
