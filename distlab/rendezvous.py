"""Where the ranks meet: one TCPStore served by the notebook's process; used by cluster.py in the notebook's kernel.

The store listens on the loopback interface only, on a port that the system chose, so any number of clusters
run side by side. Every (re)build of the process group is a *generation* with keys of its own: gloo
reads stale addresses, and hangs, when a group is rebuilt under keys that were used before.
"""

from __future__ import annotations

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
    """

    init_method: str
    backend: str
    world_size: int
    timeout: float
    host: str
    port: int
    prefix: str
    path: str


class Rendezvous:
    """Serves the store and names the generations.

    Runs on: the notebook's kernel. Importing torch, if it is not there yet, is most of the cost.

    Args:
        folder: a private folder for the files of init_method "file".
    """

    def __init__(self, folder: str):
        self._folder = folder
        self._generation = 0
        self._stores = [_serve()]

    def next_meeting(self, init_method: str, backend: str, world_size: int, timeout: float) -> Meeting:
        """A meeting whose keys no rank has used before."""
        self._generation += 1
        if init_method == "env" and self._generation > 1:
            # env:// has no prefix of its own, so that its generation needs an empty store
            self._stores.append(_serve())
        prefix = f"distlab/{self._generation}"
        path = ""
        if init_method == "file":
            handle, path = tempfile.mkstemp(prefix=f"group-{self._generation}-", dir=self._folder)
            os.close(handle)
        port = self._stores[-1].port
        return Meeting(init_method, backend, world_size, timeout, "127.0.0.1", port, prefix, path)

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


def _serve() -> Any:
    """A TCPStore on 127.0.0.1. Given only an address, torch would listen on every interface, so it gets our socket."""
    from torch.distributed import TCPStore

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen(socket.SOMAXCONN)
    port = listener.getsockname()[1]
    return TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        timeout=timedelta(seconds=60),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # the store owns the socket from here on
    )
