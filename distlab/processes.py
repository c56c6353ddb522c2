"""The processes of one cluster: controller, engines and guard, started side by side and ended together.

Called by ranks.py in the notebook's kernel. Every process carries `guard.TAG` in its environment, so that what belongs
to a cluster can be found without guessing by name, also when its notebook is gone; guard.py ends them then.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from distlab import diagnosis, forkserver, guard, interrupts, mpiexec
from distlab.errors import ClusterError, namesake, refuse
from distlab.line import Line
from distlab.rendezvous import Rendezvous, free_ports, loopback_interface

STOCK, FORK = "local", "fork"
START_SECONDS = 60.0
THREAD_SECONDS = 5.0  # for a thread to end whose process has ended
LOG_END_BYTES = 1 << 16


def launchers() -> list[str]:
    """Names that `engines` may have: the ipyparallel engine launchers that are installed here."""
    from importlib.metadata import entry_points

    return sorted({point.name.lower() for point in entry_points(group="ipyparallel.engine_launchers")})


def check_launcher(engines: str | None) -> str:
    """The launcher's name, or the best one here for None; ArgumentError for a name that nobody registered."""
    if engines is None:
        return FORK if sys.platform == "linux" else STOCK
    if not isinstance(engines, str) or engines.lower() not in launchers():
        rule = f"None or one of the launchers installed here ({', '.join(launchers())})"
        refuse("engines", rule, engines, f'Call Cluster(n) or Cluster(n, engines="{STOCK}").')
    if engines.lower() == mpiexec.NAME:
        mpiexec.check()
    return engines.lower()


def start_processes(n: int, engines: str, threads: int) -> Processes:
    """Processes, as the class makes them; once more where the controller did not survive its start.

    ipyparallel chooses its ports some time before it binds them, and another program can be quicker.
    """
    for _ in range(2):
        try:
            return Processes(n, engines, threads)
        except ControllerEndedError:
            continue
    return Processes(n, engines, threads)


class ControllerEndedError(ClusterError):
    """The controller's process ended while the cluster was being started."""


class Processes:
    """A controller and its engines, connected when the constructor returns: engine ids are 0 to n - 1.

    Args:
        n: number of engines. engines: name of their launcher. threads: OpenMP threads of each.

    Attributes:
        client: ipyparallel's Client. folder: private folder for connection files and logs, removed by `stop`.
        tag: the value of `guard.TAG` in the environment of every process.
        rendezvous: where the engines meet as ranks, for as long as these processes live.
        line: over which ranks are asked what they do.
        environment: what every process's environment has besides this one's.

    Raises:
        ClusterError: a process ended, or did not register in time; with the last lines it wrote. Nothing is left then.
    """

    def __init__(self, n: int, engines: str, threads: int):
        self.engines = engines
        self.client: Any = None
        self.line: Any = None
        self.tag = f"{guard.owner_of_this_process()}-{uuid.uuid4().hex[:8]}"
        self.environment = _environment(threads, self.tag)
        self._ipp_cluster: Any = None
        self._guard: Any = None
        self._server: Any = None
        self._loop: Any = None
        self.folder = tempfile.mkdtemp(prefix="distlab-")
        try:
            self.line = Line()
            command = [sys.executable, guard.__file__, str(os.getpid()), self.tag, self.folder]
            nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            self._guard = subprocess.Popen(command, cwd="/", start_new_session=True, **nothing)
            self._start(n)
        except BaseException as error:
            logs, died = self._last_lines(), self.controller_died()
            self.stop()
            if isinstance(error, Exception):
                words = "\n".join(filter(None, (f"The ranks did not start: {error}", logs, namesake(error))))
                raise (ControllerEndedError if died else ClusterError)(words) from error
            raise

    def _start(self, n: int) -> None:
        cluster_id = self.tag.rsplit("-", 1)[1]
        if self.engines == FORK:  # before anything else: it imports torch, which takes longer than all the rest
            self._server = forkserver.start(self.folder, cluster_id, self.environment, ["--log-level=WARN"])
        server = self._server
        import ipyparallel

        from distlab.loop import Loop

        self._loop = Loop()
        log = logging.getLogger("distlab.ipyparallel")
        if not log.handlers:
            log.addHandler(logging.NullHandler())
        log.propagate = False
        self._ipp_cluster = ipyparallel.Cluster(
            n=n,
            engines=self.engines,
            profile_dir=self.folder,
            cluster_id=cluster_id,
            cluster_file="",
            load_profile=False,
            config=_config(self.environment, self.engines),
            log=log,
            log_level=logging.ERROR,
            shutdown_atexit=False,
            delay=0,
            # a launcher on this machine reads the connection file, which need not be there when it starts
            send_engines_connection_env=self.engines != FORK,
        )
        command = forkserver.command("ipyparallel.controller")
        arguments = [f"--work-dir={self.folder}", *_controller_args()]  # ipyparallel puts that folder first on the path
        self._loop.run(self._ipp_cluster.start_controller(controller_cmd=command, controller_args=arguments))
        Path(self.folder, guard.CONTROLLER).write_text(str(self._ipp_cluster.controller.process.pid))
        self._loop.run(self._ipp_cluster.start_engines(n, **({"server": server} if server else {})))
        self.client = self._loop.run(self._ipp_cluster.connect_client(), self.check_controller)
        there = lambda: self.client.ids == list(range(n)) and (server is None or self.launcher.store_port)  # noqa: E731
        self._wait(there, interrupts.allowed)
        self.rendezvous = Rendezvous(self.folder, self.line.address, self.launcher.store_port if server else 0)

    def controller_died(self) -> bool:
        """Whether the controller, which carries all messages, has ended."""
        import psutil

        process = getattr(getattr(self._ipp_cluster, "controller", None), "process", None)
        try:
            return process is not None and process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def check_controller(self) -> None:
        """ClusterError when the controller has ended."""
        if self.controller_died():
            raise ClusterError("The controller process has ended, and with it the ranks: call cluster.restart().")

    @property
    def launcher(self) -> Any:
        """ipyparallel's launcher of the engines."""
        return self._ipp_cluster.engine_set

    def _wait(
        self,
        condition: Callable[[], bool],
        interruptible: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        old: Iterable[int] = (),
    ) -> None:
        """Wait for a change of the registered engines; `old` are the processes that may end meanwhile."""
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            self.check_controller()
            for rank, pid in getattr(self.launcher, "pids", {}).items():
                if pid in self.launcher.exit_codes and pid not in old:
                    words = diagnosis.exit_words(self.launcher.exit_codes[pid])
                    raise ClusterError(f"rank {rank} {words} before it was ready.")
            if not self.launcher.running or self.server_ended:
                raise ClusterError("a process ended before all engines were there.")
            if time.monotonic() > deadline:
                raise ClusterError(f"only the engines {self.client.ids} were there after {START_SECONDS:g} s.")
            with interruptible():
                time.sleep(0.002)

    @property
    def can_fork(self) -> bool:
        """Whether engines can be replaced one by one: the launcher forks, and everything it needs is alive."""
        return getattr(self.launcher, "can_fork", False) and self._ipp_cluster.controller.running

    def replace(self, ids: Iterable[int], threads: int, all_ids: Iterable[int]) -> None:
        """End the engines with these ids, if they run, and fork new ones that get the same ids.

        Args:
            threads: OpenMP threads of each new one. all_ids: the engines that there are to be afterwards.
        """
        ids, all_ids = set(ids), list(all_ids)
        unwanted = ids | (set(self.client.ids) - set(all_ids))
        old = {*self.launcher.pids.values()}
        try:
            self.launcher.signal_engines(unwanted, signal.SIGKILL)
            self._wait(lambda: not unwanted & set(self.client.ids), old=old)
            self.launcher.fork(sorted(ids & set(all_ids)), _thread_variables(threads))
            self._wait(lambda: self.client.ids == all_ids, old=old)
        except ClusterError as error:
            raise ClusterError(f"New processes did not start: {error} Call cluster.restart().") from error

    @property
    def server_ended(self) -> bool:
        """Whether the fork server has ended, and all engines with it."""
        return getattr(self.launcher, "server_ended", False)

    def has_ended(self, pid: int) -> bool:
        """Whether the launcher knows that the engine with this process number has ended."""
        return self.server_ended or pid in getattr(self.launcher, "exit_codes", {})

    def drop_engines(self) -> None:
        """Have the client give up engines that ended with the fork server, if it has: nobody else tells it for 30 s."""
        for engine_id in self.client.ids if self.server_ended else ():
            self.client._io_loop.add_callback(self.client._unregister_engine, {"content": {"id": engine_id}})

    def how_ended(self, pid: int, patience: float = 1.0) -> str:
        """How an engine has died, in words."""
        if self.server_ended and pid not in self.launcher.exit_codes:
            how = diagnosis.exit_words(self._exit_status(self.launcher.pid, patience))
            return f"ended with the process that forks the ranks, which {how}"
        return diagnosis.exit_words(self._exit_status(pid, patience))

    def _exit_status(self, pid: int, patience: float) -> int | None:
        """Exit status of a process that has died (negative: killed by that signal); None when nobody knows.

        ipyparallel may tell of the death before the launcher has waited for the process: `patience` is in seconds.
        """
        deadline = time.monotonic() + patience
        while True:
            if pid in getattr(self.launcher, "exit_codes", {}):
                return self.launcher.exit_codes[pid]
            stopped = getattr(self.launcher, "stop_data", None) or {}
            for data in (stopped, *list(stopped.get("engines", {}).values())):
                if data.get("pid") == pid:
                    return data.get("exit_code")
            if time.monotonic() > deadline:
                return None
            time.sleep(0.02)

    @property
    def end_together(self) -> bool:
        """Whether all engines end when one does."""
        return self.engines == mpiexec.NAME

    def first_to_end(self, patience: float = 1.0) -> int | None:
        """Which engine ended first and took the others with it; None when nobody knows.

        What they write of it may come later than the news of the end: `patience` is in seconds.
        """
        deadline = time.monotonic() + patience
        while self.launcher.running and time.monotonic() < deadline:
            time.sleep(0.02)
        try:
            log = Path(self.launcher.output_file).read_text(errors="replace")
        except OSError:
            log = self.launcher.get_output()  # ipyparallel has read it when mpiexec ended, and removed the file
        return mpiexec.first_to_end(log)

    def log_of(self, engine_id: int) -> str:
        """The end of what an engine's process has written outside of cells, where this is known."""
        with contextlib.suppress(OSError, AttributeError), open(self.launcher.log_of(engine_id), "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_END_BYTES))
            return log.read().decode(errors="replace")
        return ""

    def stop(self) -> None:
        """End every process of the cluster and remove its folder. Safe to repeat."""
        if self.client is not None:
            self.client.close()
        if self.line is not None:
            self.line.close()
        # nothing that they hold outlives them: no need to ask politely for long
        guard.end(guard.find(self.tag), patience=0.2)
        self._end_threads()
        if self._server is not None:
            process, channel = self._server
            process.wait()
            channel.close()
        if self._guard is not None:
            self._guard.terminate()
            self._guard.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end_threads(self) -> None:
        """Wait for the threads that wait for processes, and end ipyparallel's loop."""
        cluster = self._ipp_cluster
        for launcher in (cluster.controller, *cluster.engines.values()) if cluster is not None else ():
            for part in (launcher, *getattr(launcher, "launchers", {}).values()):
                for thread in getattr(part, "threads", [getattr(part, "_wait_thread", None)]):
                    if thread is not None:
                        thread.join(THREAD_SECONDS)
        if self._loop is not None:
            self._loop.end()

    def _last_lines(self, count: int = 8) -> str:
        """The last lines that the processes wrote, newest file last."""
        logs = sorted(Path(self.folder, "log").glob("*.log"), key=lambda path: path.stat().st_mtime)
        lines = [line for path in logs for line in path.read_text(errors="replace").splitlines() if line.strip()]
        return "\n".join(lines[-count:])


def _environment(threads: int, tag: str) -> dict[str, str]:
    interface = loopback_interface()
    return {
        guard.TAG: tag,
        **_thread_variables(threads),
        "GLOO_SOCKET_IFNAME": interface,
        "TP_SOCKET_IFNAME": interface,
        # torch looks up the name of 127.0.0.1 when it connects to a store; without a DNS that costs 5 s, so wait 1 s
        "RES_OPTIONS": "timeout:1 attempts:1",
        # what torch's C++ side logs is also raised; its lines carry the time of day, and no saved output may do that
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "FATAL"),
        # torch's profiler says on stderr that it begins and ends, whatever it is asked for below this level
        "KINETO_LOG_LEVEL": os.environ.get("KINETO_LOG_LEVEL", "6"),
        # traces read torch's flight recorder; this is torch's own default, which 2.8 does not have for gloo yet
        "TORCH_FR_BUFFER_SIZE": os.environ.get("TORCH_FR_BUFFER_SIZE", "2000"),
        "PYTHONUNBUFFERED": "1",
    }


def _thread_variables(threads: int) -> dict[str, str]:
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))


def _controller_args() -> list[str]:
    return [
        "--ip=127.0.0.1",
        "--usethreads",
        f"--IPController.ports={','.join(map(str, free_ports(24)))}",
        # an engine counts as registered at its first heartbeat: beat often, and allow as long a silence as before
        "--HeartMonitor.period=50",
        "--HeartMonitor.max_heartmonitor_misses=600",
        "--IPController.broadcast_scheduler_depth=0",
        # the hub would keep a copy of every message, tensors included, for questions that nobody asks
        "--nodb",
        "--log-level=WARN",
    ]


def _config(environment: dict[str, str], engines: str) -> Any:
    from traitlets.config import Config

    config = Config()
    config.LocalControllerLauncher.environment = environment
    for name in ("Fork", "Local", "MPI", "SSH", "Slurm"):
        config[f"{name}EngineSetLauncher"].environment = environment
    # as forkserver.command does it, for the nanny of each engine too; worker.join takes it back
    config.LocalEngineSetLauncher.environment = {**environment, "PYTHONSAFEPATH": "1"}
    config.MPIEngineSetLauncher.environment = config.LocalEngineSetLauncher.environment
    config.LocalEngineSetLauncher.delay = 0.0
    if engines == mpiexec.NAME:
        config.MPIEngineSetLauncher.mpi_cmd = [mpiexec.find()]
        config.MPIEngineSetLauncher.mpi_args = mpiexec.arguments()
    return config
