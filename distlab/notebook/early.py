"""A fork server that starts before the launcher has read the rest of distlab.

Runs in the launcher's process, called by scripts/run.py. Importing torch takes longest of all that
a start needs, so it begins first; what this file imports is as little as possible.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from dataclasses import dataclass

from distlab import programs
from distlab.notebook import settings
from distlab.wire.rendezvous import loopback_interface

SERVER = "distlab.launch.early_server"
FRESH = "fresh"  # the word for it on its command line


@dataclass(frozen=True)
class EarlyServer:
    """A fork server that waits for its plan.

    Attributes:
        process: the server.
        talks_over: the socket to it.
        tag, folder: of the cluster that it will belong to.
        environment: what its processes have in addition to this one's.
    """

    process: subprocess.Popen[bytes]
    talks_over: socket.socket
    tag: str
    folder: str
    environment: dict[str, str]

    def abandon(self) -> None:
        """End it where no cluster has taken it, and remove its folder."""
        self.process.kill()
        self.talks_over.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def start_early(fresh: bool) -> EarlyServer:
    """Start a fork server on this machine, for ranks that are no engines of ipyparallel.

    Args:
        fresh: whether each rank will be an interpreter of its own.
    """
    tag = settings.new_tag()
    folder = tempfile.mkdtemp(prefix="distlab-")
    environment = settings.environment(tag, loopback_interface())
    environment |= settings.variables_of_folder(folder)
    logs = os.path.join(folder, "log")
    os.mkdir(logs)
    here, there = socket.socketpair()
    with there, open(os.path.join(logs, "host-0.log"), "wb") as log:
        process = subprocess.Popen(
            [*programs.command(SERVER), *([FRESH] if fresh else [])],
            env={**os.environ, **environment},
            start_new_session=True,
            stdin=there.fileno(),
            stdout=there.fileno(),
            stderr=log,
        )
    return EarlyServer(process, here, tag, folder, environment)
