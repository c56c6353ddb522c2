"""The processes of one cluster: controller, engines and guard, started side by side and ended together.

Called by ranks.py in the notebook's kernel. Every process carries `reaper.TAG` in its environment, so that what belongs
to a cluster can be found without guessing by name, also when its notebook is gone; reaper.py ends them then.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterator
from pathlib import Path
from typing import Any

from distlab.client import waiting
from distlab.client.plan import FORK, Plan
from distlab.compat.ipyparallel import drop_late_replies, forget_engine, waiting_threads
from distlab.diagnosis import failures
from distlab.errors import ClusterError, HostError
from distlab.launch import fork_server, hosts, local, mpiexec, reaper, slurm
from distlab.launch.connection import Connection, close
from distlab.rank import entry
from distlab.text import namesake, rank_list
from distlab.wire.channel import ControlChannel
from distlab.wire.orders import ServerPlan
from distlab.wire.rendezvous import Rendezvous

START_SECONDS = 60.0
THREAD_SECONDS = 5.0  # for a thread to end whose process has ended
PRELOADED = (entry.__name__, "distlab.rank.group")  # the second imports torch, which the kernel does not need


def start_processes(plan: Plan) -> Processes:
    """Processes, as the class makes them; once more where the controller did not survive its start.

    ipyparallel chooses its ports some time before it binds them, and another program can be quicker.
    """
    try:
        return Processes(plan)
    except ControllerEndedError:
        return Processes(plan)


class ControllerEndedError(ClusterError):
    """The controller's process ended while the cluster was being started."""


class Processes:
    """A controller and its engines, connected when the constructor returns: engine ids are 0 to n - 1.

    Args:
        plan: how many there are, how they are started, and where.

    Attributes:
        threads: OpenMP threads of each engine.
        names: of the hosts, where there are any.
        client: ipyparallel's Client.
        folder: private folder for connection files and logs, removed by `stop`.
        tag: the value of `reaper.TAG` in the environment of every process.
        rendezvous: where the engines meet as ranks, for as long as these processes live.
        channel: over which ranks are asked what they do.
        launcher: ipyparallel's, of the engines.
        changes: how often a process has ended; None where the launcher does not report each.

    Raises:
        ClusterError: a process ended, or did not register in time; with the last lines it wrote. Nothing is left then.
    """

    def __init__(self, plan: Plan):
        self._plan, self.threads, self.names = plan, plan.threads, ()
        self._forks = plan.engines in (FORK, hosts.SSH_NAME, slurm.NAME)
        self._connections: list[Connection] = []
        self.client: Any = None
        self.changes = 0 if self._forks else None
        self._controller: Any = None
        self._guard: subprocess.Popen | None = None
        self.tag = f"{reaper.owner_of_this_process()}-{uuid.uuid4().hex[:8]}"
        self.folder = tempfile.mkdtemp(prefix="distlab-")
        self._ends = contextlib.ExitStack()  # what is to be done when the processes have ended
        self._ends.callback(shutil.rmtree, self.folder, ignore_errors=True)
        try:
            self._start()
        except HostError:
            self.stop()
            raise
        except BaseException as error:
            logs, died = self._last_lines(), self.controller_died()
            self.stop()
            if isinstance(error, Exception):
                words = "\n".join(filter(None, (f"The ranks did not start: {error}", logs, namesake(error))))
                raise (ControllerEndedError if died else ClusterError)(words) from error
            raise

    def _start(self) -> None:
        command = [sys.executable, reaper.__file__, str(os.getpid()), self.tag, self.folder]
        nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self._guard = self._ends.enter_context(subprocess.Popen(command, cwd="/", start_new_session=True, **nothing))
        wanted, cluster_id = self._plan.hosts, self.tag.rsplit("-", 1)[1]
        environment = local.environment(self._plan.threads, self.tag, wanted is None)
        environment |= {"IPP_CLUSTER_ID": cluster_id, "IPP_PROFILE_DIR": self.folder}
        self._server_plan = ServerPlan(("--log-level=WARN",), environment, PRELOADED, stay=True)
        address = "127.0.0.1"
        if wanted is not None:  # for mpiexec, too, which does not say what is wrong with them
            address = self._reach_all(wanted)
            environment |= local.thread_variables(self.threads)
        elif self._forks:  # before everything else that takes time: importing torch takes longest
            log = os.path.join(self.folder, "log", "fork.log")
            self._use([Connection(*fork_server.start(fork_server.command(), self._server_plan, log))])
        if not self._forks:
            for connection in self._connections:
                connection.process.kill()
        self.channel = self._ends.enter_context(contextlib.closing(ControlChannel(address)))
        host_of_rank = wanted.host_of_rank if wanted is not None else ()
        self._start_ipyparallel(cluster_id, address, environment, host_of_rank)
        store = self.launcher.store if self._forks else None  # of the first host, else here
        self.rendezvous = Rendezvous(self.folder, self.channel.address, store, host_of_rank)

    def _start_ipyparallel(
        self, cluster_id: str, address: str, environment: dict[str, str], host_of_rank: tuple[int, ...]
    ) -> None:
        """Start the controller at this address of this machine, and the engines, and connect a client."""
        import ipyparallel

        wanted, n = self._plan.hosts, self._plan.n
        mpi_arguments = []
        if self._plan.engines == mpiexec.NAME:
            ranks = {host.name: host.ranks for host in wanted.hosts} if wanted is not None else None
            mpi_arguments = mpiexec.arguments(ranks, address, environment)
        loop = self._ends.enter_context(_running_loop())
        ipp_cluster = ipyparallel.Cluster(
            engines=FORK if self._forks else self._plan.engines,
            profile_dir=self.folder,
            cluster_id=cluster_id,
            cluster_file="",
            load_profile=False,
            config=local.config(environment, mpi_arguments),
            log=logging.Logger("a cluster's, which writes nothing", logging.CRITICAL + 1),
            shutdown_atexit=False,
            delay=0,
        )
        self._ends.callback(_end_threads, ipp_cluster)
        if wanted is not None:
            local.encrypt(self.folder)
        command = fork_server.command("ipyparallel.controller")
        # ipyparallel puts that folder first on the path
        arguments = [f"--work-dir={self.folder}", *local.controller_arguments(address)]
        self._do(loop, ipp_cluster.start_controller(controller_cmd=command, controller_args=arguments))
        self._controller = ipp_cluster.controller
        Path(self.folder, reaper.CONTROLLER).write_text(str(self._controller.process.pid))
        options = {"connections": self._connections, "host_of_engine": host_of_rank} if self._forks else {}
        self._do(loop, ipp_cluster.start_engines(n, **options))
        self.launcher = ipp_cluster.engine_set
        self.client = self._do(loop, ipp_cluster.connect_client())
        drop_late_replies(self.client)
        self.launcher.when_ended = self._note_end  # others have nannies for it
        self._controller.on_stop(self._note_change)
        with waiting.allowed():
            self._wait(lambda: self.client.ids == list(range(n)) and (not self._forks or self.launcher.store))

    def _use(self, connections: Collection[Connection]) -> None:
        for connection in connections:
            self._connections.append(connection)
            self._ends.enter_context(connection.process)

    def _reach(self, wanted: hosts.Hosts, numbers: list[int], here: str | None) -> hosts.Answers:
        """Start fork servers on the hosts of these numbers, and wait for what they report."""
        new = hosts.connect(wanted, numbers, self._server_plan, self.folder, here)
        self._use(new)
        with waiting.allowed():
            return hosts.answers(wanted, new, self.folder, print)

    def _reach_all(self, wanted: hosts.Hosts) -> str:
        """Start a fork server on each host; the address of this machine that they reach.

        Raises:
            HostError: a host cannot be used; what is wrong with each.
        """
        here, hellos = None, {}
        others = [number for number in range(len(wanted.hosts)) if number not in wanted.local]
        for numbers in (others, wanted.local):  # the second get the address that the first have seen
            reports, troubles = self._reach(wanted, numbers, here)
            hosts.check(wanted, troubles)
            hellos |= reports
            here = here or next((hello.notebook for hello in reports.values()), "127.0.0.1")
        self.names = tuple(hellos[n].name if wanted.job else host.name for n, host in enumerate(wanted.hosts))
        cores = [hellos[number].cores // host.ranks for number, host in enumerate(wanted.hosts)]
        self.threads = self.threads or max(1, min(cores))
        return here

    def _do(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> Any:
        """Do asynchronous work of ipyparallel's launchers, which the notebook's own thread waits for."""
        future = asyncio.run_coroutine_threadsafe(work, loop)
        while not concurrent.futures.wait([future], timeout=0.1).done:
            self.check_controller()
        return future.result()

    def _note_end(self, engine: int) -> None:
        """Report to ipyparallel that an engine has ended. Runs on: the thread of its connection."""
        self._note_change()
        forget_engine(self.client, engine)

    def _note_change(self, _: Any = None) -> None:
        if self.changes is not None:
            self.changes += 1

    def controller_died(self) -> bool:
        """Whether the controller, which carries all messages, has ended."""
        return self._controller is not None and self._controller.state == "after"

    def check_controller(self) -> None:
        """ClusterError when the controller has ended."""
        if self.controller_died():
            raise ClusterError("The controller process has ended, and with it the ranks: call cluster.restart().")

    def _wait(self, condition: Callable[[], bool], old: Collection[tuple[int, int]] = ()) -> None:
        """Wait for a change of the registered engines; `old` are the engines and processes that may end meanwhile."""
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            self.check_controller()
            for rank, pid in getattr(self.launcher, "pids", {}).items():
                if (code := self._exit_code(rank, pid)) is not None and (rank, pid) not in old:
                    last = "\n".join(["", *self.log_of(rank).splitlines()[-5:]])
                    raise ClusterError(f"rank {rank} {failures.exit_words(code)} before it was ready.{last}")
            if not self.launcher.running or (self._forks and any(map(self.launcher.why_lost, range(self.launcher.n)))):
                raise ClusterError("a process ended before all engines were there.")
            if time.monotonic() > deadline:
                raise ClusterError(f"only the engines {self.client.ids} were there after {START_SECONDS:g} s.")
            time.sleep(0.002)

    @property
    def can_fork(self) -> bool:
        """Whether engines can be replaced one by one: the launcher forks, and everything it needs is alive."""
        return getattr(self.launcher, "can_fork", False) and not self.controller_died()

    def replace(self, ids: list[int], threads: int, all_ids: list[int]) -> None:
        """End the engines with these ids, if they run, and fork new ones that get the same ids.

        Args:
            threads: OpenMP threads of each new one.
            all_ids: the engines that there are to be afterwards, these too.
        """
        unwanted = {*ids, *(set(self.client.ids) - set(all_ids))}
        old = {*self.launcher.pids.items()}
        try:
            if lost := {self.launcher.host_of(rank) for rank in ids if self.launcher.why_lost(rank)}:
                self._reach_again(sorted(lost))
            self.launcher.signal_engines(unwanted, signal.SIGKILL)
            self._wait(lambda: not unwanted & set(self.client.ids), old=old)
            self.channel.forget(unwanted)
            self.launcher.fork(ids, local.thread_variables(threads))
            self._wait(lambda: self.client.ids == all_ids, old=old)
        except HostError as error:
            others = [rank for rank in all_ids if not self.launcher.why_lost(rank)]
            advice = f"heal() tries again, for up to {hosts.RETURN_SECONDS:g} s, and restart() starts all ranks anew."
            if others:
                left = f"{rank_list(others).capitalize()} and their variables are left, without a group: pull and run"
                advice = f"{left} with ranks={others} work. {advice}"
            raise HostError(f"{error} {advice}") from error
        except ClusterError as error:
            raise ClusterError(f"New processes did not start: {error} Call cluster.restart().") from error

    def _reach_again(self, lost: list[int]) -> None:
        """Start fork servers on hosts that were lost, which may be just starting: they are tried for RETURN_SECONDS.

        Raises:
            HostError: one cannot be used.
        """
        wanted = self._plan.hosts
        if wanted is None:
            return  # `_wait` reports that the fork server here has ended
        if wanted.job is not None:
            raise HostError("A node of Slurm's was lost, and the job has no other one.")
        deadline, missing, here = time.monotonic() + hosts.RETURN_SECONDS, lost, self.channel.address[0]
        while True:
            for connection in self._connections:
                if set(missing) & set(connection.hosts):
                    connection.process.kill()  # a server that may be left on the host notices that, and ends
            _, troubles = self._reach(wanted, missing, here)
            if time.monotonic() > deadline or not all(trouble.passes for trouble in troubles.values()):
                hosts.check(wanted, troubles)
            if not troubles:
                break
            missing = sorted(troubles)
            with waiting.allowed():
                time.sleep(0.5)
        self.launcher.use([*self.launcher.connections, *(c for c in self._connections if set(c.hosts) & set(lost))])
        self._wait(lambda: self.launcher.store)
        self.rendezvous.address = self.launcher.store

    def host_is_lost(self, rank: int) -> bool:
        """Whether the host of an engine is not reached any more, so that no new engine takes its place soon."""
        return self._plan.hosts is not None and self._forks and bool(self.launcher.why_lost(rank))

    def has_ended(self, rank: int, pid: int) -> bool:
        """Whether the launcher knows that an engine with this process number, or its fork server, has ended."""
        return self._exit_code(rank, pid) is not None or (self._forks and bool(self._why_lost(rank, pid)))

    def _why_lost(self, rank: int, pid: int) -> str:
        """Why this process of an engine cannot be reached any more, in words; "" where it can."""
        found = [c for c in self._connections if c.pids.get(rank) == pid]
        return next((c.lost[c.host_of_engine[rank]] for c in found if c.host_of_engine[rank] in c.lost), "")

    def how_ended(self, rank: int, pid: int) -> str:
        """How an engine has died, in words."""
        deadline = time.monotonic() + 1.0  # ipyparallel may report the death before the launcher has seen it
        while not self.has_ended(rank, pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        code = self._exit_code(rank, pid)
        if code is not None or not self._forks or not (why := self._why_lost(rank, pid)):
            return failures.exit_words(code)
        if self.names:
            return f"was lost with host {self.names[self.launcher.host_of(rank)]}, {why}"
        while (ended := self.launcher.stop_data) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        words = failures.exit_words(ended["exit_code"] if ended else None)
        return f"ended with the process that forks the ranks, which {words}"

    def _exit_code(self, rank: int, pid: int) -> int | None:
        """Exit status of an engine's process that the launcher has seen end (negative: killed by that signal)."""
        if self._forks:
            return self.launcher.exit_code(rank, pid)
        ended = getattr(self.launcher, "stop_data", None) or {}
        engines = [data for data in (ended, *ended.get("engines", {}).values()) if "pid" in data]
        return next((data["exit_code"] for data in engines if data["pid"] == pid), None)

    def signal(self, rank: int, pid: int, number: int) -> None:
        """Send a signal to an engine's process, where it is; one that has ended is passed over."""
        if self._plan.hosts is not None and self._forks:
            self.launcher.signal_engines([rank], number)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def first_to_end(self, otherwise: int) -> int:
        """Which engine ended first, so that mpiexec ended the others; where they do not say it, `otherwise`."""
        deadline = time.monotonic() + 5.0  # what they write may arrive later than the report of the end
        while self.launcher.running and time.monotonic() < deadline:
            time.sleep(0.02)
        first = mpiexec.first_to_end(self.launcher.get_output())
        return otherwise if first is None else first

    def log_of(self, engine_id: int) -> str:
        """The end of what an engine that has ended has written outside of cells, where this is known."""
        ended = [one for c in self._connections for (engine, _), one in c.ended.items() if engine == engine_id]
        return ended[-1].log if ended else ""

    def stop(self) -> None:
        """End every process of the cluster and remove its folder. Safe to repeat."""
        if self.client is not None:
            self.client.close()
        if self._guard is not None:
            self._guard.terminate()  # it would take the folder away from launchers that still look for its logs
        close(self._connections)
        # nothing that forks hold outlives them: no need to ask politely for long
        reaper.end(reaper.find(self.tag), patience=0.2 if self._forks else mpiexec.END_SECONDS)
        self._ends.close()

    def _last_lines(self, count: int = 8) -> str:
        """The last lines that the processes wrote, newest file last."""
        logs = sorted(Path(self.folder, "log").glob("*.log"), key=lambda path: path.stat().st_mtime)
        lines = [line for path in logs for line in path.read_text(errors="replace").splitlines() if line.strip()]
        return "\n".join(lines[-count:])


def _end_threads(ipp_cluster: Any) -> None:
    """Wait for the threads that wait for the processes of ipyparallel's launchers."""
    for launcher in (ipp_cluster.controller, *ipp_cluster.engines.values()):
        for thread in [*getattr(launcher, "threads", []), *waiting_threads(launcher)]:
            thread.join(THREAD_SECONDS)


@contextlib.contextmanager
def _running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An asyncio loop in a thread of its own; in the end asyncio.run cancels what is left, and frees descriptors."""
    started: concurrent.futures.Future[Any] = concurrent.futures.Future()
    ended = asyncio.Event()

    async def serve() -> None:
        started.set_result(asyncio.get_running_loop())
        await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="distlab-launcher", daemon=True)
    thread.start()
    yield (loop := started.result())
    loop.call_soon_threadsafe(ended.set)
    thread.join(THREAD_SECONDS)
