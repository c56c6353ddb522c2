"""Processes that wait for the next `distlab.spawn`: fork servers, which have imported torch.

Runs in the process that calls `distlab.spawn`, called by spawn.py and testing/spawned.py. Each call
forks ranks of its own from them, which end with the call.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import psutil

from distlab.notebook.plan import Plan, make_plan
from distlab.notebook.processes import Processes
from distlab.notebook.starting import start_processes
from distlab.supervised import SupervisedThread

TORCH_TIMEOUT = 1800.0  # seconds; that of a group which is given none
# how the names of variables begin that Python, torch and the libraries below them read only once
READ_AT_START = (
    "ATEN",
    "CUDA",
    "GLOO",
    "GOMP",
    "KINETO",
    "KMP",
    "LD_",
    "MALLOC",
    "MKL",
    "NCCL",
    "OMP",
    "OPENBLAS",
    "PYTHON",
    "PYTORCH",
    "TORCH",
)


@dataclass(frozen=True)
class Server:
    """Processes without ranks, which can fork some.

    Attributes:
        processes: the processes.
        plan: how they were started; its number of ranks means nothing.
        variables: those that were read at their start.
        owner: number of the process that started them.
    """

    processes: Processes
    plan: Plan
    variables: Mapping[str, str]
    owner: int


@dataclass
class Warm:
    """The fork servers that no call uses; one object a process, `WARM`.

    Attributes:
        preload: modules that new servers import, because the functions that are spawned need them.
        waiting: the servers.
        ahead: the thread that starts one before the first call; None without one.
    """

    preload: tuple[str, ...] = ()
    waiting: list[Server] = field(default_factory=list)
    ahead: _Ahead | None = None

    def begin(self, preload: Sequence[str]) -> None:
        """Start a server on a thread, because calls will follow; all of these preload modules."""
        self.preload = tuple(preload)
        self.ahead = _Ahead()
        self.ahead.start()

    def take(self, n: int) -> Server:
        """A server for a call with n ranks: one that waits, or a new one.

        Raises:
            ClusterError: it could not be started.
        """
        if self.ahead is not None:
            self.ahead.join()
            self.ahead = None
        plan = self.plan(n)
        variables = _read_at_start()
        for server in list(self.waiting):
            if server.owner != os.getpid():  # this process was forked from the one that has it
                self.waiting.remove(server)
            elif _fits(server, plan, variables):
                self.waiting.remove(server)
                return replace(server, plan=plan)
        return start(plan)

    def plan(self, n: int) -> Plan:
        """How the ranks of a call are started."""
        plan = make_plan(
            n,
            backend="gloo",
            init_method="tcp",
            engines=None,
            timeout=TORCH_TIMEOUT,
            threads=None,
            network=None,
            preload=self.preload,
            hosts=None,
            fresh=False,
        )
        return replace(plan, direct=True)

    def keep(self, server: Server) -> None:
        """End the ranks of a call, and keep their server for the next one."""
        try:
            server.processes.end_engines()
        except (RuntimeError, psutil.Error):  # one of them has died
            server.processes.stop()
            return
        self.add(server)

    def add(self, server: Server) -> None:
        """Have a server wait for the next call, until this process ends."""
        if not self.waiting:
            atexit.register(self.end)
        self.waiting.append(server)

    def end(self) -> None:
        """End all servers that wait."""
        atexit.unregister(self.end)
        if self.ahead is not None:
            self.ahead.join()
            self.ahead = None
        self.preload = ()
        while self.waiting:
            server = self.waiting.pop()
            if server.owner == os.getpid():
                server.processes.stop()


class _Ahead(SupervisedThread):
    """The thread that starts a server before the first call.

    Whatever goes wrong is not reported here: the first call starts its own, and says it.
    """

    def __init__(self) -> None:
        super().__init__("distlab-spawn-ahead")

    def serve(self) -> None:
        """Start it."""
        WARM.add(start(WARM.plan(1)))

    def on_error(self, error: BaseException) -> None:
        """Leave it to the first call."""

    def on_end(self) -> None:
        """The first call waits for this thread."""


WARM = Warm()


def start(plan: Plan) -> Server:
    """Start a server for ranks as this plan says."""
    variables = _read_at_start()
    return Server(start_processes(replace(plan, n=0)), plan, variables, os.getpid())


def _read_at_start() -> dict[str, str]:
    """The variables of this process that a running process would not read again."""
    return {name: os.environ[name] for name in os.environ if name.startswith(READ_AT_START)}


def _fits(server: Server, plan: Plan, variables: Mapping[str, str]) -> bool:
    """Whether a server is as if it had been started now for this plan."""
    if not server.processes.can_fork or plan.preload != server.plan.preload:
        return False
    return server.variables == variables
