"""The `fork` launcher for ipyparallel: torch and the engine are imported once, every engine is a fork of that process.

Runs where ipyparallel's Cluster runs, usually the notebook's kernel. ipyparallel finds it by its entry point:
`ipyparallel.Cluster(engines="fork", n=4)` works for everybody, and `distlab.Cluster` uses it on Linux and for hosts.
The processes that fork are fork_server.py; connection.py leads to them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any as Anything

from ipyparallel.cluster.launcher import EngineLauncher, LocalProcessLauncher
from traitlets import Any

from distlab.compat.ipyparallel import watch_process
from distlab.launch import fork_server
from distlab.launch.connection import Connection
from distlab.wire.orders import ForkOrder, ServerPlan, SignalOrder


class ForkEngineSetLauncher(LocalProcessLauncher, EngineLauncher):
    """Launch engines by forking processes that have imported torch and the engine: one, or one on each host."""

    connections = Any((), help="Connections to fork servers that have been started already.")
    host_of_engine = Any((), help="Number of the host of each engine; all are on host 0 where it is empty.")

    def __init__(self, **kwargs: Anything):
        super().__init__(**kwargs)
        self.when_ended: Callable[[int], None] = lambda engine: None  # by default the hub notices by heartbeats

    def find_args(self) -> list[str]:
        """The command line of the fork server, without its plan."""
        return fork_server.command()

    def start(self, n: int) -> int:
        """Start the fork server, unless there are connections, and have `n` engines forked, with ids 0 to n - 1."""
        self.n = n  # engines in all, also when some of them have ended
        if not self.connections:
            plan = ServerPlan((*self.cluster_args, *self.engine_args), self.get_env())
            self.connections = [Connection(*fork_server.start(self.args, plan, self.output_file))]
        self.use(self.connections)
        if self.host_of_engine:  # a host that is lost does not end the others
            self.notify_start(0)
        else:
            watch_process(self, self.connections[0].process)
        self.fork(range(n))
        return self.connections[0].process.pid

    def use(self, connections: Sequence[Connection]) -> None:
        """Use these connections from now on: the later ones for hosts that several of them lead to."""
        self.connections = [*connections]
        for connection in connections:
            connection.when_ended = lambda engine: self.when_ended(engine)

    @property
    def threads(self) -> list[threading.Thread]:
        """The threads that end with the fork servers, besides ipyparallel's own."""
        return [connection.thread for connection in self.connections]

    def host_of(self, engine: int) -> int:
        """Number of the host of an engine."""
        return self.host_of_engine[engine] if self.host_of_engine else 0

    def connection_to(self, host: int) -> Connection:
        """The newest connection to a host."""
        return next(connection for connection in reversed(self.connections) if host in connection.hosts)

    def why_lost(self, engine: int) -> str:
        """Why the host of an engine is not reached any more, in words; "" where it is."""
        host = self.host_of(engine)
        return self.connection_to(host).lost.get(host, "")

    @property
    def pids(self) -> dict[int, int]:
        """Process number of each engine that runs or ran, the newest."""
        return {engine: pid for connection in self.connections for engine, pid in connection.pids.items()}

    def exit_code(self, engine: int, pid: int) -> int | None:
        """Status with which a process of an engine has ended, negative for a signal; None of one that has not."""
        found = (connection.ended.get((engine, pid)) for connection in self.connections)
        return next((ended.status for ended in found if ended is not None), None)

    @property
    def store(self) -> tuple[str, int] | None:
        """Address and port of the store that the first host serves; None as long as it does not."""
        return self.connection_to(0).store

    @property
    def can_fork(self) -> bool:
        """Whether more engines can be forked: some fork server runs."""
        return any(set(connection.hosts) - set(connection.lost) for connection in self.connections)

    def fork(self, engines: Iterable[int], environment: dict[str, str] | None = None) -> None:
        """Have engines forked, with additions to their environment; returns at once.

        With a server that was handed over they ask for these ids, else they are numbered as they come, as ipyparallel's
        own are: an id is not used twice then.
        """
        for host, some in self._by_host(engines):
            self.connection_to(host).order(ForkOrder(host, some, {**self.environment, **(environment or {})}))

    def signal_engines(self, engines: Iterable[int], number: int) -> None:
        """Send a signal to some engines; those that have ended are passed over."""
        for host, some in self._by_host(engines):
            self.connection_to(host).order(SignalOrder(host, some, int(number)))

    def _by_host(self, engines: Iterable[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Each host of some engines, with its engines."""
        engines = list(engines)
        for host in sorted(set(map(self.host_of, engines))):
            yield host, tuple(engine for engine in engines if self.host_of(engine) == host)
