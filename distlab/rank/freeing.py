"""Brings back a thread of this rank that waits in communication.

Runs on every rank, on the watchdog's thread, called by watchdog.py when the notebook orders it.
"""

import socket
import sys
import time

from distlab.rank.connections import Connections
from distlab.rank.log import LOG
from distlab.rank.waits import close_blocked_groups

PATIENCE_SECONDS = 0.1  # for a freed call to come back before the connection to the store goes, too


def free(thread: int, connections: Connections, gently: bool = False) -> None:
    """Bring back a thread that waits in communication: from gloo and MPI first, from the store if
    that did not help.

    Nothing may be under way when the sockets are shut, or gloo forgets to end the wait for a send:
    signalException in its transport/tcp/pair.cc passes over those that are yet to be written.

    Args:
        gently: whether to leave it alone if it makes progress; if not, it also begins no more calls
            of its group.
    """
    before, call = _position(thread), LOG.waiting_in.get(thread)
    if not gently:
        LOG.free()
    moved, deadline = None, time.monotonic() + PATIENCE_SECONDS
    while moved != (moved := connections.traffic()) and time.monotonic() < deadline:
        time.sleep(0.01)
    # it did not wait; if it does later, the order comes again
    if gently and LOG.waiting_in.get(thread) is not call:
        return
    LOG.free()
    connections.shut(socket.SHUT_RD)
    close_blocked_groups()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (waits := _position(thread) == before) and time.monotonic() < deadline:
        time.sleep(0.005)
    if waits:
        connections.shut(with_store=True)


def _position(thread: int) -> tuple[int, int]:
    frame = sys._current_frames().get(thread)
    return (id(frame), frame.f_lasti) if frame else (0, 0)
