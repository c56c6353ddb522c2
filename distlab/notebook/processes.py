"""The processes of one cluster: fork servers, controller, engines and guard, started side by side
and ended together.

Called by ranks.py in the notebook's kernel. Every process carries `reaper.TAG` in its environment,
so that what belongs to a cluster can be found without guessing by name, even when its notebook is
gone; then reaper.py ends them.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from distlab.compat import ipyparallel as compat
from distlab.diagnosis import deaths
from distlab.diagnosis.advice import on_limit_of_processes
from distlab.errors import ClusterError, HostError
from distlab.launch import fork_server, reaper, this_host
from distlab.notebook import hosts, interrupts, mpiexec, settings
from distlab.notebook.connection import Connection, Servers
from distlab.notebook.plan import ControllerEndedError, Plan
from distlab.wire import faults, seconds
from distlab.wire.channel import ControlChannel
from distlab.wire.orders import CONTROLLER, ForkOrder, Hello, KillOrder, ServerPlan
from distlab.wire.rendezvous import Meeting, address_towards, listen, serve
from distlab.words import grouped, rank_list

START_SECONDS = 60.0
LAST_WORDS_SECONDS = 5.0  # for mpiexec to end when a rank has ended
ATTACH_SECONDS = 10.0  # for engines that run already to report where they are
WHERE_AND_PYTHON = (
    "__import__('socket').gethostname(), '%d.%d' % __import__('sys').version_info[:2]"
)
CONTROLLER_MODULE = "distlab.launch.controller"
# Where this variable is set, ipykernel takes its process for one whose output pytest captures; then
# it does not read what children of a rank print. A rank is another process than that of the test
# which started it.
OF_PYTEST = "PYTEST_CURRENT_TEST"
ENGINE = [sys.executable, "-m", "ipyparallel.engine"]


def surroundings() -> tuple[dict[str, str], str]:
    """What the ranks get from this process as it is now.

    Any change counts: torch and other libraries read some variables once, when they are imported.
    """
    return dict(os.environ), os.getcwd()


class Processes:
    """A controller and its engines, connected when the constructor returns: engine ids are 0 to n -
    1.

    Attributes:
        threads: OpenMP threads of each engine.
        names: of the hosts, where there are any.
        client: ipyparallel's Client.
        folder: private folder for connection files and logs, removed by `stop`.
        tag: the value of `reaper.TAG` in the environment of every process.
        store: address and port of the store in which the engines meet as ranks.
        host_of_rank: number of each rank's host; none if all are on one machine.
        channel: over which ranks are asked what they are doing.
        servers: the fork servers, where they start the engines.
        programs: what starts them elsewhere: mpiexec, or a program for each.
        changed: whether a process may have ended since this was last set to False.

    If a process ends, or does not register in time, nothing is left running; the error has its last
    lines.
    """

    def __init__(self, plan: Plan):
        self._plan, self.threads, self.names = plan, plan.threads, ()
        self._surroundings = surroundings()
        self.host_of_rank = plan.hosts.host_of_rank if plan.hosts is not None else ()
        # without hosts all are here, those that are added later too
        self.servers = Servers(self.host_of_rank or defaultdict(int), self._note_end)
        self.client: Any = None
        self.programs: list[subprocess.Popen] = []
        self.changed = True
        self._controller: subprocess.Popen | None = None  # where no fork server forks it
        self.tag = f"{os.getpid()}-{os.urandom(4).hex()}"
        self.folder = tempfile.mkdtemp(prefix="distlab-")
        self._ends = contextlib.ExitStack()  # what to do when the processes have ended
        self._ends.callback(shutil.rmtree, self.folder, ignore_errors=True)
        try:
            address = self._start() if plan.attached is None else self._attach(plan.attached.client)
            self.channel = self._ends.enter_context(contextlib.closing(ControlChannel(address)))
            # that of the first host's fork server, or else served here; importing torch for it
            # costs most
            self._own_store = None if plan.forks else serve(listen(address))
            self.store = self.servers.to(0).store if plan.forks else (address, self._own_store.port)
        except BaseException as error:
            logs, kind = (
                self._last_lines(),
                ControllerEndedError if self._controller_ended else ClusterError,
            )
            self.stop()
            if isinstance(error, HostError) or not isinstance(error, Exception):
                raise
            words = f"The ranks did not start: {error}"
            if advice := on_limit_of_processes(f"{type(error).__name__}: {error}\n{logs}"):
                # what was refused, logs say in other words
                raise kind(f"{words.rstrip('.')}. {advice}") from error
            raise kind("\n".join(filter(None, [words, logs]))) from error

    def _attach(self, client: Any) -> str:
        """Use engines that others started, and end none of them; returns the address of this
        machine for them.
        """
        self.client = client
        engines = client.direct_view("all")
        try:
            # first what any Python understands: a function travels as code, which another one would
            # not survive
            looked = engines.apply_async(eval, WHERE_AND_PYTHON).get(timeout=ATTACH_SECONDS)
            names = [name for name, _ in looked]
            self._check_versions(
                names, [this_host.installed() | {this_host.PYTHON: python} for _, python in looked]
            )
            self._check_versions(
                names, engines.apply_async(this_host.installed).get(timeout=ATTACH_SECONDS)
            )
        except HostError:
            raise
        except (
            Exception
        ) as error:  # whatever an engine raises, for example because distlab is not installed there
            advice = "Each engine needs distlab, as installed here, and must be idle."
            raise HostError(f"The engines do not answer: {error}. {advice}") from error
        self.names = tuple(dict.fromkeys(names))
        self.host_of_rank = tuple(map(self.names.index, names))
        return address_towards(compat.address_of_controller(client))

    def _check_versions(self, names: Sequence[str], versions: Sequence[Mapping[str, str]]) -> None:
        """HostError if some engines, on hosts of these names, have other versions than this
        notebook.
        """
        troubles = [hosts.differences(theirs) for theirs in versions]
        if not any(troubles):
            return
        alike = grouped((trouble, rank) for rank, trouble in enumerate(troubles) if trouble)
        parts = []
        for trouble, ranks in alike.items():
            where = ", ".join(dict.fromkeys(names[rank] for rank in ranks))
            parts.append(f"The Python of {rank_list(ranks)} on {where} {trouble}.")
        advice = f"They must be the same: install them there, {self._plan.again}."
        raise HostError(f"These engines cannot be used. {' '.join(parts)} {advice}")

    def _start(self) -> str:
        """Start all processes; returns the address of this machine for the engines."""
        wanted = self._plan.hosts
        environment = settings.environment(self.tag, wanted is None)
        environment |= {"IPP_CLUSTER_ID": "", "IPP_PROFILE_DIR": self.folder}
        address, only_here = "127.0.0.1", wanted is None and self._plan.forks
        forked = settings.controller_arguments(address, self.folder) if only_here else ()
        self._server_plan = ServerPlan(environment, self._plan.preload, forked)
        if only_here:  # before all else that takes time: importing torch takes longest
            self._start_server(fork_server.command(), self._server_plan)
        command = [sys.executable, reaper.__file__, str(os.getpid()), self.tag, self.folder]
        self._start_program(command, {}, "guard")
        if wanted is not None:  # for mpiexec, too, which does not say what is wrong with a host
            address = self._reach_all(wanted)
            settings.encrypt(self.folder)
        if not self._plan.forks:
            for connection in self.servers.connections:
                connection.process.kill()
        if not only_here:
            command = fork_server.command(CONTROLLER_MODULE) + list(
                settings.controller_arguments(address, self.folder)
            )
            self._controller = self._start_program(command, environment, "controller")
        self._start_engines(self._connections(), address, environment)
        return address

    def next_meeting(self, plan: Plan) -> Meeting:
        """Where the ranks of a new generation of a cluster meet, whose keys no rank has used
        before.
        """
        name = os.path.join(self.folder, f"group-{time.monotonic_ns()}")
        backend = plan.backend if plan.network is None else "simulated"
        where = (*self.store, name, self.channel.address, self.host_of_rank)
        return Meeting(plan.init_method, backend, plan.n, plan.timeout, seconds.BUILD, *where)

    def _start_server(self, command: list[str], plan: ServerPlan) -> None:
        """Start a fork server, or what leads to those on hosts; older connections end, and what
        they leave there.
        """
        numbers = [host.host for host in plan.hosts] or [0]
        for connection in self.servers.connections:
            if set(numbers) & set(connection.hosts):
                connection.process.kill()
        here, there = socket.socketpair()
        with there:
            process = self._start_program(
                command, plan.environment, f"host-{numbers[0]}", stdin=there, stdout=there
            )
        connection = Connection(process, here, numbers, self.servers)
        connection.start()
        self.servers.connections.append(connection)
        connection.order(plan)

    def _start_program(
        self, command: list[str], variables: dict[str, str], name: str, **ends: Any
    ) -> subprocess.Popen:
        """Start what no fork server starts; what it writes goes into a log, unless `ends` say
        otherwise.
        """
        log = Path(self.folder, "log", f"{name}.log")
        log.parent.mkdir(exist_ok=True)
        environment = {**os.environ, **variables}
        environment.pop(OF_PYTEST, None)
        with log.open("wb") as output:
            ends = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, **ends}
            program = subprocess.Popen(command, env=environment, start_new_session=True, **ends)
        self._ends.callback(program.wait)
        # before; the guard, which is among the first, ends among the last
        self._ends.callback(program.kill)
        return program

    def _start_engines(
        self, found: dict[str, Any], address: str, environment: dict[str, str]
    ) -> None:
        """Start the engines, whose controller is at this address of this machine, and connect a
        client.

        Args:
            found: how an engine and a client reach the controller.
        """
        self._connection = {"IPP_CONNECTION_INFO": json.dumps(found["engine"])}
        environment = environment | self._connection | settings.thread_variables(self.threads)
        n, wanted = self._plan.n, self._plan.hosts
        if self._plan.forks:
            self._fork(range(n), self.threads)
        else:
            commands = [ENGINE] * n
            if self._plan.engines == mpiexec.NAME:
                ranks = (
                    {host.name: host.ranks for host in wanted.hosts} if wanted is not None else None
                )
                mpi = [
                    mpiexec.find(),
                    *mpiexec.arguments(ranks, address, environment),
                    "-n",
                    str(n),
                ]
                commands = [[*mpi, *ENGINE, "--mpi"]]
            for number, command in enumerate(commands):
                self.programs.append(self._start_program(command, environment, f"engine-{number}"))
        # now: it would slow a server that imports torch, and nobody waits for it here
        import ipyparallel

        self.client = ipyparallel.Client(found["client"])
        compat.drop_late_replies(self.client)
        # which imports numpy; later, the ranks would wait for it
        ipyparallel.serialize.serialize_object(None)
        with interrupts.allowed():
            self._wait(
                lambda: (
                    self.client.ids == list(range(n))
                    and (not self._plan.forks or self.servers.to(0).store)
                )
            )

    def _connections(self) -> dict[str, Any]:
        """How an engine and a client reach the controller, which writes it into files when it
        listens.
        """
        files = {
            kind: Path(self.folder, "security", f"ipcontroller-{kind}.json")
            for kind in ("engine", "client")
        }

        def read() -> dict[str, Any] | None:
            with contextlib.suppress(OSError, json.JSONDecodeError):  # they are being written
                return {kind: json.loads(path.read_text()) for kind, path in files.items()}
            return None

        with interrupts.allowed():
            return self._wait(read)

    def _fork(self, engines: Iterable[int], threads: int) -> None:
        self.servers.order(
            ForkOrder, engines, environment=self._connection | settings.thread_variables(threads)
        )

    def _reach(self, numbers: Sequence[int], here: str, until: float = 0.0) -> dict[int, Hello]:
        """Start fork servers on the hosts with these numbers, and wait for their reports.

        Args:
            here: the address of this machine that they reach; "" if they find it themselves.
            until: when to try a host that may come back for the last time, by time.monotonic().
        """
        while True:
            for command, plan in hosts.programs(self._plan.hosts, numbers, self._server_plan, here):
                self._start_server(command, plan)
            try:
                with interrupts.allowed():
                    return hosts.answers(
                        self.servers, self._plan.hosts, numbers, Path(self.folder, "log")
                    )
            except HostError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)

    def _reach_all(self, wanted: hosts.Hosts) -> str:
        """Start a fork server on each host; return the address of this machine that they reach."""
        others = [number for number in range(len(wanted.hosts)) if number not in wanted.local]
        hellos = self._reach(others, wanted.here)
        here = next((hello.notebook for hello in hellos.values()), "127.0.0.1")
        hellos |= self._reach(wanted.local, here)
        self.names = tuple(
            hellos[n].name if wanted.job else host.name for n, host in enumerate(wanted.hosts)
        )
        cores = [hellos[number].cores // host.ranks for number, host in enumerate(wanted.hosts)]
        self.threads = self.threads or max(1, min(cores))
        return here

    def _note_end(self, engine: int) -> None:
        """Report to ipyparallel that an engine has ended. Runs on: the thread of its connection."""
        self.changed = True
        if engine != CONTROLLER and self.client is not None:
            compat.forget_engine(self.client, engine)

    @property
    def _controller_ended(self) -> bool:
        """Whether the process has ended that carries all messages."""
        forked = any(
            engine == CONTROLLER for c in self.servers.connections for engine, _ in c.engines
        )
        return forked or (self._controller is not None and self._controller.poll() is not None)

    def check_controller(self) -> None:
        """ClusterError if the controller has ended; the ranks, which nothing can reach then, are
        ended, too.
        """
        if self._controller_ended:
            reaper.end(reaper.find(self.tag))
            raise ClusterError(
                "The controller process has ended, and with it the ranks: call cluster.restart()."
            )

    def _wait(self, condition: Callable[[], Any], old: Collection[tuple[int, int]] = ()) -> Any:
        """Wait until a condition holds, and return it; `old` are engines and processes that may end
        meanwhile.
        """
        began = asked = time.monotonic()
        while not (value := condition()):
            self.check_controller()
            if self.client is not None and not old and time.monotonic() > asked + 1:
                compat.ask_for_engines(self.client)
                asked = time.monotonic()
            if refused := self.servers.take_refusal():
                raise ClusterError(f"a process could not be forked ({refused}).")
            for rank, pid in self.servers.pids.items():
                if (how := self.exit_reason(rank, pid)) and (rank, pid) not in old:
                    raise ClusterError(
                        f"rank {rank} {how} on starting.\n{self.servers.log_of(rank)[-500:]}".rstrip()
                    )
            lost = self._plan.forks and any(map(self.servers.why_lost, range(max(1, self._plan.n))))
            if lost or any(program.poll() is not None for program in self.programs):
                raise ClusterError("a process ended before all engines had registered.")
            if time.monotonic() > began + START_SECONDS:
                late = "the controller was not there"
                if self.client is not None:
                    late = f"only the engines {self.client.ids} had registered"
                raise ClusterError(f"{late} after {START_SECONDS:g} s.")
            time.sleep(0.005)  # what is waited for wants the cores itself
        return value

    @property
    def can_fork(self) -> bool:
        """Whether engines can be replaced one by one: servers fork them, and all that they need is
        alive.
        """
        reached = any(set(c.hosts) - set(c.lost) for c in self.servers.connections)
        return self._plan.forks and reached and not self._controller_ended

    def can_serve(self, plan: Plan) -> bool:
        """Whether a new cluster's engines, forked here, are as if its own processes had been
        started now.
        """
        ours, theirs = ((one.engines, one.hosts, one.preload) for one in (self._plan, plan))
        return ours == theirs and self._surroundings == surroundings()

    @property
    def is_only_here(self) -> bool:
        """Whether one fork server on this machine starts the engines."""
        return self._plan.forks and self._plan.hosts is None

    def end_engines(self) -> None:
        """End all engines, and what they have started; fork server and controller wait for new
        ones.
        """
        self.replace([], 1, [])
        server = psutil.Process(self.servers.to(0).process.pid)
        stay = {server.pid, *(child.pid for child in server.children(recursive=True))}
        reaper.end([process for process in reaper.find(self.tag) if process.pid not in stay])

    def replace(self, ids: list[int], threads: int, all_ids: list[int]) -> None:
        """End the engines with these ids, if they run, and fork new ones with the same ids.

        Afterwards the engines are `all_ids`; `threads` is the number of OpenMP threads of each new
        one.
        """
        unwanted = {*ids, *(set(self.client.ids) - set(all_ids))}
        old = self.servers.pids.items()
        try:
            if lost := {
                self.servers.host_of_engine[rank] for rank in ids if self.servers.why_lost(rank)
            }:
                if self._plan.hosts is None or self._plan.hosts.job is not None:
                    raise ClusterError(
                        "The process that forks the ranks is lost, and does not start again by itself."
                    )
                self._reach(
                    sorted(lost), self.channel.address[0], time.monotonic() + hosts.RETURN_SECONDS
                )
            self.servers.order(KillOrder, unwanted)
            self._wait(lambda: not unwanted & set(self.client.ids), old=old)
            self.channel.hear(0)  # that their connections have ended
            self._fork(ids, threads)
            self.store = self._wait(
                lambda: self.client.ids == all_ids and self.servers.to(0).store, old=old
            )
        except HostError as error:
            left = [rank for rank in all_ids if not self.servers.why_lost(rank)]
            advice = f"Other ranks keep their variables, without a group: pull and run with ranks={left} work."
            again = f"heal() tries again, for up to {hosts.RETURN_SECONDS:g} s, and restart() starts new ranks."
            raise HostError(f"{error} {advice} {again}") from error
        except ClusterError as error:
            advice = on_limit_of_processes(str(error))
            again = "Then call cluster.restart()." if advice else "Call cluster.restart()."
            words = filter(None, [f"New processes did not start: {error}", advice, again])
            raise ClusterError(" ".join(words)) from error

    def exit_reason(self, rank: int, pid: int) -> str:
        """How a process of an engine ended, in words; "" until that is known."""
        if self._plan.attached is not None:
            return "" if rank in self.client.ids else deaths.exit_words(None)
        if not self._plan.forks:
            statuses = [program.poll() for program in self.programs if program.pid == pid]
            if not statuses or statuses[0] is None:
                return ""
            log = Path(self.folder, "log", f"engine-{rank}.log").read_text(errors="replace")
            return deaths.exit_words(statuses[0], log, self.fault_of(rank))
        host = self.servers.host_of_engine[rank]
        for connection in reversed(self.servers.connections):
            report = connection.engines.get((rank, pid))
            if report and report.status is not None:
                return deaths.exit_words(report.status, report.log, self.fault_of(rank))
            if report and host in connection.lost:
                if self.names:
                    return f"was lost with host {self.names[host]}, {connection.lost[host]}"
                words = deaths.exit_words(connection.process.wait())
                return f"ended with the process that forks the ranks, which {words}"
        return ""

    def fault_of(self, rank: int) -> faults.Fault:
        """Where the newest process of an engine was if a fault in compiled code ended it, as far as
        that is known.
        """
        part = (
            self.servers.fault_of(rank)
            if self._plan.forks
            else faults.learners_part(self.folder, rank)
        )
        return faults.read(part)

    def first_to_end(self, otherwise: int) -> int:
        """Which engine ended first, so that mpiexec ended the others; `otherwise` if their logs do
        not say.
        """
        # mpiexec's processes may write after a rank has ended
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.programs[0].wait(LAST_WORDS_SECONDS)
        first = mpiexec.first_to_end(
            Path(self.folder, "log", "engine-0.log").read_text(errors="replace")
        )
        return otherwise if first is None else first

    def stop(self) -> None:
        """End every process of the cluster and remove its folder. Safe to repeat."""
        if self.client is not None:
            self.client.close()
        self.servers.close()
        # others hold nothing that outlives them: no need to ask politely for long
        patience = {mpiexec.NAME: mpiexec.END_SECONDS, hosts.SLURM_NAME: hosts.SLURM_END_SECONDS}
        reaper.end(reaper.find(self.tag), patience.get(self._plan.engines, 0.2))
        self._ends.close()

    def _last_lines(self) -> str:
        """The last eight lines that the processes wrote, newest file last."""
        logs = sorted(Path(self.folder, "log").glob("*.log"), key=lambda path: path.stat().st_mtime)
        lines = [
            line
            for path in logs
            for line in path.read_text(errors="replace").splitlines()
            if line.strip()
        ]
        return "\n".join(lines[-8:])
