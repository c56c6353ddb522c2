"""Brings back a thread of this rank that waits in communication.

Runs on every rank, on the watchdog's thread, called by watchdog.py when the notebook orders it.
"""

import socket
import sys
import time

from distlab.rank.connections import Connections
from distlab.rank.log import LOG
from distlab.rank.waits import close_blocked_groups

# for bytes under way to arrive; and for a freed call to come back, before the connection to the
# store goes as well
PATIENCE_SECONDS = 0.1


def free(thread: int, connections: Connections, gently: bool = False) -> None:
    """Bring back a thread that waits in communication.

    Gloo and MPI give it back when their connections are shut down. A store has one of its own,
    which is only shut down if that did not help: it must be made again.

    Args:
        gently: whether to leave it alone if it makes progress; if not, it also begins no more calls
            of its group.
    """
    position = _frame_and_instruction(thread)
    call = LOG.waiting_in.get(thread)
    if not gently:
        LOG.free()
    _wait_until_nothing_moves(connections)
    # the call has ended by itself meanwhile; if the next one waits, the notebook orders it again
    if gently and LOG.waiting_in.get(thread) is not call:
        return
    LOG.free()
    connections.shut(socket.SHUT_RD)
    close_blocked_groups()
    if _stays(thread, position):
        connections.shut(with_store=True)


def _wait_until_nothing_moves(connections: Connections) -> None:
    """Return when nothing is under way in the sockets, or after a while.

    If they were shut before, gloo would forget to end the wait for a send: signalException in its
    transport/tcp/pair.cc passes over those that are yet to be written.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    before = None
    now = connections.traffic()
    while now != before and time.monotonic() < deadline:
        time.sleep(0.01)
        before = now
        now = connections.traffic()


def _stays(thread: int, position: tuple[int, int]) -> bool:
    """Whether a thread is still in this position after a while; False as soon as it has moved."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while _frame_and_instruction(thread) == position:
        if time.monotonic() >= deadline:
            return True
        time.sleep(0.005)
    return False


def _frame_and_instruction(thread: int) -> tuple[int, int]:
    """The innermost frame of a thread, and the instruction there."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return (0, 0)
    return (id(frame), frame.f_lasti)
