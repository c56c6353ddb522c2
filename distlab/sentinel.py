"""The sentinel: one daemon thread a rank that brings the main thread back when a signal asks for it.

Runs on every rank, started by worker.py. While the main thread waits inside gloo no Python code runs on it, so that
neither KeyboardInterrupt nor gloo's own abort reaches it. The C part of Python's signal handling still writes the
signal's number to a wakeup descriptor; this thread reads it and shuts down gloo's TCP sockets: the blocked call raises
at once. A main thread that waits in a store instead loses its connection to that. The group is broken then and must be
rebuilt; variables stay.

The notebook sends `FREE`, which frees a rank that waits in communication and leaves others alone, or `COME_BACK`, which
also interrupts one that computes, but not one that is just telling of an exception.
"""

from __future__ import annotations

import functools
import os
import select
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

FREE, COME_BACK = signal.SIGUSR2, signal.SIGUSR1
THREAD_NAME = "distlab-sentinel"
PATIENCE_SECONDS = 0.1  # what a freed call has to come back before the store's connection goes too


def connect(host: str, port: int) -> Any:
    """This rank's one connection to the cluster's TCPStore; made anew only after it was shut down.

    Runs on: a rank.
    """
    store = _connection(host, port)
    try:
        store.num_keys()
    except Exception:
        _connection.cache_clear()
        store = _connection(host, port)
    return store


@functools.cache
def _connection(host: str, port: int) -> Any:
    from torch.distributed import TCPStore

    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=60))


def watch(others: frozenset[tuple[int, int]], store_port: int) -> None:
    """Start the thread, or do nothing where it runs already.

    Runs on: a rank, on its main thread.

    Args:
        others: `sockets()` as it was before the group was built and the store connected to: never shut down.
        store_port: port of the store.
    """
    if any(thread.name == THREAD_NAME for thread in threading.enumerate()):
        return
    listening, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    earlier = signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    for number in (FREE, COME_BACK):
        signal.signal(number, lambda *_: None)
    others |= {_identity(end.fileno()) for end in (listening, wakeup)}
    _Thread((listening, wakeup), earlier, threading.main_thread().ident, others, store_port).start()


def settle() -> None:
    """Return when the thread has acted on every signal that has come.

    Called before a group is built: a signal that was meant for the call before must not break the new group.

    Runs on: a rank, on its main thread.
    """
    acting = next((t for t in threading.enumerate() if t.name == THREAD_NAME), None)
    while acting is not None and not acting.idle():
        time.sleep(0.001)


class _Thread(threading.Thread):
    """The sentinel's thread: reads the numbers of signals from one end of a socket pair, and acts on them."""

    def __init__(
        self, ends: tuple[socket.socket, socket.socket], earlier: int, main: int, others: frozenset, port: int
    ):
        super().__init__(name=THREAD_NAME, daemon=True)
        self._listening, self._wakeup = ends
        self._earlier, self._main, self._others, self._port = earlier, main, others, port
        self._acting = threading.Lock()

    def run(self) -> None:
        while select.select([self._listening], [], []):
            with self._acting:
                self._act(self._listening.recv(64))

    def idle(self) -> bool:
        """Whether it has nothing to act on."""
        with self._acting:
            return not select.select([self._listening], [], [], 0)[0]

    def _act(self, numbers: bytes) -> None:
        if self._earlier >= 0:
            os.write(self._earlier, numbers)
        asked = {signal.SIGINT, FREE, COME_BACK} & set(numbers)
        if asked and in_communication(self._main):
            free(self._main, sockets() - self._others, self._port)
        elif COME_BACK in asked and computes(self._main):
            os.kill(os.getpid(), signal.SIGINT)


def free(thread: int, mine: frozenset[tuple[int, int]], store_port: int) -> None:
    """Bring back a thread that waits in communication: from gloo first, from the store if that did not help."""
    before = _position(thread)
    shut(mine, spare=store_port)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while _position(thread) == before and time.monotonic() < deadline:
        time.sleep(0.005)
    if _position(thread) == before:
        shut(mine, spare=None)


def _position(thread: int) -> tuple[int, int]:
    frame = sys._current_frames().get(thread)
    return (id(frame), frame.f_lasti) if frame else (0, 0)


def in_communication(thread: int) -> bool:
    """Whether the thread with this identifier is inside a call of torch.distributed, or in a backward pass.

    Runs on: a rank, in any thread.
    """
    frame = sys._current_frames().get(thread)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(("torch.distributed", "torch.autograd")):
            return True
        frame = frame.f_back
    return False


def computes(thread: int) -> bool:
    """Whether the thread runs a cell or a call of the notebook's, and is not telling of an exception in it.

    Runs on: a rank, in any thread.
    """
    names = set()
    frame = sys._current_frames().get(thread)
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return bool(names & {"run_code", "do_apply"}) and not names & {"showtraceback", "describe_failure", "settle"}


def sockets() -> frozenset[tuple[int, int]]:
    """The open sockets of this process as (descriptor, inode), which no later socket can be taken for."""
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    identities = (_identity(int(name)) for name in os.listdir(folder))
    return frozenset(identity for identity in identities if identity is not None)


def shut(identities: Iterable[tuple[int, int]], spare: int | None) -> int:
    """Shut down the connected TCP sockets among `identities`, but those to the port `spare`; return how many."""
    count = 0
    for descriptor, inode in identities:
        if _identity(descriptor) != (descriptor, inode):
            continue
        try:
            end = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue
        with end:
            try:
                is_tcp = end.family in (socket.AF_INET, socket.AF_INET6) and end.type == socket.SOCK_STREAM
                if is_tcp and end.getpeername()[1] != spare:
                    end.shutdown(socket.SHUT_RDWR)
                    count += 1
            except OSError:
                continue  # not connected: a listening socket, or one that its peer has closed
    return count


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return (descriptor, status.st_ino) if stat.S_ISSOCK(status.st_mode) else None
