"""The programs that practice hosts run: the cable of a command, and the slow link of a host.

They are processes of their own, started by practice.py.

`python practice_programs.py cable HERE NAMESPACE COMMAND...` is on the notebook's machine, for a
cluster: a command that enters a practice host, whose stdin and stdout go over the host's cable, as
ssh's do, so that both are silent when it is cut. They are a connection to `HERE`, the machine's
address on the hosts' network, from a socket that was made in the host's namespace.

`python practice_programs.py slow_link NAMESPACE OUTER INNER SECONDS` carries each packet between
two interfaces, late by the latency, until the notebook's process, at the other end of its standard
input, ends. It makes both interfaces (TAP): OUTER in the network where it was started, INNER in the
namespace, where it goes on, so that it ends with what runs there. They go away with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

CONNECT_SECONDS = 10.0  # as distlab's for ssh
# <linux/if_tun.h>
TUNSETIFF = 0x400454CA
IFF_TUN = 0x0001
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000
CLONE_NEWNET = 0x40000000  # <sched.h>
LARGEST_PACKET = 65536
STDIN = 0
AT_ONCE = 64  # packets of one end, before the other end has its turn


# --- the cable of a command ---


def cable(here: str, namespace: str, *command: str) -> int:
    """Run a command that enters the host, and return its exit status."""
    with socket.create_server((here, 0)) as listener:
        # a thread may be in another namespace than its process
        with ThreadPoolExecutor(1) as inside:
            inside.submit(enter, namespace).result()
            far = inside.submit(connect, listener.getsockname()).result()
        near, _ = listener.accept()
    process = subprocess.Popen(command, stdin=far.fileno(), stdout=far.fileno())
    far.close()
    with near:
        threading.Thread(target=send, args=(near,), daemon=True).start()
        while received := near.recv(1 << 16):
            os.write(1, received)
    return process.wait()


def connect(address: tuple[str, int]) -> socket.socket:
    """A connection to the address, from the namespace of this thread."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            far = socket.create_connection(address, timeout=CONNECT_SECONDS)
            far.settimeout(None)
            return far
        except OSError:
            # right after a cable was plugged in again, the system may refuse for a second or two
            if time.monotonic() > deadline:
                sys.exit("Connection timed out: the host does not answer")
            time.sleep(0.1)


def send(end: socket.socket) -> None:
    """Carry stdin there, until it ends."""
    with contextlib.suppress(OSError):  # the host has ended the connection
        while written := os.read(0, 1 << 16):
            end.sendall(written)
        end.shutdown(socket.SHUT_WR)


# --- the slow link of a host ---


class Packet(NamedTuple):
    """What was sent into one end of a slow link, and when the other end has to write it."""

    due: float  # by time.monotonic()
    content: bytes


def slow_link(namespace: str, outer: str, inner: str, seconds: str) -> None:
    """Make the interfaces, enter the namespace, and carry packets."""
    ends = [interface(outer)]
    enter(namespace)
    ends.append(interface(inner))
    print("ready", flush=True)
    carry(ends, float(seconds))


def enter(namespace: str | os.PathLike[str]) -> None:
    """Go on in a network namespace, which a file stands for."""
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns is there from Python 3.12
    with open(namespace) as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def interface(name: str, kind: int = IFF_TAP) -> int:
    """The descriptor of an interface, which is made if it is not there.

    What is read from it was sent into the interface, and what is written comes out of it.
    """
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", name.encode(), kind | IFF_NO_PI)  # a struct ifreq
    fcntl.ioctl(device, TUNSETIFF, request)
    return device


def carry(ends: list[int], seconds: float) -> None:
    """Write to each end what the other end sent `seconds` ago, until standard input ends."""
    first, second = ends
    waiting: dict[int, deque[Packet]] = {first: deque(), second: deque()}
    while True:
        # not poll, which knows no time shorter than a millisecond; all descriptors of this program
        # are small
        ready, _, _ = select.select([first, second, STDIN], [], [], until_due(waiting))
        if STDIN in ready:
            return
        if first in ready:
            receive(first, waiting[second], seconds)
        if second in ready:
            receive(second, waiting[first], seconds)
        for end, packets in waiting.items():
            deliver(packets, end)


def until_due(waiting: dict[int, deque[Packet]]) -> float | None:
    """Seconds until the next packet is due; None if there is none."""
    due = [packets[0].due for packets in waiting.values() if packets]
    if not due:
        return None
    return max(0.0, min(due) - time.monotonic())


def receive(end: int, packets: deque[Packet], seconds: float) -> None:
    """Read packets from an end, which are due on the other one in so many seconds."""
    with contextlib.suppress(BlockingIOError):
        for _ in range(AT_ONCE):
            content = os.read(end, LARGEST_PACKET)
            packets.append(Packet(time.monotonic() + seconds, content))


def deliver(packets: deque[Packet], end: int) -> None:
    """Write the packets that are due to an end."""
    while packets and packets[0].due <= time.monotonic():
        packet = packets.popleft()
        # an interface that is down, or full, loses packets, as a cable does
        with contextlib.suppress(OSError):
            os.write(end, packet.content)


def main() -> int | None:
    """Run the program that the first argument names, with the others; its exit status."""
    program, *arguments = sys.argv[1:]
    if program == "cable":
        return cable(*arguments)
    if program == "slow_link":
        slow_link(*arguments)
        return None
    raise ValueError(f"no program {program!r}")


if __name__ == "__main__":
    sys.exit(main())
