"""A network of hosts on this machine whose links have a latency and a rate: namespaces joined by a switch in Python.

Needs Linux and root. Every host has a TUN device; the switch reads each packet that leaves one, holds the sender's port
and the receiver's for its bytes / rate, adds the latency, and writes it to the receiver's device. What is between are
the system's own TCP and IP, so that a program on these hosts runs as over real links.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import multiprocessing
import os
import select
import struct
import subprocess
import time
from collections.abc import Iterator

DEVICE, MTU = "link0", 9000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
SMALL = 120  # bytes of a packet that overtakes others at a port, as TCP's acknowledgements do in Linux's fair queues
# a connection that was idle starts as quickly as one that was not, and its window holds what a long link carries
SETTINGS = {
    "net/ipv4/tcp_slow_start_after_idle": "0",
    "net/ipv4/tcp_rmem": "4096 4194304 16777216",
    "net/ipv4/tcp_wmem": "4096 4194304 16777216",
}


def why_not() -> str:
    """Why there can be no such network here; "" when there can."""
    if os.name != "posix" or not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    return "" if subprocess.run(["ip", "netns"], capture_output=True, check=False).returncode == 0 else "no ip netns"


def address(host: int) -> str:
    """The address of a host."""
    return f"10.77.0.{host + 1}"


def on(host: int) -> list[str]:
    """What a command line begins with to run on a host."""
    return ["nsenter", f"--net=/var/run/netns/{_name(host)}"]


@contextlib.contextmanager
def network(n: int, latency: float, rate: float) -> Iterator[None]:
    """`n` hosts on one switch, while the context lasts.

    Args:
        latency: seconds that each packet travels. rate: bytes a second of each host's port, in each direction.
    """
    switch = None
    try:
        devices = [_host(host) for host in range(n)]
        switch = multiprocessing.get_context("fork").Process(target=_switch, args=(devices, latency, rate))
        switch.start()
        for device in devices:
            os.close(device)
        yield
    finally:
        if switch is not None:
            switch.kill()
            switch.join()
        for host in range(n):
            subprocess.run(["ip", "netns", "del", _name(host)], capture_output=True, check=False)


def _name(host: int) -> str:
    return f"distlab-{os.getpid()}-{host}"


def _host(host: int) -> int:
    """A namespace with a TUN device; the device's descriptor."""
    subprocess.run(["ip", "netns", "add", _name(host)], check=True)
    device = _tun(f"/var/run/netns/{_name(host)}")
    for command in (
        f"ip addr add {address(host)}/24 dev {DEVICE}",
        f"ip link set {DEVICE} mtu {MTU} txqueuelen 10000 up",
        "ip link set lo up",
    ):
        subprocess.run([*on(host), *command.split()], check=True)
    for name, value in SETTINGS.items():
        subprocess.run([*on(host), "sysctl", "-qw", f"{name.replace('/', '.')}={value}"], check=True)
    return device


def _tun(namespace: str) -> int:
    """Open a TUN device that is in a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net") as home, open(namespace) as there:
        if libc.setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        try:
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
        finally:
            libc.setns(home.fileno(), CLONE_NEWNET)
    return device


def _switch(devices: list[int], latency: float, rate: float) -> None:
    """Carry packets until the process is killed: each waits for two ports and the link."""
    out, into = [0.0] * len(devices), [0.0] * len(devices)  # when each port is free
    under_way: list[tuple[float, int, int, bytes]] = []
    poll = select.epoll()
    for device in devices:
        poll.register(device, select.EPOLLIN)
    host_of, count = {device: host for host, device in enumerate(devices)}, 0
    while True:
        pause = max(0.0, under_way[0][0] - time.monotonic()) if under_way else -1
        for device, _ in poll.poll(pause):
            for packet in _packets(device):
                dst = packet[19] - 1 if packet[0] >> 4 == 4 else -1  # the last byte of an IPv4 packet's address
                if dst not in range(len(devices)):
                    continue
                now, seconds = time.monotonic(), len(packet) / rate
                arrives = now + latency + seconds
                if len(packet) > SMALL:
                    begin = max(now, out[host_of[device]])
                    out[host_of[device]] = begin + seconds
                    arrives = into[dst] = max(begin + latency, into[dst]) + seconds
                count += 1
                heapq.heappush(under_way, (arrives, count, dst, packet))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, dst, packet = heapq.heappop(under_way)
            with contextlib.suppress(BlockingIOError):  # the host takes no more: TCP sends it again
                os.write(devices[dst], packet)


def _packets(device: int) -> Iterator[bytes]:
    with contextlib.suppress(BlockingIOError):
        while True:
            yield os.read(device, MTU + 100)
