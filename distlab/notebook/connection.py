"""Connections to fork servers.

One leads to the server on this machine, to the server on one host, or to those on all of Slurm's
nodes. Runs on the notebook's kernel; launcher.py makes the connections, and hosts.py reads what has
arrived. The servers are launch/fork_server.py.
"""

import contextlib
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from distlab.launch.fork_server import BEAT_SECONDS
from distlab.supervised import SupervisedThread
from distlab.wire import orders
from distlab.wire.codec import from_json, to_json

SILENCE_SECONDS = 3.5  # after which a host that gave signs of life counts as lost
# what every report begins with: the shell of a host may greet with other lines
REPORT_BEGINS = b'{"class": '
# for fork servers that were asked to end, and for the programs that lead to them
SERVERS_END_SECONDS = 2.0


class Connection(SupervisedThread):
    """Sends orders to fork servers and keeps what they report.

    It is the thread that reads the reports, for as long as the connection lasts. Whatever ends the
    thread, the hosts are lost: nothing would be known of them any more. Other threads read what it
    keeps, so it replaces a dict and never changes one.

    Args:
        process: the only server, or the program that leads to the servers.
        talks_over: the socket for orders and reports; its other end is the stdin and stdout there.
        hosts: their numbers.
        servers: all of the cluster's, which know each engine's host, and whom to call when one
            ends.

    Attributes:
        hellos: what each host has reported about itself.
        lost: why a host cannot be reached any more, in words.
        trouble: why what the servers report cannot be read, in words; "" as long as it can.
        engines: the newest report of each engine's process, by engine and process number.
        store: address and port of the store that a server serves.
        refused: why the system did not let a server fork a process, in words; "" if it did.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        talks_over: socket.socket,
        hosts: Sequence[int],
        servers: "Servers",
    ):
        super().__init__("distlab-connection")
        self.process = process
        self.hosts = hosts
        self.hellos: dict[int, orders.Hello] = {}
        self.lost: dict[int, str] = {}
        self.engines: dict[tuple[int, int], orders.EngineProcess] = {}
        self.store: tuple[str, int] | None = None
        self.trouble = ""
        self.refused = ""
        self._socket = talks_over
        self._servers = servers
        self._sending = threading.Lock()  # the thread answers heartbeats, the main thread orders
        self._beats: dict[int, float] = {}  # when each host's newest heartbeat came

    def order(self, order: orders.AnyOrder | orders.ServerPlan) -> None:
        """Send an order; nothing happens if its server has ended: `lost` then has the host.

        Runs on: any thread.
        """
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(to_json(order).encode() + b"\n")

    def end_orders(self) -> None:
        """Have the servers end: they do when no more orders can come."""
        with contextlib.suppress(OSError):  # it has ended
            self._socket.shutdown(socket.SHUT_WR)

    # --- the thread ---

    def serve(self) -> None:
        """Note what is reported until the connection ends."""
        with contextlib.suppress(OSError), self._socket:
            for line in self._lines():
                if line.startswith(REPORT_BEGINS):
                    self._note(from_json(line))

    def on_error(self, error: BaseException) -> None:
        """Keep why the reports cannot be read, for what is said of the hosts."""
        words = str(error).rstrip(".")
        self.trouble = f"its reports cannot be read ({type(error).__name__}: {words})"

    def on_end(self) -> None:
        """Mark the hosts as lost."""
        why = "whose connection has ended"
        if self.trouble:
            why = f"and {self.trouble}"
        self._lose(self.hosts, why)

    def _lines(self) -> Iterator[bytes]:
        """The lines that arrive, until the connection ends.

        Meanwhile, hosts that have fallen silent are marked as lost.
        """
        pending = b""
        arrivals = select.poll()  # a descriptor may have any number
        arrivals.register(self._socket, select.POLLIN)
        while True:
            # a server on this machine sends no heartbeats, so its silence means nothing
            milliseconds = 1000 * BEAT_SECONDS if self._beats else None
            if arrivals.poll(milliseconds):
                received = self._socket.recv(1 << 16)
                if not received:
                    return
                pending += received
                *lines, pending = pending.split(b"\n")
                yield from lines
            self._lose_silent_hosts()

    def _lose_silent_hosts(self) -> None:
        """Mark the hosts as lost whose newest heartbeat came too long ago."""
        late = time.monotonic() - SILENCE_SECONDS
        silent = [host for host, beat in self._beats.items() if beat < late]
        self._lose(silent, f"which sent no heartbeat for {SILENCE_SECONDS:g} s")

    def _note(self, report: orders.AnyReport) -> None:
        """Keep what a server reports, and answer a heartbeat."""
        if isinstance(report, orders.Alive):
            self._beats[report.host] = time.monotonic()
            self.order(report)
        elif isinstance(report, orders.Hello):
            self.hellos = {**self.hellos, report.host: report}
        elif isinstance(report, orders.StoreAddress):
            self.store = (report.address, report.port)
        elif isinstance(report, orders.NotForked):
            self.refused = report.why
        else:
            # by process, too: the system uses numbers of processes again
            self.engines = {**self.engines, (report.engine, report.pid): report}
            if report.status is not None:
                self._servers.when_ended(report.engine)

    def _lose(self, hosts: Iterable[int], why: str) -> None:
        """Mark hosts as lost, and with them their engines; the first reason stays."""
        newly_lost = [host for host in hosts if host not in self.lost]
        self.lost = {**self.lost, **dict.fromkeys(newly_lost, why)}
        engines = {engine for engine, _ in self.engines}
        for engine in engines:
            if self._servers.host_of_engine[engine] in newly_lost:
                self._servers.when_ended(engine)


class Servers:
    """The fork servers of one cluster, and the engines that they fork.

    Args:
        host_of_engine: number of each engine's host.
        when_ended: called with each engine that ends. Runs on: the thread of its connection.

    Attributes:
        connections: in the order in which they were made; the newest one to a host counts.
    """

    def __init__(
        self, host_of_engine: Sequence[int] | Mapping[int, int], when_ended: Callable[[int], None]
    ):
        self.host_of_engine = host_of_engine
        self.when_ended = when_ended
        self.connections: list[Connection] = []

    def to(self, host: int) -> Connection:
        """The newest connection to a host."""
        for connection in reversed(self.connections):
            if host in connection.hosts:
                return connection
        raise LookupError(f"no connection to host {host} was made")

    def why_lost(self, engine: int) -> str:
        """Why the host of an engine cannot be reached any more, in words; "" if it can."""
        host = self.host_of_engine[engine]
        return self.to(host).lost.get(host, "")

    def take_refusal(self) -> str:
        """Why the system has not let a server fork a process since the last call, in words.

        Returns "" if no process was refused.
        """
        words = ""
        for connection in self.connections:
            if not words:
                words = connection.refused
            connection.refused = ""
        return words

    @property
    def pids(self) -> dict[int, int]:
        """Process number of each engine that runs or ran, the newest."""
        found = {}
        for connection in self.connections:
            for engine, pid in connection.engines:
                if engine != orders.CONTROLLER:
                    found[engine] = pid
        return found

    def log_of(self, engine: int) -> str:
        """The end of what an engine that has ended wrote outside cells, if that is known."""
        newest = self._newest_report(engine)
        return "" if newest is None else newest.log

    def fault_of(self, engine: int) -> str:
        """Where an engine was when a fault in compiled code ended it, if that is known."""
        newest = self._newest_report(engine)
        return "" if newest is None else newest.fault

    def _newest_report(self, engine: int) -> orders.EngineProcess | None:
        """The report of an engine's newest process."""
        newest = None
        for connection in self.connections:
            for report in connection.engines.values():
                if report.engine == engine:
                    newest = report
        return newest

    def fork(
        self, engines: Iterable[int], environment: dict[str, str], fresh: bool = False
    ) -> None:
        """Have each of these engines forked; returns at once.

        Args:
            engines: their numbers.
            environment: additions to the environment of each.
            fresh: whether each becomes a new interpreter.
        """
        for engine in engines:
            host = self.host_of_engine[engine]
            self.to(host).order(orders.ForkOrder(host, engine, environment, fresh))

    def kill(self, engines: Iterable[int]) -> None:
        """End these engines; returns at once, and nothing happens to one that has ended."""
        for engine in engines:
            host = self.host_of_engine[engine]
            self.to(host).order(orders.KillOrder(host, engine))

    def close(self) -> None:
        """Have all servers end, and wait for it."""
        deadline = time.monotonic() + SERVERS_END_SECONDS
        for connection in self.connections:
            connection.end_orders()
        for connection in self.connections:
            connection.join(max(0.0, deadline - time.monotonic()))
