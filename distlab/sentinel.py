"""The sentinel: one daemon thread a rank that frees the main thread from gloo when a signal asks for it.

Runs on every rank, started by worker.py. While the main thread waits inside gloo no Python code runs on it, so that
neither KeyboardInterrupt nor gloo's own abort reaches it. The C part of Python's signal handling still writes the
signal's number to a wakeup descriptor; this thread reads it and shuts down gloo's TCP sockets: the blocked call raises
at once, and the KeyboardInterrupt follows. SIGUSR2 does the same without a KeyboardInterrupt: it frees a rank that
waits in communication and leaves one that computes alone. The group is broken then and must be rebuilt; variables stay.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Iterable

THREAD_NAME = "distlab-sentinel"


def watch(before: frozenset[tuple[int, int]], store_port: int) -> None:
    """Start the thread, or do nothing where it runs already.

    Runs on: a rank, on its main thread.

    Args:
        before: `sockets()` as it was before the group was built: these belong to others.
        store_port: connections to this port belong to the store.
    """
    if any(thread.name == THREAD_NAME for thread in threading.enumerate()):
        return
    listening, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    earlier = signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    others = before | {_identity(end.fileno()) for end in (listening, wakeup)}
    signal.signal(signal.SIGUSR2, lambda *_: None)
    arguments = (listening, wakeup, earlier, others, store_port, threading.main_thread().ident)
    threading.Thread(target=_serve, args=arguments, name=THREAD_NAME, daemon=True).start()


def _serve(
    listening: socket.socket, wakeup: socket.socket, earlier: int, others: frozenset, port: int, main: int
) -> None:
    while numbers := listening.recv(64):
        if earlier >= 0:
            os.write(earlier, numbers)
        if (signal.SIGINT in numbers or signal.SIGUSR2 in numbers) and in_communication(main):
            shut(sockets() - others, port)


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


def sockets() -> frozenset[tuple[int, int]]:
    """The open sockets of this process as (descriptor, inode), which no later socket can be taken for."""
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    identities = (_identity(int(name)) for name in os.listdir(folder))
    return frozenset(identity for identity in identities if identity is not None)


def shut(identities: Iterable[tuple[int, int]], store_port: int) -> int:
    """Shut down the connected TCP sockets among `identities`, those to the store excepted; return how many."""
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
                if is_tcp and end.getpeername()[1] != store_port:
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
