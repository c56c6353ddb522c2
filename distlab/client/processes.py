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
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

from distlab.client import waiting
from distlab.client.plan import FORK, ControllerEndedError, Plan
from distlab.compat import ipyparallel as compat
from distlab.diagnosis import failures
from distlab.errors import ClusterError, HostError
from distlab.launch import fork_server, hosts, local, mpiexec, reaper
from distlab.launch.connection import Connection, close
from distlab.rank import entry
from distlab.text import rank_list
from distlab.wire.channel import ControlChannel
from distlab.wire.orders import Hello, ServerPlan
from distlab.wire.rendezvous import Rendezvous, address_towards

START_SECONDS = 60.0
ATTACH_SECONDS = 10.0  # for engines that run already to report where they are
THREAD_SECONDS = 5.0  # for a thread to end whose process has ended
PRELOADED = (entry.__name__, "distlab.rank.group")  # the second imports torch, which the kernel does not need


class Processes:
    """A controller and its engines, connected when the constructor returns: engine ids are 0 to n - 1.

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

    Where a process ends, or does not register in time, nothing is left, and the error has the last lines it wrote.
    """

    def __init__(self, plan: Plan):
        self._plan, self.threads, self.names = plan, plan.threads, ()
        self._connections: list[Connection] = []
        self.client: Any = None
        self.launcher: Any = None
        self.changes = 0 if plan.forks else None
        self._controller: Any = None
        self._guard: subprocess.Popen | None = None
        self.tag = f"{reaper.owner_of_this_process()}-{uuid.uuid4().hex[:8]}"
        self.folder = tempfile.mkdtemp(prefix="distlab-")
        self._ends = contextlib.ExitStack()  # what is to be done when the processes have ended
        self._ends.callback(shutil.rmtree, self.folder, ignore_errors=True)
        try:
            if plan.attached is None:
                self._start()
            else:
                self._attach(plan.attached.client)
        except HostError:
            self.stop()
            raise
        except BaseException as error:
            logs, kind = self._last_lines(), ControllerEndedError if self.controller_died() else ClusterError
            self.stop()
            if isinstance(error, Exception):
                words = filter(None, (f"The ranks did not start: {error}", logs))
                raise kind("\n".join(words)) from error
            raise

    def _attach(self, client: Any) -> None:
        """Use engines that others started, and end none of them."""
        self.client = client
        try:
            names = client.direct_view("all").apply_async(socket.gethostname).get(timeout=ATTACH_SECONDS)
        except Exception as error:  # whatever an engine raises, as where distlab is not installed
            advice = "Each engine needs distlab, as installed here, and must be idle."
            raise HostError(f"The engines do not answer: {error}. {advice}") from error
        self.names = tuple(dict.fromkeys(names))
        controller = compat.address_of_controller(client)
        address = "127.0.0.1" if controller.startswith("127.") else address_towards(controller)
        self.channel = self._ends.enter_context(contextlib.closing(ControlChannel(address)))
        self.rendezvous = Rendezvous("", self.channel.address, hosts=tuple(map(self.names.index, names)))

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
        elif self._plan.forks:  # before everything else that takes time: importing torch takes longest
            log = os.path.join(self.folder, "log", "fork.log")
            self._keep([Connection(*fork_server.start(fork_server.command(), self._server_plan, log))])
        if not self._plan.forks:
            for connection in self._connections:
                connection.process.kill()
        self.channel = self._ends.enter_context(contextlib.closing(ControlChannel(address)))
        host_of_rank = wanted.host_of_rank if wanted is not None else ()
        self._start_ipyparallel(cluster_id, address, environment, host_of_rank)
        store = self.launcher.store if self._plan.forks else None  # of the first host, else here
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
        loop = self._ends.enter_context(compat.launcher_loop(THREAD_SECONDS))
        ipp_cluster = ipyparallel.Cluster(
            engines=FORK if self._plan.forks else self._plan.engines,
            profile_dir=self.folder,
            cluster_id=cluster_id,
            cluster_file="",
            load_profile=False,
            config=local.config(environment, mpi_arguments),
            log=logging.Logger("a cluster's, which writes nothing", logging.CRITICAL + 1),
            shutdown_atexit=False,
            delay=0,
        )
        self._ends.callback(compat.end_threads, ipp_cluster, THREAD_SECONDS)
        if wanted is not None:
            local.encrypt(self.folder)
        command = fork_server.command("ipyparallel.controller")
        # ipyparallel puts that folder first on the path
        arguments = [f"--work-dir={self.folder}", *local.controller_arguments(address)]
        self._do(loop, ipp_cluster.start_controller(controller_cmd=command, controller_args=arguments))
        self._controller = ipp_cluster.controller
        Path(self.folder, reaper.CONTROLLER).write_text(str(self._controller.process.pid))
        options = {"connections": self._connections, "host_of_engine": host_of_rank} if self._plan.forks else {}
        self._do(loop, ipp_cluster.start_engines(n, **options))
        self.launcher = ipp_cluster.engine_set
        self.client = self._do(loop, ipp_cluster.connect_client())
        compat.drop_late_replies(self.client)
        self.launcher.when_ended = self._note_end  # others have nannies for it
        self._controller.on_stop(self._note_change)
        with waiting.allowed():
            self._wait(lambda: self.client.ids == list(range(n)) and (not self._plan.forks or self.launcher.store))

    def _reach(self, numbers: Sequence[int], here: str | None, until: float = 0.0) -> dict[int, Hello]:
        """Start fork servers on the hosts of these numbers, and wait for what they report.

        Args:
            here: the address of this machine that they reach, where it is known.
            until: when a host that may be just starting is tried for the last time.
        """
        found: dict[int, Hello] = {}
        while True:
            for connection in self._connections:
                if set(numbers) & set(connection.hosts):
                    connection.process.kill()  # a server that may be left on the host notices that, and ends
            new = hosts.connect(self._plan.hosts, numbers, self._server_plan, self.folder, here)
            self._keep(new)
            with waiting.allowed():
                reports, troubles = hosts.answers(self._plan.hosts, new, self.folder, print)
            found |= reports
            if time.monotonic() > until or not all(trouble.passes for trouble in troubles.values()):
                hosts.check(self._plan.hosts, troubles)
            if not troubles:
                return found
            numbers = sorted(troubles)
            with waiting.allowed():
                time.sleep(0.5)

    def _reach_all(self, wanted: hosts.Hosts) -> str:
        """Start a fork server on each host; the address of this machine that they reach."""
        others = [number for number in range(len(wanted.hosts)) if number not in wanted.local]
        hellos = self._reach(others, None)
        here = next((hello.notebook for hello in hellos.values()), "127.0.0.1")
        hellos |= self._reach(wanted.local, here)
        self.names = tuple(hellos[n].name if wanted.job else host.name for n, host in enumerate(wanted.hosts))
        cores = [hellos[number].cores // host.ranks for number, host in enumerate(wanted.hosts)]
        self.threads = self.threads or max(1, min(cores))
        return here

    def _keep(self, connections: Iterable[Connection]) -> None:
        for connection in connections:
            self._connections.append(connection)
            self._ends.enter_context(connection.process)

    def _do(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> Any:
        """Do asynchronous work of ipyparallel's launchers, which the notebook's own thread waits for."""
        future = asyncio.run_coroutine_threadsafe(work, loop)
        while not concurrent.futures.wait([future], timeout=0.1).done:
            self.check_controller()
        return future.result()

    def _note_end(self, engine: int) -> None:
        """Report to ipyparallel that an engine has ended. Runs on: the thread of its connection."""
        self._note_change()
        compat.forget_engine(self.client, engine)

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
            for rank, pid in self.launcher.pids.items() if self._plan.forks else ():
                if (how := self.how_ended(rank, pid)) and (rank, pid) not in old:
                    last = "\n".join(["", *self.log_of(rank).splitlines()[-5:]])
                    raise ClusterError(f"rank {rank} {how} before it was ready.{last}")
            lost = self._plan.forks and any(map(self.launcher.why_lost, range(self.launcher.n)))
            if lost or not self.launcher.running:
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

        Afterwards there are the engines `all_ids`; `threads` are the OpenMP threads of each new one.
        """
        unwanted = {*ids, *(set(self.client.ids) - set(all_ids))}
        old = self.launcher.pids.items()
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
        """Start fork servers on hosts that were lost."""
        wanted = self._plan.hosts
        if wanted is None:
            return  # `_wait` reports that the fork server here has ended
        if wanted.job is not None:
            raise HostError("A node of Slurm's was lost, and the job has no other one.")
        self._reach(lost, self.channel.address[0], time.monotonic() + hosts.RETURN_SECONDS)
        self.launcher.use([*self.launcher.connections, *(c for c in self._connections if set(c.hosts) & set(lost))])
        self._wait(lambda: self.launcher.store, old=self.launcher.pids.items())
        self.rendezvous.address = self.launcher.store

    def host_is_lost(self, rank: int) -> bool:
        """Whether the host of an engine is not reached any more, so that no new engine takes its place soon."""
        return self._plan.hosts is not None and self._plan.forks and bool(self.launcher.why_lost(rank))

    def how_ended(self, rank: int, pid: int) -> str:
        """How a process of an engine has ended, in words; "" as long as the launcher does not know that it has."""
        if self.launcher is None:
            return "" if rank in self.client.ids else failures.exit_words(None)
        ended = self.launcher.stop_data or {}
        if not self._plan.forks:
            engines = [data for data in (ended, *ended.get("engines", {}).values()) if data.get("pid") == pid]
            return failures.exit_words(engines[0]["exit_code"]) if engines else ""
        if (code := self.launcher.exit_code(rank, pid)) is not None:
            return failures.exit_words(code)
        found = [c for c in self._connections if c.pids.get(rank) == pid]
        why = next((c.lost[c.host_of_engine[rank]] for c in found if c.host_of_engine[rank] in c.lost), "")
        if why and self.names:
            return f"was lost with host {self.names[self.launcher.host_of(rank)]}, {why}"
        words = failures.exit_words(ended.get("exit_code"))
        return f"ended with the process that forks the ranks, which {words}" if why and ended else ""

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to an engine's process, where it is; one that has ended is passed over."""
        if self._plan.forks:
            self.launcher.signal_engines([rank], number)
        else:
            self.client.send_signal(number, targets=[rank], block=False)

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
        reaper.end(reaper.find(self.tag), patience=0.2 if self._plan.forks else mpiexec.END_SECONDS)
        self._ends.close()

    def _last_lines(self, count: int = 8) -> str:
        """The last lines that the processes wrote, newest file last."""
        logs = sorted(Path(self.folder, "log").glob("*.log"), key=lambda path: path.stat().st_mtime)
        lines = [line for path in logs for line in path.read_text(errors="replace").splitlines() if line.strip()]
        return "\n".join(lines[-count:])
