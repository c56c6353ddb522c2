"""Where the ranks meet: one TCPStore, served by the notebook's process or by the process that forks the ranks.

Called by ranks.py in the notebook's kernel, and by forkserver.py. The store listens on the loopback interface only, on
a port that the system chose, so any number of clusters run side by side. Every (re)build of the process group is a
*generation* with keys of its own: gloo reads stale addresses, and hangs, when a group is rebuilt under used keys.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

INIT_METHODS = ("tcp", "env", "file")


@dataclass(frozen=True)
class Meeting:
    """What a rank needs to join one generation of the group; plain values, sent to every rank.

    Args:
        init_method: how the ranks find each other, one of `INIT_METHODS`.
        backend: torch.distributed's backend name.
        world_size: number of ranks.
        timeout: seconds that a communication call may wait for its peers.
        host, port: the store in the notebook's process.
        prefix: the generation's name, which starts all its keys in the store.
        path: the generation's file, for init_method "file".
        line: host, port and token of the notebook's `line.Line`, which asks the ranks what they do.
    """

    init_method: str
    backend: str
    world_size: int
    timeout: float
    host: str
    port: int
    prefix: str
    path: str
    line: tuple[str, int, str]


class Rendezvous:
    """Serves the store and names the generations.

    Runs on: the notebook's kernel. Serving a store here imports torch, if it is not there yet: most of the cost.

    Args:
        folder: a private folder for the files of init_method "file".
        line: address of the notebook's `line.Line`, for the meetings.
        store_port: port of a store that serves on 127.0.0.1 already; 0 serves one here.
    """

    def __init__(self, folder: str, line: tuple[str, int, str], store_port: int = 0):
        self._folder, self._line = folder, line
        self._generation = 0
        self._port = store_port
        self._stores: list[Any] = []

    def next_meeting(self, init_method: str, backend: str, world_size: int, timeout: float) -> Meeting:
        """A meeting whose keys no rank has used before."""
        self._generation += 1
        if self._port == 0:
            self._stores.append(serve())
            self._port = self._stores[-1].port
        prefix = f"distlab/{self._generation}"
        path = ""
        if init_method == "file":
            handle, path = tempfile.mkstemp(prefix=f"group-{self._generation}-", dir=self._folder)
            os.close(handle)
        return Meeting(init_method, backend, world_size, timeout, *self.address, prefix, path, self._line)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the store that serves now."""
        return "127.0.0.1", self._port

    def close(self) -> None:
        """Stop serving. Ranks that still need the store fail."""
        self._stores.clear()


def loopback_interface() -> str:
    """Name of the network interface that carries 127.0.0.1: "lo" on Linux, "lo0" on macOS.

    Runs on: anywhere.
    """
    if sys.platform == "darwin":
        return "lo0"
    try:
        names = [name for _, name in socket.if_nameindex()]
    except OSError:
        return "lo"
    return "lo" if "lo" in names else next((name for name in names if name.startswith("lo")), "lo")


def serve(listener: socket.socket | None = None) -> Any:
    """A TCPStore on 127.0.0.1, at `listener` or at a port that the system chooses.

    Given only an address torch would listen on every interface; given a socket, it listens there alone.

    Runs on: the notebook's kernel, or the process that forks the ranks.
    """
    from torch.distributed import TCPStore

    if listener is None:
        listener = listen()
    port = listener.getsockname()[1]
    return TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        timeout=timedelta(seconds=60),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # the store owns the socket from here on
    )


def listen() -> socket.socket:
    """A listening socket on 127.0.0.1, at a port that the system chose."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen(socket.SOMAXCONN)
    return listener


def free_ports(count: int) -> list[int]:
    """Ports on loopback that are free now, and that nobody else is likely to take before the controller binds them.

    They lie below the range of outgoing connections, in a block that belongs to this process's number:
    clusters of several notebooks that start at the same moment do not meet.
    """
    first, blocks = 10_000, 22_000 // count
    free: list[int] = []
    for block in range(blocks):
        start = first + (os.getpid() + block) % blocks * count
        for port in range(start, start + count):
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                free.append(port)
        if len(free) >= count:
            break
    return free[:count]
