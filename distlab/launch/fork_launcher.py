"""The `fork` launcher for ipyparallel: torch and the engine are imported once, every engine is a fork of that process.

Runs where ipyparallel's Cluster runs, usually the notebook's kernel. ipyparallel finds it by its entry point:
`ipyparallel.Cluster(engines="fork", n=4)` works for everybody, `distlab.Cluster` takes it by itself on Linux, and for
hosts. The processes that fork are fork_server.py; fork_connection.py leads to them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any as Anything

from ipyparallel.cluster.launcher import EngineLauncher, LocalProcessLauncher
from traitlets import Any

from distlab.compat.ipyparallel import watch_process
from distlab.launch import fork_server
from distlab.launch.fork_connection import Connection


class ForkEngineSetLauncher(LocalProcessLauncher, EngineLauncher):
    """Launch engines by forking processes that have imported torch and the engine: one, or one on each host."""

    connections = Any((), help="Connections to fork servers that have been started already.")
    homes = Any((), help="Number of the host of each engine; all are on host 0 where it is empty.")

    def __init__(self, **kwargs: Anything):
        super().__init__(**kwargs)
        self.when_ended: Callable[[int], None] = lambda number: None  # by default the hub notices by heartbeats

    def find_args(self) -> list[str]:
        """The command line of the fork server, without its plan."""
        return fork_server.command(fork_server.__name__)

    def start(self, n: int) -> int:
        """Start the fork server and have it fork `n` engines, with ids 0 to n - 1, when it is ready."""
        self.n = n  # engines in all, also when some of them have ended
        if not self.connections:
            plan = {
                "arguments": [*self.cluster_args, *self.engine_args],
                "stay": False,
                "environment": self.get_env(),
            }
            self.use([Connection(*fork_server.start(self.args, plan, self.output_file))])
        else:
            self.use(self.connections)
        if self.homes:  # a host that is lost does not end the others
            self.notify_start(0)
        else:
            watch_process(self, self.connections[0].process)
        self.fork(range(n))
        return self.connections[0].process.pid

    def use(self, connections: Sequence[Connection]) -> None:
        """Take these connections from now on; the later ones for hosts that several lead to."""
        self.connections = [*connections]
        for connection in connections:
            connection.when_ended = lambda number: self.when_ended(number)

    @property
    def threads(self) -> list[threading.Thread]:
        """The threads that end with the fork servers, besides ipyparallel's own."""
        return [connection.thread for connection in self.connections]

    def connection_of(self, engine: int) -> Connection:
        """The newest connection to the host of an engine."""
        return next(c for c in reversed(self.connections) if self.home_of(engine) in c.hosts)

    def home_of(self, engine: int) -> int:
        """Number of the host of an engine."""
        return self.homes[engine] if self.homes else 0

    def why_lost(self, engine: int) -> str:
        """Why the host of an engine is not reached any more, in words; "" where it is."""
        return self.connection_of(engine).lost.get(self.home_of(engine), "")

    @property
    def pids(self) -> dict[int, int]:
        """Process number of each engine that runs or ran, the newest."""
        return {engine: pid for connection in self.connections for engine, pid in connection.pids.items()}

    def exit_code(self, engine: int, pid: int) -> int | None:
        """Status with which a process of an engine has ended, negative for a signal; None of one that has not."""
        found = (connection.exit_codes.get((engine, pid)) for connection in self.connections)
        return next((code for code in found if code is not None), None)

    @property
    def store(self) -> tuple[str, int] | None:
        """Address and port of the store that the first host serves; None as long as it does not."""
        return self.connection_of(0).store

    @property
    def can_fork(self) -> bool:
        """Whether more engines can be forked: some fork server runs."""
        return any(host not in connection.lost for connection in self.connections for host in connection.hosts)

    def fork(self, ids: Iterable[int], environment: dict[str, str] | None = None) -> None:
        """Have engines forked, with additions to their environment; returns at once.

        With a server that was handed over they ask for these ids, else they are numbered as they come, as ipyparallel's
        own are: an id is not used twice then.
        """
        self._order(ids, "fork", environment={**self.environment, **(environment or {})})

    def signal_engines(self, ids: Iterable[int], number: int) -> None:
        """Send a signal to some engines; those that have ended are passed over."""
        self._order(ids, "ids", signal=int(number))

    def _order(self, ids: Iterable[int], name: str, **order: Anything) -> None:
        """Order the servers of these engines' hosts something; `name` says which of a host's engines are meant."""
        by_host: dict[int, list[int]] = {}
        for engine in ids:
            by_host.setdefault(self.home_of(engine), []).append(engine)
        for host, engines in by_host.items():
            self.connection_of(engines[0]).order(host, **{name: engines}, **order)
