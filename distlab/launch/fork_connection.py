"""One connection to fork servers: to the one on this machine, to that of a host, or to those of all of Slurm's nodes.

Runs where ipyparallel's Cluster runs, usually the notebook's kernel; fork_launcher.py and hosts.py call it.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from distlab.launch.fork_server import BEAT_SECONDS

SILENCE_SECONDS = 3.5  # after which a host that gave signs of life is believed to be gone
END_SECONDS = 2.0  # for fork servers that were told to end, and for what leads to them


class Connection:
    """What fork servers report, and what they are ordered; a thread listens as long as the connection lasts.

    Args:
        process: it leads to the servers, or is the only one. end: the socket to it. hosts: their numbers.

    Attributes:
        hellos: what each host has said of itself. lost: why a host is not reached any more, in words.
        pids: process number of each engine that runs or ran. homes: host of each engine.
        exit_codes: status by engine and process number, negative for a signal. said: the end of their logs by engine.
        store: address and port of the store that a server serves. when_ended: called with each engine that ends.
    """

    def __init__(self, process: subprocess.Popen, end: socket.socket, hosts: Iterable[int] = (0,)):
        self.process, self._end, self.hosts = process, end, tuple(hosts)
        self.hellos: dict[int, dict[str, Any]] = {}
        self.lost: dict[int, str] = {}
        self.pids: dict[int, int] = {}
        self.homes: dict[int, int] = {}
        self.exit_codes: dict[tuple[int, int], int] = {}
        self.said: dict[int, str] = {}
        self.store: tuple[str, int] | None = None
        self.when_ended: Callable[[int], None] = lambda number: None  # by default the hub notices by heartbeats
        self._beats: dict[int, float] = {}
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def order(self, host: int, **order: Any) -> None:
        """Order a host's server something; one that is gone is passed over, which `lost` says."""
        with contextlib.suppress(OSError):
            self._end.sendall(json.dumps({"host": host, **order}).encode() + b"\n")

    def hang_up(self) -> None:
        """Have the servers end."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_WR)

    def _listen(self) -> None:
        with contextlib.suppress(OSError), self._end:
            for line in self._lines():
                self._note(json.loads(line))
        self._lose(self.hosts, "whose connection has ended")

    def _lines(self) -> Iterator[bytes]:
        """The lines that come; hosts that have fallen silent are noted meanwhile."""
        pending = b""
        while True:
            ready, _, _ = select.select([self._end], [], [], BEAT_SECONDS if self._beats else None)
            if ready:
                received = self._end.recv(1 << 16)
                if not received:
                    return
                *lines, pending = (pending + received).split(b"\n")
                yield from lines
            late = time.monotonic() - SILENCE_SECONDS
            silent = [host for host, heard in self._beats.items() if heard < late and host not in self.lost]
            self._lose(silent, f"which gave no sign of life for {SILENCE_SECONDS:g} s")

    def _note(self, event: dict[str, Any]) -> None:
        host = event.get("host", 0)
        if "beat" in event:
            self._beats[host] = time.monotonic()
            self.order(host, heard=1)
        elif "hello" in event:
            self.hellos = {**self.hellos, host: event["hello"]}
        elif "store" in event:
            self.store = tuple(event["store"])
        elif "forked" in event:
            number, pid = event["forked"], event["pid"]
            self.exit_codes.pop((number, pid), None)  # numbers of processes come again
            self.pids, self.homes = {**self.pids, number: pid}, {**self.homes, number: host}
        else:
            self.exit_codes[event["ended"], event["pid"]] = event["status"]
            self.said[event["ended"]] = event.get("said", "")
            self.when_ended(event["ended"])

    def _lose(self, hosts: Iterable[int], why: str) -> None:
        hosts = [host for host in hosts if host not in self.lost]
        self.lost = {**self.lost, **dict.fromkeys(hosts, why)}
        for number, host in self.homes.items():
            if host in hosts:
                self.when_ended(number)


def close(connections: Iterable[Connection]) -> None:
    """Have the servers of all connections end, and wait for it."""
    connections, deadline = list(connections), time.monotonic() + END_SECONDS
    for connection in connections:
        connection.hang_up()
    for connection in connections:
        connection.thread.join(max(0.0, deadline - time.monotonic()))
