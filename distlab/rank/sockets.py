"""The TCP sockets of this process, and gloo's threads that read from them: what they have moved, and their end.

Runs on every rank, on the watchdog's thread: gloo waits on its sockets in C++, where no Python code can reach it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import struct
import termios
import threading
from collections.abc import Iterator

from distlab.compat.torch import GLOO_NAMES_ITS_LOOP
from distlab.rank.log import LOG

Identity = tuple[int, int]  # descriptor and inode, which no later socket can be taken for
BYTES_ACKED, BYTES_RECEIVED = 120, 128  # offsets in Linux's struct tcp_info
GLOO_LOOP = "gloo_tcp_loop"  # since torch 2.9, gloo's name for its thread that reads from sockets
ROUND_NANOSECONDS = 5_000_000
EPOLL_WAIT = ("232", "281", "22")  # Linux's numbers of epoll_wait and epoll_pwait, on x86-64 and on arm64


def _identity(descriptor: int) -> Identity | None:
    """What identifies an open socket; None of anything else."""
    with contextlib.suppress(OSError):
        found = os.fstat(descriptor)
        if stat.S_ISSOCK(found.st_mode):
            return descriptor, found.st_ino
    return None


def _there() -> frozenset[Identity]:
    """The open sockets of this process."""
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    return frozenset(filter(None, (_identity(int(name)) for name in os.listdir(folder))))


class Connections:
    """The TCP connections that gloo and the learner have opened since it was made, and those to stores.

    Attributes:
        store_port: of the cluster's store.
    """

    def __init__(self) -> None:
        self._others, self.store_port = _there(), 0

    def leave_out(self, end: socket.socket) -> None:
        """Take a connection for one that was there before."""
        self._others |= {_identity(end.fileno())}

    def _ends(self, stores: bool) -> Iterator[socket.socket]:
        """The connections, as duplicates; with or without those to stores."""
        spare = set() if stores else {self.store_port, *LOG.store_ports}
        for one in _there() - self._others:
            with contextlib.suppress(OSError):  # closed meanwhile, or not connected
                if _identity(one[0]) != one:
                    continue
                with socket.socket(fileno=os.dup(one[0])) as end:
                    is_tcp = end.family in (socket.AF_INET, socket.AF_INET6) and end.type == socket.SOCK_STREAM
                    if is_tcp and not {end.getsockname()[1], end.getpeername()[1]} & spare:
                        yield end

    def traffic(self) -> tuple[int, bool]:
        """How many bytes have moved, not to stores, and whether one waits to be sent, acknowledged or read."""
        moved, under_way = 0, False
        for end in self._ends(stores=False):
            with contextlib.suppress(OSError, AttributeError, struct.error):  # not on Linux, or an old one
                for question in (termios.FIONREAD, termios.TIOCOUTQ):
                    under_way |= fcntl.ioctl(end, question, b"\0\0\0\0") != b"\0\0\0\0"
                info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_RECEIVED + 8)
                moved += sum(struct.unpack_from("=QQ", info, BYTES_ACKED))
        return moved, under_way

    def shut(self, how: int = socket.SHUT_RDWR, stores: bool = False) -> None:
        """Shut the connections down: a call that waits on one of them raises at once.

        Args:
            how: SHUT_RD is enough for gloo, whose thread always reads, and lets it write what it has in hand.
            stores: whether those to stores, too.
        """
        for end in self._ends(stores):
            with contextlib.suppress(OSError):  # its peer has closed it
                end.shutdown(how)


def system_threads() -> set[int]:
    """The system's numbers of the threads of this process; none where /proc is missing."""
    return {int(name) for name in os.listdir("/proc/self/task")} if os.path.isdir("/proc/self/task") else set()


def loop_rounds(ours: set[int]) -> tuple[int, ...] | None:
    """How often each of gloo's threads that read from sockets has run; None while another thread runs or wants to run.

    One that finds nothing waits; one that finds a message that it must not take runs without a pause, and every few
    milliseconds of that count as a round.

    Args:
        ours: system numbers of threads that are not the learner's and not gloo's.
    """
    ours = ours | {thread.native_id for thread in threading.enumerate() if thread.name.startswith("distlab-")}
    found = []
    for task in system_threads():
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/status") as file:
            fields = dict(line.split(":", 1) for line in file)
            if fields["Name"].strip() == GLOO_LOOP:
                found.append(int(fields["voluntary_ctxt_switches"]) + _run_time(task) // ROUND_NANOSECONDS)
            elif task not in ours and fields["State"].split()[0] in ("R", "D"):
                return None
            elif task not in ours and not GLOO_NAMES_ITS_LOOP:
                _name_loop(task)
    return tuple(found)


def _run_time(task: int) -> int:
    """The nanoseconds that a thread has run; 0 where the system does not count them."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/self/task/{task}/schedstat") as file:
        return int(file.read().split()[0])
    return 0


def _name_loop(task: int) -> None:
    """Give a thread its name where it waits as only gloo's loop does: in epoll, for 10 ms at a time."""
    with open(f"/proc/self/task/{task}/syscall") as file:
        number, *arguments = file.read().split()
    if number in EPOLL_WAIT and arguments[3] == "0xa":
        with open(f"/proc/self/task/{task}/comm", "w") as file:
            file.write(GLOO_LOOP)
