"""Launches the programs of one cluster, has its engines forked, and knows how each has ended.

Runs on the notebook's kernel, used by starting.py, and by processes.py when engines are replaced.
Every process carries `reaper.TAG` in its environment, so that what belongs to a cluster can be
found without guessing by name, even when its notebook is gone; then reaper.py ends them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from distlab.compat import ipyparallel as compat
from distlab.diagnosis.endings import Ending, ending_of
from distlab.errors import ClusterError, HostError
from distlab.launch import reaper
from distlab.notebook import hosts, interrupts, mpiexec, settings
from distlab.notebook.connection import Connection, Servers
from distlab.notebook.plan import Plan
from distlab.wire import faults
from distlab.wire.orders import CONTROLLER, Hello, ServerPlan

START_SECONDS = 60.0
LAST_WORDS_SECONDS = 5.0  # for mpiexec to end when a rank has ended
# Where this variable is set, ipykernel takes its process for one whose output pytest captures, and
# does not read what children of a rank print. It is taken away: a rank is no process of pytest's.
OF_PYTEST = "PYTEST_CURRENT_TEST"

T = TypeVar("T")


@dataclass(frozen=True)
class Connected:
    """Engines that run, and a client that is connected to them.

    Attributes:
        client: ipyparallel's Client.
        address: the address of this machine that the engines reach.
        threads: OpenMP threads of each engine; None for engines that others started.
        host_of_rank: number of each rank's host; none if all are on this machine.
    """

    client: Any
    address: str
    threads: int | None
    host_of_rank: tuple[int, ...]


class Launcher:
    """Launches the programs, fork servers and engines of one cluster; their logs are in one folder.

    Args:
        plan: how the cluster is to be started.
        tag: the value of `reaper.TAG` in the environment of every process.
        folder: for connection files and logs.
        environment: what each process has in its environment in addition to this one's.
        when_all_ended: what to do when the processes have ended; each program adds that it is
            killed and waited for.

    Attributes:
        plan, tag, folder, environment: as given.
        servers: the fork servers, where they start the engines.
        programs: what starts the engines elsewhere: mpiexec, or a program for each.
        controller: the controller's program, where no fork server forks it.
        host_names: of the hosts, where there are any.
        engine_variables: how an engine reaches the controller, once the controller listens.
        changed: whether a process may have ended since this was last set to False.
        when_engine_ended: called with the number of an engine that has ended; nothing has to be
            done before a client is connected.
    """

    def __init__(
        self,
        plan: Plan,
        tag: str,
        folder: str,
        environment: dict[str, str],
        when_all_ended: contextlib.ExitStack,
    ):
        self.plan = plan
        self.tag = tag
        self.folder = folder
        self.environment = environment
        self._when_all_ended = when_all_ended
        # without hosts all engines are here, those that are added later too
        host_of_engine: Sequence[int] | Mapping[int, int] = defaultdict(int)
        if plan.hosts is not None:
            host_of_engine = plan.hosts.host_of_rank
        self.servers = Servers(host_of_engine, self._note_end)
        self.programs: list[subprocess.Popen[bytes]] = []
        self.controller: subprocess.Popen[bytes] | None = None
        self.host_names: tuple[str, ...] = ()
        self.engine_variables: dict[str, str] = {}
        self.changed = True
        self.when_engine_ended: Callable[[int], None] = lambda engine: None

    def _note_end(self, engine: int) -> None:
        """Remember that a process has ended, and report it if it is an engine.

        Runs on: the thread of its connection.
        """
        self.changed = True
        if engine != CONTROLLER:
            self.when_engine_ended(engine)

    # --- programs ---

    def start_program(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        name: str,
        talks_over: socket.socket | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program that no fork server starts.

        Args:
            command: its command line.
            variables: additions to this process's environment.
            name: of its log, where its stderr goes, and its stdout unless it talks over a socket.
            talks_over: its stdin and stdout; None if it reads nothing.
        """
        path = self.log(name)
        path.parent.mkdir(exist_ok=True)
        environment = {**os.environ, **variables}
        environment.pop(OF_PYTEST, None)
        with path.open("wb") as log:
            stdin = subprocess.DEVNULL
            stdout = log.fileno()
            if talks_over is not None:
                stdin = talks_over.fileno()
                stdout = talks_over.fileno()
            program = subprocess.Popen(
                command,
                env=environment,
                start_new_session=True,
                stdin=stdin,
                stdout=stdout,
                stderr=log,
            )
        self.end_with(program)
        return program

    def end_with(self, program: subprocess.Popen[bytes], waits: bool = True) -> None:
        """Have a program killed and waited for at the end.

        What is added last is done first. The guard, which is among the first programs, ends among
        the last.

        Args:
            waits: whether it is waited for: the system takes a tenth of a second to free the memory
                of a fork server, for which nobody has to wait whose own process ends now.
        """
        if waits:
            self._when_all_ended.callback(program.wait)
        self._when_all_ended.callback(program.kill)

    def start_server(self, command: Sequence[str], plan: ServerPlan) -> None:
        """Start a fork server, or the program that leads to those on hosts.

        Older connections to the same hosts end, and with them what they have left there.
        """
        numbers = [host.host for host in plan.hosts] or [0]
        for connection in self.servers.connections:
            if set(numbers) & set(connection.hosts):
                connection.process.kill()
        here, there = socket.socketpair()
        with there:
            process = self.start_program(command, plan.environment, f"host-{numbers[0]}", there)
        self.connect_server(process, here, numbers, plan)

    def connect_server(
        self,
        process: subprocess.Popen[bytes],
        talks_over: socket.socket,
        numbers: Sequence[int],
        plan: ServerPlan,
    ) -> None:
        """Read from now on what a fork server reports, and send it its plan.

        Args:
            process: the server, or the program that leads to those on hosts.
            talks_over: the socket to it.
            numbers: the hosts'.
            plan: the first line that it reads.
        """
        connection = Connection(process, talks_over, numbers, self.servers)
        connection.start()
        self.servers.connections.append(connection)
        connection.order(plan)

    def reach(
        self, wanted: hosts.Hosts, numbers: Sequence[int], here: str, until: float = 0.0
    ) -> dict[int, Hello]:
        """Start fork servers on some hosts, and return what each host reports about itself.

        Args:
            wanted: all hosts of the cluster.
            numbers: those that are meant.
            here: the address of this machine that they reach; "" if they find it themselves.
            until: when to try a host that may come back for the last time, by time.monotonic().
        """
        server_plan = ServerPlan(self.environment, self.plan.preload, fresh=self.plan.fresh)
        while True:
            for command, plan in hosts.programs(wanted, numbers, server_plan, here):
                self.start_server(command, plan)
            try:
                with interrupts.allowed():
                    return hosts.answers(self.servers, wanted, numbers, self.log_folder)
            except HostError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)

    def fork(self, engines: Iterable[int], threads: int, fresh: bool) -> None:
        """Have the fork servers fork these engines, each with so many OpenMP threads.

        Args:
            fresh: whether each becomes a new interpreter.
        """
        environment = self.engine_variables | settings.thread_variables(threads)
        self.servers.fork(engines, environment, fresh)

    # --- waiting ---

    def wait(
        self,
        condition: Callable[[], T | None],
        client: Any = None,
        old: Collection[tuple[int, int]] = (),
    ) -> T:
        """Wait until a condition holds, and return what it has returned.

        Args:
            condition: returns something true when it holds.
            client: ipyparallel's Client, once it is connected; it is asked again and again which
                engines there are, because it misses those that register while it connects.
            old: engines that ran before, with their process numbers; they may end meanwhile. The
                client is not asked again where there are some.

        Raises:
            ClusterError: a process has ended, could not be forked, or was not there in time.
        """
        began = time.monotonic()
        asked = began
        value = condition()
        while not value:
            self.raise_if_controller_ended()
            if client is not None and not old and time.monotonic() > asked + 1:
                compat.ask_for_engines(client)
                asked = time.monotonic()
            self._check_start(old)
            if time.monotonic() > began + START_SECONDS:
                late = "the controller had not started"
                if client is not None:
                    late = f"only the engines {client.ids} had registered"
                raise ClusterError(f"{late} after {START_SECONDS:g} s.")
            time.sleep(0.005)  # what is waited for wants the cores itself
            value = condition()
        return value

    def _check_start(self, old: Collection[tuple[int, int]]) -> None:
        """Raise ClusterError if a process that is starting was refused, or has ended.

        Args:
            old: engines and their process numbers that may have ended.
        """
        refused = self.servers.take_refusal()
        if refused:
            raise ClusterError(f"a process could not be forked ({refused}).")
        for rank, pid in self.servers.pids.items():
            if (rank, pid) in old:
                continue
            ending = self.exit_reason(rank, pid)
            if ending is not None:
                log = self.servers.log_of(rank)[-500:]
                raise ClusterError(f"rank {rank} {ending.words()} on starting.\n{log}".rstrip())
        if self._server_is_lost() or any(one.poll() is not None for one in self.programs):
            raise ClusterError("a process ended before all engines had registered.")

    def _server_is_lost(self) -> bool:
        """Whether a fork server that starts engines of the cluster cannot be reached any more."""
        if not self.plan.forks:
            return False
        engines = range(max(1, self.plan.n))  # a server without engines forks the controller
        return any(self.servers.why_lost(engine) for engine in engines)

    # --- ends ---

    @property
    def controller_ended(self) -> bool:
        """Whether the process has ended that carries all messages."""
        for connection in self.servers.connections:
            # a fork server reports nothing of the controller but its end
            if any(engine == CONTROLLER for engine, _ in connection.engines):
                return True
        return self.controller is not None and self.controller.poll() is not None

    def raise_if_controller_ended(self) -> None:
        """Raise ClusterError if the controller has ended.

        Nothing can reach the ranks then, so they are ended, too.
        """
        if self.controller_ended:
            reaper.end_processes(reaper.processes_of(self.tag))
            raise ClusterError(
                "The controller process has ended, and with it the ranks: call cluster.restart()."
            )

    def exit_reason(self, engine: int, pid: int) -> Ending | None:
        """How a process of an engine has ended; None until that is known."""
        if self.plan.forks:
            return self._reason_by_server(engine, pid)
        for program in self.programs:
            if program.pid != pid:
                continue
            status = program.poll()
            if status is None:
                return None
            log = self.log(f"engine-{engine}").read_text(errors="replace")
            return ending_of(status, log, self.fault_of(engine))
        return None

    def _reason_by_server(self, engine: int, pid: int) -> Ending | None:
        """How an engine that a fork server has forked has ended, by what its server reports."""
        host = self.servers.host_of_engine[engine]
        for connection in reversed(self.servers.connections):
            report = connection.engines.get((engine, pid))
            if report is None:
                continue
            if report.status is not None:
                return ending_of(report.status, report.log, self.fault_of(engine))
            if host in connection.lost:
                if self.host_names:
                    why = connection.lost[host]
                    return Ending(f"lost with host {self.host_names[host]}, {why}", is_passive=True)
                words = ending_of(connection.process.wait()).words()
                return Ending(f"ended with the process that forks the ranks, which {words}")
        return None

    def fault_of(self, engine: int) -> faults.Fault:
        """Where the newest process of an engine was if a fault in compiled code ended it.

        What is not known of it is left empty.
        """
        if self.plan.forks:
            return faults.parse_fault(self.servers.fault_of(engine))
        return faults.parse_fault(faults.learners_part(self.folder, engine))

    def first_to_end(self, otherwise: int) -> int:
        """Which engine ended first, so that mpiexec ended the others.

        Args:
            otherwise: the engine to return if their log does not say.
        """
        # mpiexec's processes may write after a rank has ended
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.programs[0].wait(LAST_WORDS_SECONDS)
        first = mpiexec.first_to_end(self.log("engine-0").read_text(errors="replace"))
        return otherwise if first is None else first

    # --- logs ---

    @property
    def log_folder(self) -> Path:
        """The path of the folder of all logs."""
        return Path(self.folder, "log")

    def log(self, name: str) -> Path:
        """The path of the log with this name."""
        return self.log_folder / f"{name}.log"

    def last_lines(self) -> str:
        """The last eight lines that the processes wrote, newest file last."""
        logs = list(self.log_folder.glob("*.log"))
        logs.sort(key=lambda path: path.stat().st_mtime)
        lines = []
        for path in logs:
            for line in path.read_text(errors="replace").splitlines():
                if line.strip():
                    lines.append(line)
        return "\n".join(lines[-8:])
