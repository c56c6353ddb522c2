"""Where the ranks meet: one TCPStore, and the addresses and the identity of this machine.

Runs on the notebook's kernel (starting.py), in the process that forks the ranks, and on every
rank. The store listens only on the loopback interface, or with several hosts on one interface of
the first, on a port that the system chose: any number of clusters can run side by side. Every
(re)build of the process group is a *generation* with its own keys: gloo reads stale addresses, and
hangs, if a group is rebuilt under used keys.
"""

import contextlib
import errno
import functools
import os
import random
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

INIT_METHODS = ("tcp", "env", "file")
# what gloo, and RPC, read the network interface from
INTERFACES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


@dataclass(frozen=True)
class Meeting:
    """What a rank needs to join one generation of the group.

    Attributes:
        init_method: how the ranks find each other: "tcp", "env" or "file".
        backend: torch.distributed's backend name.
        world_size: number of ranks.
        timeout: seconds that a communication call may wait for its peers.
        patience: seconds that ranks wait for each other before they build the group.
        host, port: the store.
        name: the generation's. All its keys in the store begin with it; for "file", it is also the
            path of the file.
        channel: host, port and token of the notebook's `ControlChannel`, which asks the ranks what
            they are doing.
        hosts: number of each rank's host, by rank; none if all are on one machine.
        builds: whether a group is built; a program makes its own.
    """

    init_method: str
    backend: str
    world_size: int
    timeout: float
    patience: float
    host: str
    port: int
    name: str
    channel: tuple[str, int, str]
    hosts: tuple[int, ...] = ()
    builds: bool = True


@dataclass(frozen=True)
class Joined:
    """A process has become a rank of a generation.

    Attributes:
        pid: its process number.
        machine: where that number is valid, see `this_machine`.
        subgroups: whether groups of dist.new_group ended with the generation before.
        rpc: whether RPC ended with it.
    """

    pid: int
    machine: tuple[str, str]
    subgroups: bool = False
    rpc: bool = False


def loopback_interface() -> str:
    """Name of the network interface that carries 127.0.0.1: "lo" on Linux, "lo0" on macOS.

    Runs on: anywhere.
    """
    return "lo0" if sys.platform == "darwin" else "lo"


def address_towards(host: str) -> str:
    """The address of this machine from which it reaches another one.

    Nothing is sent: the system only looks up its route. Runs on: anywhere.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        address, _ = probe.getsockname()
        return str(address)


def addresses() -> dict[str, list[str]]:
    """The IPv4 addresses of this machine by network interface. Runs on: anywhere."""
    import psutil

    found = {}
    for name, of_interface in psutil.net_if_addrs().items():
        own = [one.address for one in of_interface if one.family == socket.AF_INET]
        if own:
            found[name] = own
    return found


def interface_of(address: str) -> str:
    """Name of the network interface of this machine that has an address. Runs on: anywhere."""
    for name, own in addresses().items():
        if address in own:
            return name
    return loopback_interface()


@functools.cache
def this_machine() -> tuple[str, str]:
    """The machine's boot and the namespace of its process numbers.

    They are equal in two processes that share process numbers. Two machines whose first parts are
    equal share a clock.

    Runs on: anywhere.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    started = boot.read_text().strip() if boot.exists() else socket.gethostname()
    with contextlib.suppress(OSError):
        return started, os.readlink("/proc/self/ns/pid")
    return started, ""


def used_megabytes() -> float:
    """The memory of this process in megabytes.

    Pages that it shares count in proportion if the system reports that, and else as a whole.
    """
    import psutil

    memory = psutil.Process().memory_full_info()
    num_bytes: int = getattr(memory, "pss", memory.rss)
    return num_bytes / 1e6


def serve(listener: socket.socket) -> Any:
    """A TCPStore at the address of `listener`.

    Given only an address, torch would listen on every interface.

    Runs on: the notebook's kernel, or the process that forks the ranks.
    """
    from torch.distributed import TCPStore

    host, port = listener.getsockname()
    descriptor = listener.detach()  # the store owns the socket from here on
    return TCPStore(
        host,
        port,
        is_master=True,
        timeout=timedelta(seconds=60),
        wait_for_workers=False,
        master_listen_fd=descriptor,
    )


def listen(address: str = "127.0.0.1") -> socket.socket:
    """A listening socket at one address of this machine, at a port that the system chose."""
    return socket.create_server((address, 0), backlog=socket.SOMAXCONN)


def free_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """Ports that are free now, and likely to stay free until the controller binds them.

    They are below the range of outgoing connections, in the first free block in a random order, so
    that clusters of several notebooks that start at the same moment hardly ever collide.

    Raises:
        OSError: this machine does not have the address, or may not bind these ports.
    """
    order = random.Random()  # a seed of a person's own would be the same in every notebook
    while True:
        first = order.randrange(10_000, 32_000 - count)
        ports = list(range(first, first + count))
        try:
            _bind_all(ports, address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        return ports


def _bind_all(ports: Iterable[int], address: str) -> None:
    """Bind each of these ports for a moment, all at the same time."""
    with contextlib.ExitStack() as probes:
        for port in ports:
            probe = probes.enter_context(socket.socket())
            probe.bind((address, port))
