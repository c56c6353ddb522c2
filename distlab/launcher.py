"""The `fork` launcher for ipyparallel: torch and the engine are imported once, every engine is a fork of that process.

Runs where ipyparallel's Cluster runs, usually the notebook's kernel. ipyparallel finds it by its entry point:
`ipyparallel.Cluster(engines="fork", n=4)` works for everybody, `distlab.Cluster` takes it by itself on Linux. The
process that forks is forkserver.py; this side starts it, sends it orders, and hears of engines that end.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any as Anything

import psutil
from ipyparallel.cluster.launcher import EngineLauncher, LocalProcessLauncher
from traitlets import Any, Dict

from distlab import forkserver


class ForkEngineSetLauncher(LocalProcessLauncher, EngineLauncher):
    """Launch engines by forking one process that has imported torch and the engine."""

    server = Any(None, allow_none=True, help="A fork server that forkserver.start has started already.")
    pids = Dict(help="Process number by engine id, of the engines that run or ran.").tag(to_dict=True)

    def __init__(self, **kwargs: Anything):
        super().__init__(**kwargs)
        self.exit_codes: dict[int, int] = {}  # pid -> status, negative for a signal
        self.store_port = 0
        self.changed = threading.Condition()
        self._channel: socket.socket | None = None
        self._listener: threading.Thread | None = None

    def find_args(self) -> list[str]:
        """The command line of the fork server, without its plan."""
        return forkserver.command("distlab.forkserver")

    def start(self, n: int) -> int:
        """Start the fork server and have it fork `n` engines, with ids 0 to n - 1, when it is ready."""
        self.n = n
        self.requests_ids = self.server is not None
        if self.server is None:
            environment = self.get_env()
            self.server = forkserver.start(
                self.profile_dir,
                self.cluster_id,
                environment,
                [*self.cluster_args, *self.engine_args],
                self._url_file(environment.pop("IPP_CONNECTION_INFO", "")),
                stay=False,
                name=self.identifier,
            )
        process, self._channel = self.server
        self._popen_process = process
        self.pid = process.pid
        self.process = psutil.Process(process.pid)
        self.notify_start(process.pid)
        self._start_waiting()
        self._listener = threading.Thread(
            target=self._listen, args=(self._channel,), name="distlab-fork-events", daemon=True
        )
        self._listener.start()
        self.fork(range(n))
        return process.pid

    @property
    def threads(self) -> list[threading.Thread]:
        """The threads of this launcher, which end when the fork server does."""
        return [thread for thread in (self._listener, self._wait_thread) if thread is not None]

    @property
    def server_ended(self) -> bool:
        """Whether the fork server has ended, and with it every engine."""
        return self._listener is not None and self._channel is None

    @property
    def can_fork(self) -> bool:
        """Whether more engines can be forked: the fork server runs, and this launcher started it."""
        return self._channel is not None and self.running

    def fork(self, ids: Iterable[int], environment: dict[str, str] | None = None) -> None:
        """Have engines forked, with additions to their environment; returns at once.

        With a server that was handed over they ask for these ids, else they are numbered as they come, as ipyparallel's
        own are: an id is not used twice then.
        """
        environment = {**self.environment, **(environment or {})}
        self._order(fork=list(ids), environment=environment, request_ids=self.requests_ids)

    def signal_engines(self, ids: Iterable[int], number: int) -> None:
        """Send a signal to some engines; those that have ended are passed over."""
        self._order(signal=int(number), ids=list(ids))

    def signal(self, sig: int) -> None:
        """Signal every engine; SIGTERM and SIGKILL end the fork server, and the engines with it."""
        if self.state == "running":
            self.process.send_signal(sig)

    def log_of(self, number: int) -> str:
        """Path of the file that the engine forked under this number writes to."""
        name = self.identifier if not self.requests_ids else "fork"
        return os.path.join(self.profile_dir, "log", f"{name}-{number}.log")

    def _url_file(self, connection_info: str) -> str:
        """The engines' connection file; written from ipyparallel's environment variable where it hands out no file."""
        if not connection_info:
            return self.connection_files["engine"]
        path = os.path.join(self.profile_dir, "security", f"fork-{self.identifier}-engine.json")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(connection_info)
        return path

    def _order(self, **order: Anything) -> None:
        if self._listener is None:
            raise RuntimeError("this launcher did not start the engines; only the one that did can fork more")
        with contextlib.suppress(OSError, AttributeError):  # the fork server has ended, which `server_ended` says
            self._channel.sendall(json.dumps(order).encode() + b"\n")

    def _listen(self, channel: socket.socket) -> None:
        with contextlib.suppress(OSError), channel, channel.makefile() as lines:
            for line in lines:
                event = json.loads(line)
                with self.changed:
                    if "store" in event:
                        self.store_port = event["store"]
                    elif "forked" in event:
                        self.pids = {**self.pids, str(event["forked"]): event["pid"]}
                    else:
                        self.exit_codes[event["pid"]] = event["status"]
                    self.changed.notify_all()
        with self.changed:
            self._channel = None
            self.changed.notify_all()

    def get_output(self, remove: bool = False) -> str:
        """What the fork server and its engines have written."""
        paths = sorted(Path(self.profile_dir, "log").glob(f"{self.identifier}*.log"))
        self._output = "\n".join(path.read_text(errors="replace") for path in paths) or self._output or ""
        if remove:
            for path in paths:
                path.unlink(missing_ok=True)
        return self._output

    async def stop(self) -> None:
        """End the engines and the fork server."""
        self.stop_seconds_until_kill = 3
        await super().stop()
