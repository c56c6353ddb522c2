"""The `fork` launcher for ipyparallel: torch and the engine are imported once, every engine is a fork of that process.

Runs where ipyparallel's Cluster runs, usually the notebook's kernel. ipyparallel finds it by its entry point:
`ipyparallel.Cluster(engines="fork", n=4)` works for everybody, `distlab.Cluster` takes it by itself on Linux. The
process that forks is fork_server.py; this side starts it, sends it orders, and hears of engines that end.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any as Anything

from ipyparallel.cluster.launcher import EngineLauncher, LocalProcessLauncher
from traitlets import Any

from distlab.compat.ipyparallel import watch_process
from distlab.launch import fork_server


class ForkEngineSetLauncher(LocalProcessLauncher, EngineLauncher):
    """Launch engines by forking one process that has imported torch and the engine."""

    server = Any(None, allow_none=True, help="A fork server that fork_server.start has started already.")

    def __init__(self, **kwargs: Anything):
        super().__init__(**kwargs)
        self.pids: dict[int, int] = {}  # by engine id, of the engines that run or ran
        self.exit_codes: dict[int, int] = {}  # pid -> status, negative for a signal
        self.when_ended: Callable[[int], None] = lambda number: None  # by default the hub notices by heartbeats
        self.store_port = 0
        self.threads: list[threading.Thread] = []  # besides ipyparallel's own; it ends when the fork server does
        self._channel: socket.socket | None = None

    def find_args(self) -> list[str]:
        """The command line of the fork server, without its plan."""
        return fork_server.command("distlab.launch.fork_server")

    def start(self, n: int) -> int:
        """Start the fork server and have it fork `n` engines, with ids 0 to n - 1, when it is ready."""
        self.n = n
        if self.server is None:
            arguments = [*self.cluster_args, *self.engine_args]
            self.server = fork_server.start(self.get_env(), arguments, self.output_file, stay=False)
        process, self._channel = self.server
        watch_process(self, process)
        self.threads = [threading.Thread(target=self._listen, args=(self._channel,), daemon=True)]
        self.threads[0].start()
        self.fork(range(n))
        return process.pid

    @property
    def server_ended(self) -> bool:
        """Whether the fork server has ended, and with it every engine."""
        return bool(self.threads) and self._channel is None

    @property
    def can_fork(self) -> bool:
        """Whether more engines can be forked: the fork server runs, and this launcher started it."""
        return self._channel is not None and self.running

    def fork(self, ids: Iterable[int], environment: dict[str, str] | None = None) -> None:
        """Have engines forked, with additions to their environment; returns at once.

        With a server that was handed over they ask for these ids, else they are numbered as they come, as ipyparallel's
        own are: an id is not used twice then.
        """
        self._order(fork=list(ids), environment={**self.environment, **(environment or {})})

    def signal_engines(self, ids: Iterable[int], number: int) -> None:
        """Send a signal to some engines; those that have ended are passed over."""
        self._order(signal=int(number), ids=list(ids))

    def _order(self, **order: Anything) -> None:
        with contextlib.suppress(OSError, AttributeError):  # the fork server has ended, which `server_ended` says
            self._channel.sendall(json.dumps(order).encode() + b"\n")

    def _listen(self, channel: socket.socket) -> None:
        with contextlib.suppress(OSError), channel, channel.makefile() as lines:
            for event in map(json.loads, lines):
                if "store" in event:
                    self.store_port = event["store"]
                elif "forked" in event:
                    self.exit_codes.pop(event["pid"], None)  # numbers of processes come again
                    self.pids = {**self.pids, event["forked"]: event["pid"]}
                else:
                    self.exit_codes[event["pid"]] = event["status"]
                    self.when_ended(event["ended"])
        self._channel = None
        for number in self.pids:
            self.when_ended(number)
