"""The TCP sockets of this process: which there are, what they have moved, and their end.

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
from collections.abc import Collection, Iterator

Identity = tuple[int, int]  # descriptor and inode, which no later socket can be taken for
BYTES_ACKED, BYTES_RECEIVED = 120, 128  # offsets in Linux's struct tcp_info


def identity(descriptor: int) -> Identity | None:
    """What identifies an open socket; None of anything else."""
    with contextlib.suppress(OSError):
        found = os.fstat(descriptor)
        if stat.S_ISSOCK(found.st_mode):
            return descriptor, found.st_ino
    return None


def there() -> frozenset[Identity]:
    """The open sockets of this process."""
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    return frozenset(filter(None, (identity(int(name)) for name in os.listdir(folder))))


def ends(identities: frozenset[Identity], spare: Collection[int] = ()) -> Iterator[socket.socket]:
    """The connected TCP sockets among the identities, as duplicates; not those from or to the ports `spare`."""
    for one in identities:
        with contextlib.suppress(OSError):  # closed meanwhile, or not connected
            if identity(one[0]) != one:
                continue
            with socket.socket(fileno=os.dup(one[0])) as end:
                is_tcp = end.family in (socket.AF_INET, socket.AF_INET6) and end.type == socket.SOCK_STREAM
                if is_tcp and not {end.getsockname()[1], end.getpeername()[1]} & {*spare}:
                    yield end


def traffic(identities: frozenset[Identity], spare: Collection[int]) -> tuple[int, bool]:
    """How many bytes these sockets have moved, and whether one waits to be sent, to be acknowledged or to be read."""
    moved, under_way = 0, False
    for end in ends(identities, spare):
        with contextlib.suppress(OSError, AttributeError, struct.error):  # not on Linux, or an old one
            for question in (termios.FIONREAD, termios.TIOCOUTQ):
                under_way |= fcntl.ioctl(end, question, b"\0\0\0\0") != b"\0\0\0\0"
            info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_RECEIVED + 8)
            moved += sum(struct.unpack_from("=QQ", info, BYTES_ACKED))
    return moved, under_way


def shut(identities: frozenset[Identity], how: int = socket.SHUT_RDWR, spare: Collection[int] = ()) -> None:
    """Shut these sockets down: a call that waits on one of them raises at once.

    Args:
        how: SHUT_RD is enough for gloo, whose thread always reads, and lets it write what it has in hand.
    """
    for end in ends(identities, spare):
        with contextlib.suppress(OSError):  # its peer has closed it
            end.shutdown(how)
