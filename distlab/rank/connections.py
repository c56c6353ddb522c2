"""The TCP connections of a rank: gloo waits on them in C++, where no Python code can reach it.

Runs on every rank, on the watchdog's thread, called by watchdog.py, status.py and freeing.py;
group.py and rpc.py have them shut on the main thread when the group is left.
"""

import contextlib
import fcntl
import os
import socket
import stat
import struct
import termios
from collections.abc import Iterator
from typing import NamedTuple

# offsets in Linux's struct tcp_info, of two numbers of 8 bytes that follow each other
BYTES_ACKED = 120
BYTES_RECEIVED = 128


class Traffic(NamedTuple):
    """Bytes in the connections of this rank.

    Attributes:
        moved: bytes that were sent and have arrived, since each connection was opened.
        unread: bytes that have arrived and wait to be read.
        unsent: bytes that the other end has not received yet.
    """

    moved: int = 0
    unread: int = 0
    unsent: int = 0


def _sockets() -> Iterator[tuple[int, int]]:
    """Descriptor and inode of every open socket: no later socket has both."""
    for name in os.listdir("/dev/fd"):
        descriptor = int(name)
        with contextlib.suppress(OSError):  # closed meanwhile
            seen = os.fstat(descriptor)
            if stat.S_ISSOCK(seen.st_mode):
                yield descriptor, seen.st_ino


def _bytes_in(end: socket.socket, question: int) -> int:
    """How many bytes wait in a socket, to be read or to be received by its peer."""
    answer = fcntl.ioctl(end, question, b"\0\0\0\0")
    (count,) = struct.unpack("=i", answer)
    return count


def _is_tcp(end: socket.socket) -> bool:
    is_of_internet = end.family in (socket.AF_INET, socket.AF_INET6)
    return is_of_internet and end.type == socket.SOCK_STREAM


class Connections:
    """The TCP connections that gloo and the learner have opened since this was made.

    The connection to the cluster's store is opened after it as well, and is told by its port.

    Attributes:
        store_port: the port of the cluster's store.
    """

    def __init__(self, store_port: int) -> None:
        self.store_port = store_port
        self._others = set(_sockets())

    def _ends(self, with_store: bool) -> Iterator[socket.socket]:
        """The connections, as duplicates; with or without that to the store."""
        for descriptor, _ in set(_sockets()) - self._others:
            # closed meanwhile, or not connected
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as end:
                if not _is_tcp(end):
                    continue
                _, port, *_ = end.getpeername()
                if with_store or port != self.store_port:
                    yield end

    def traffic(self) -> Traffic:
        """What moves through the connections, not to the store."""
        moved = 0
        unread = 0
        unsent = 0
        for end in self._ends(with_store=False):
            # not on Linux, or an old one
            with contextlib.suppress(OSError, AttributeError, struct.error):
                unread += _bytes_in(end, termios.FIONREAD)
                unsent += _bytes_in(end, termios.TIOCOUTQ)
                info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_RECEIVED + 8)
                acked, received = struct.unpack_from("=QQ", info, BYTES_ACKED)
                moved += acked + received
        return Traffic(moved, unread, unsent)

    def shut(self, how: int = socket.SHUT_RDWR, with_store: bool = False) -> None:
        """Shut the connections down: a call that waits on one of them raises at once.

        Args:
            how: SHUT_RD is enough for gloo, whose thread always reads, and lets it write what it
                has in hand.
            with_store: whether to shut the connection to the store as well.
        """
        for end in self._ends(with_store):
            with contextlib.suppress(OSError):  # its peer has closed it
                end.shutdown(how)
