"""One connection to fork servers: to the one on this machine, to that of a host, or to those of all of Slurm's nodes.

Runs where ipyparallel's Cluster runs, usually the notebook's kernel; fork_launcher.py and hosts.py call it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from distlab.launch.fork_server import BEAT_SECONDS
from distlab.wire import orders
from distlab.wire.messages import from_json, to_json

SILENCE_SECONDS = 3.5  # after which a host that gave signs of life counts as lost
END_SECONDS = 2.0  # for fork servers that were asked to end, and for the programs that lead to them


class Connection:
    """Sends orders to fork servers, and keeps what they report; a thread reads as long as the connection lasts.

    Args:
        process: the only server, or the program that leads to the servers.
        end: the socket to it.
        hosts: their numbers.

    Attributes:
        hellos: what each host has reported of itself.
        lost: why a host is not reached any more, in words.
        pids: process number of each engine that runs or ran.
        host_of_engine: number of its host.
        ended: the report of each engine's process that has ended, by engine and process number.
        store: address and port of the store that a server serves.
        when_ended: called with each engine that ends.
    """

    def __init__(self, process: subprocess.Popen, end: socket.socket, hosts: Iterable[int] = (0,)):
        self.process, self._end, self.hosts = process, end, tuple(hosts)
        self.hellos: dict[int, orders.Hello] = {}
        self.lost: dict[int, str] = {}
        self.pids: dict[int, int] = {}
        self.host_of_engine: dict[int, int] = {}
        self.ended: dict[tuple[int, int], orders.Ended] = {}
        self.store: tuple[str, int] | None = None
        self.when_ended: Callable[[int], None] = lambda engine: None  # by default the hub notices by heartbeats
        self._beats: dict[int, float] = {}
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def order(self, order: orders.Order) -> None:
        """Send an order; where its server has ended nothing happens, and `lost` has the host."""
        with contextlib.suppress(OSError):
            self._end.sendall(to_json(order).encode() + b"\n")

    def hang_up(self) -> None:
        """Have the servers end."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_WR)

    def _listen(self) -> None:
        with contextlib.suppress(OSError), self._end:
            for line in self._lines():
                if line.startswith(b"{"):  # a shell there may greet
                    self._note(from_json(line))
        self._lose(self.hosts, "whose connection has ended")

    def _lines(self) -> Iterator[bytes]:
        """The lines that are received; meanwhile, hosts that have fallen silent are noted."""
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
            silent = [host for host, beat in self._beats.items() if beat < late and host not in self.lost]
            self._lose(silent, f"which gave no sign of life for {SILENCE_SECONDS:g} s")

    def _note(self, report: orders.Report) -> None:
        if isinstance(report, orders.Alive):
            self._beats[report.host] = time.monotonic()
            self.order(report)
        elif isinstance(report, orders.Hello):
            self.hellos = {**self.hellos, report.host: report}
        elif isinstance(report, orders.StoreAddress):
            self.store = (report.address, report.port)
        elif isinstance(report, orders.Forked):
            self.ended.pop((report.engine, report.pid), None)  # the system uses numbers of processes again
            self.pids = {**self.pids, report.engine: report.pid}
            self.host_of_engine = {**self.host_of_engine, report.engine: report.host}
        else:
            self.ended[report.engine, report.pid] = report
            self.when_ended(report.engine)

    def _lose(self, hosts: Iterable[int], why: str) -> None:
        hosts = [host for host in hosts if host not in self.lost]
        self.lost = {**self.lost, **dict.fromkeys(hosts, why)}
        for engine, host in self.host_of_engine.items():
            if host in hosts:
                self.when_ended(engine)


def close(connections: Iterable[Connection]) -> None:
    """Have the servers of all connections end, and wait for it."""
    connections, deadline = list(connections), time.monotonic() + END_SECONDS
    for connection in connections:
        connection.hang_up()
    for connection in connections:
        connection.thread.join(max(0.0, deadline - time.monotonic()))
