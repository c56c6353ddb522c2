"""A network of hosts on this machine whose links have a latency and a rate.

They are practice hosts, and a switch in Python.

Needs Linux and root. Every host has a TUN device; the switch reads each packet that leaves one,
holds the sender's port and the receiver's for its bytes / rate, adds the latency, and writes it to
the receiver's device. What is between are the system's own TCP and IP, so that a program on these
hosts runs as over real links.
"""

from __future__ import annotations

import contextlib
import heapq
import multiprocessing
import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from distlab.errors import ClusterError
from distlab_course.practice import practice_hosts
from distlab_course.practice_programs import IFF_TUN, enter, interface

DEVICE = "link0"
MTU = 9000
# bytes of a packet that overtakes others at a port, as TCP's acknowledgements do in Linux's fair
# queues
SMALL = 120
# a connection that was idle starts as quickly as one that was not, and its window holds what a long
# link carries
SETTINGS = {
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_rmem": "4096 4194304 16777216",
    "net.ipv4.tcp_wmem": "4096 4194304 16777216",
}


def address(host: int) -> str:
    """The address of a host."""
    return f"10.78.0.{host + 1}"


@contextlib.contextmanager
def network(n: int, latency: float, rate: float) -> Iterator[list[list[str]]]:
    """`n` hosts on one switch, while the context lasts.

    Returns by host what a command line begins with to run there.

    Args:
        latency: seconds that each packet travels. rate: bytes a second of each host's port, in each
            direction.

    Raises:
        ClusterError: there can be no such network here.
    """
    with practice_hosts({f"host{number}": 1 for number in range(n)}) as hosts:
        if hosts.kind != "network namespaces":
            raise ClusterError(f"{hosts.why}.")
        commands = [hosts.command(name) for name in hosts]
        for number, command in enumerate(commands):
            for words in (
                ["ip", "tuntap", "add", "dev", DEVICE, "mode", "tun"],
                ["ip", "address", "add", f"{address(number)}/24", "dev", DEVICE],
                ["ip", "link", "set", DEVICE, "mtu", str(MTU), "txqueuelen", "10000", "up"],
                ["sysctl", "-qw", *(f"{name}={value}" for name, value in SETTINGS.items())],
            ):
                subprocess.run([*command, *words], check=True)
        arguments = [hosts.namespace(name) for name in hosts], latency, rate
        switch = multiprocessing.get_context("fork").Process(target=_switch, args=arguments)
        switch.start()
        try:
            yield commands
        finally:
            switch.kill()
            switch.join()


def _switch(namespaces: list[Path], latency: float, rate: float) -> None:
    """Carry packets until the process is killed: each waits for two ports and the link."""
    devices = []
    for namespace in namespaces:
        enter(namespace)
        devices.append(interface(DEVICE, IFF_TUN))
    # when each port is free, for what leaves the host and for what enters it
    out = [0.0] * len(devices)
    into = [0.0] * len(devices)
    under_way: list[tuple[float, int, int, bytes]] = []
    poll = select.epoll()
    for device in devices:
        poll.register(device, select.EPOLLIN)
    host_of = {device: host for host, device in enumerate(devices)}
    count = 0
    while True:
        pause = max(0.0, under_way[0][0] - time.monotonic()) if under_way else -1
        for device, _ in poll.poll(pause):
            for packet in _packets(device):
                # the last byte of an IPv4 packet's address
                dst = packet[19] - 1 if packet[0] >> 4 == 4 else -1
                if dst not in range(len(devices)):
                    continue
                now = time.monotonic()
                seconds = len(packet) / rate
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
