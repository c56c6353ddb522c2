"""The processes of one cluster: controller, engines and guard, started side by side and ended together.

Called by ranks.py in the notebook's kernel. Every process carries `reaper.TAG` in its environment, so that what belongs
to a cluster can be found without guessing by name, also when its notebook is gone; reaper.py ends them then.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
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
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any

from distlab.client import interrupts
from distlab.client.arguments import FORK
from distlab.compat.ipyparallel import forget_engine, waiting_threads
from distlab.diagnosis import explanation
from distlab.errors import ClusterError, namesake
from distlab.launch import fork_server, mpiexec, reaper, settings
from distlab.wire.control_channel import ControlChannel
from distlab.wire.rendezvous import Rendezvous

START_SECONDS = 60.0
THREAD_SECONDS = 5.0  # for a thread to end whose process has ended
LOG_END_BYTES = 1 << 16


def start_processes(n: int, engines: str, threads: int) -> Processes:
    """Processes, as the class makes them; once more where the controller did not survive its start.

    ipyparallel chooses its ports some time before it binds them, and another program can be quicker.
    """
    try:
        return Processes(n, engines, threads)
    except ControllerEndedError:
        return Processes(n, engines, threads)


class ControllerEndedError(ClusterError):
    """The controller's process ended while the cluster was being started."""


class Processes:
    """A controller and its engines, connected when the constructor returns: engine ids are 0 to n - 1.

    Args:
        n: number of engines. engines: name of their launcher. threads: OpenMP threads of each.

    Attributes:
        client: ipyparallel's Client. folder: private folder for connection files and logs, removed by `stop`.
        tag: the value of `reaper.TAG` in the environment of every process.
        rendezvous: where the engines meet as ranks, for as long as these processes live.
        channel: over which ranks are asked what they do. launcher: ipyparallel's, of the engines.

    Raises:
        ClusterError: a process ended, or did not register in time; with the last lines it wrote. Nothing is left then.
    """

    def __init__(self, n: int, engines: str, threads: int):
        self.engines = engines
        self.client: Any = None
        self._controller: Any = None
        self._guard: subprocess.Popen | None = None
        self.tag = f"{reaper.owner_of_this_process()}-{uuid.uuid4().hex[:8]}"
        self.folder = tempfile.mkdtemp(prefix="distlab-")
        self._ends = contextlib.ExitStack()  # what is to be done when the processes have ended
        self._ends.callback(shutil.rmtree, self.folder, ignore_errors=True)
        try:
            self._start(n, settings.environment(threads, self.tag))
        except BaseException as error:
            logs, died = self._last_lines(), self.controller_died()
            self.stop()
            if isinstance(error, Exception):
                words = "\n".join(filter(None, (f"The ranks did not start: {error}", logs, namesake(error))))
                raise (ControllerEndedError if died else ClusterError)(words) from error
            raise

    def _start(self, n: int, environment: dict[str, str]) -> None:
        self.channel = self._ends.enter_context(contextlib.closing(ControlChannel()))
        command = [sys.executable, reaper.__file__, str(os.getpid()), self.tag, self.folder]
        nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self._guard = self._ends.enter_context(subprocess.Popen(command, cwd="/", start_new_session=True, **nothing))
        cluster_id = self.tag.rsplit("-", 1)[1]
        engine_options = {}
        if self.engines == FORK:  # before all that takes time: it imports torch, which takes longer than all the rest
            names = {"IPP_CLUSTER_ID": cluster_id, "IPP_PROFILE_DIR": self.folder}
            output_file = os.path.join(self.folder, "log", "fork.log")
            process, orders = fork_server.start({**environment, **names}, ["--log-level=WARN"], output_file)
            self._ends.enter_context(orders)
            self._ends.enter_context(process)
            engine_options["server"] = (process, orders)
        import ipyparallel

        loop = self._ends.enter_context(_running_loop())
        ipp_cluster = ipyparallel.Cluster(
            engines=self.engines,
            profile_dir=self.folder,
            cluster_id=cluster_id,
            cluster_file="",
            load_profile=False,
            config=settings.config(environment, self.engines),
            log=logging.Logger("a cluster's, which says nothing", logging.CRITICAL + 1),
            shutdown_atexit=False,
            delay=0,
        )
        self._ends.callback(_end_threads, ipp_cluster)
        command = fork_server.command("ipyparallel.controller")
        # ipyparallel puts that folder first on the path
        arguments = [f"--work-dir={self.folder}", *settings.controller_arguments()]
        self._do(loop, ipp_cluster.start_controller(controller_cmd=command, controller_args=arguments))
        self._controller = ipp_cluster.controller
        Path(self.folder, reaper.CONTROLLER).write_text(str(self._controller.process.pid))
        self._do(loop, ipp_cluster.start_engines(n, **engine_options))
        self.launcher = ipp_cluster.engine_set
        self.client = self._do(loop, ipp_cluster.connect_client())
        # engines of other launchers have nannies for it
        self.launcher.when_ended = functools.partial(forget_engine, self.client)
        with interrupts.allowed():
            self._wait(lambda: self.client.ids == list(range(n)) and getattr(self.launcher, "store_port", True))
        self.rendezvous = Rendezvous(self.folder, self.channel.address, getattr(self.launcher, "store_port", 0))

    def _do(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> Any:
        """Do asynchronous work of ipyparallel's launchers, which the notebook's own thread waits for."""
        future = asyncio.run_coroutine_threadsafe(work, loop)
        while not concurrent.futures.wait([future], timeout=0.1).done:
            self.check_controller()
        return future.result()

    def controller_died(self) -> bool:
        """Whether the controller, which carries all messages, has ended."""
        return self._controller is not None and self._controller.state == "after"

    def check_controller(self) -> None:
        """ClusterError when the controller has ended."""
        if self.controller_died():
            raise ClusterError("The controller process has ended, and with it the ranks: call cluster.restart().")

    def _wait(self, condition: Callable[[], bool], old: Iterable[int] = ()) -> None:
        """Wait for a change of the registered engines; `old` are the processes that may end meanwhile."""
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            self.check_controller()
            for rank, pid in getattr(self.launcher, "pids", {}).items():
                if pid in self.launcher.exit_codes and pid not in old:
                    words = explanation.exit_words(self.launcher.exit_codes[pid])
                    raise ClusterError(f"rank {rank} {words} before it was ready.")
            if not self.launcher.running:
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
            threads: OpenMP threads of each new one. all_ids: the engines that there are to be afterwards, these too.
        """
        unwanted = {*ids, *(set(self.client.ids) - set(all_ids))}
        old = {*self.launcher.pids.values()}
        try:
            self.launcher.signal_engines(unwanted, signal.SIGKILL)
            self._wait(lambda: not unwanted & set(self.client.ids), old=old)
            self.channel.forget(unwanted)
            self.launcher.fork(ids, settings.thread_variables(threads))
            self._wait(lambda: self.client.ids == all_ids, old=old)
        except ClusterError as error:
            raise ClusterError(f"New processes did not start: {error} Call cluster.restart().") from error

    def has_ended(self, pid: int) -> bool:
        """Whether the launcher knows that the engine with this process number, or the fork server, has ended."""
        return pid in self._exit_codes() or getattr(self.launcher, "server_ended", False)

    def how_ended(self, pid: int) -> str:
        """How an engine has died, in words."""
        with_server = pid not in self._exit_codes() and self.has_ended(pid)
        whose = self.launcher.pid if with_server else pid
        deadline = time.monotonic() + 1.0  # ipyparallel may tell of the death before the launcher has seen it
        while whose not in (known := self._exit_codes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        how = explanation.exit_words(known.get(whose))
        return f"ended with the process that forks the ranks, which {how}" if with_server else how

    def _exit_codes(self) -> dict[int, int]:
        """Exit status of each process that the launcher has seen end (negative: killed by that signal)."""
        ended = getattr(self.launcher, "stop_data", None) or {}
        engines = [data for data in (ended, *ended.get("engines", {}).values()) if "pid" in data]
        return {data["pid"]: data["exit_code"] for data in engines} | getattr(self.launcher, "exit_codes", {})

    def first_to_end(self, otherwise: int) -> int:
        """Which engine ended first, so that mpiexec ended the others; where they do not say it, `otherwise`."""
        deadline = time.monotonic() + 5.0  # what they write of it may come later than the news of the end
        while self.launcher.running and time.monotonic() < deadline:
            time.sleep(0.02)
        first = mpiexec.first_to_end(self.launcher.get_output())
        return otherwise if first is None else first

    def log_of(self, engine_id: int) -> str:
        """The end of what an engine's process has written outside of cells, where this is known."""
        if self.engines != FORK:
            return ""
        return Path(fork_server.log_of(self.folder, engine_id)).read_bytes()[-LOG_END_BYTES:].decode(errors="replace")

    def stop(self) -> None:
        """End every process of the cluster and remove its folder. Safe to repeat."""
        if self.client is not None:
            self.client.close()
        if self._guard is not None:
            self._guard.terminate()  # it would take the folder away from launchers that still look for its logs
        # nothing that they hold outlives them: no need to ask politely for long
        reaper.end(reaper.find(self.tag), patience=0.2)
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
