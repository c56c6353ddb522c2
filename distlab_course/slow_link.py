"""The slow link of a practice host: carries each packet between two interfaces, late by the latency.

Runs as `python slow_link.py NAMESPACE OUTER INNER SECONDS`, a process for each link, until the notebook's process, at
the other end of its standard input, ends. It makes both interfaces (TAP): OUTER in the network where it was started,
INNER in the namespace, where it goes on, so that it ends with what runs there. They go away with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000  # <linux/if_tun.h>
CLONE_NEWNET = 0x40000000  # <sched.h>
LARGEST_PACKET = 65536
AT_ONCE = 64  # packets of one end, before the other end has its turn


def interface(name: str) -> int:
    """The descriptor of a new interface: what is read was sent into it, what is written comes out of it."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return tap


def enter(namespace: str) -> None:
    """Go on in another network namespace."""
    with open(namespace) as file:  # os.setns is there from Python 3.12
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def carry(ends: list[int], seconds: float) -> None:
    """Write to each end what the other end sent `seconds` ago, until standard input ends."""
    waiting: dict[int, deque[tuple[float, bytes]]] = {end: deque() for end in ends}
    while True:
        due = [packets[0][0] for packets in waiting.values() if packets]
        timeout = max(0.0, min(due) - time.monotonic()) if due else None
        ready, _, _ = select.select([*ends, 0], [], [], timeout)
        if 0 in ready:
            return
        for source, target in (ends, ends[::-1]):
            with contextlib.suppress(BlockingIOError):
                for _ in range(AT_ONCE if source in ready else 0):
                    packet = os.read(source, LARGEST_PACKET)
                    waiting[target].append((time.monotonic() + seconds, packet))
        for end, packets in waiting.items():
            while packets and packets[0][0] <= time.monotonic():
                with contextlib.suppress(OSError):  # an interface that is down, or full, loses packets, as a cable does
                    os.write(end, packets.popleft()[1])


def main(namespace: str, outer: str, inner: str, seconds: str) -> None:
    ends = [interface(outer)]
    enter(namespace)
    ends.append(interface(inner))
    print("ready", flush=True)
    carry(ends, float(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
