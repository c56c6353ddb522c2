"""Starting and ending the processes of a cluster; called by cluster.py in the notebook's kernel.

`start` brings up one ipyparallel controller and one engine a rank with the launcher that was asked for.
Every process carries `TAG` in its environment, so that what belongs to a cluster can be found without guessing by name,
also when its notebook is gone. `distlab/guard.py` ends them then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from distlab import guard
from distlab.errors import ClusterError, refuse
from distlab.rendezvous import loopback_interface

STOCK = "local"


@dataclass(frozen=True)
class Processes:
    """The running processes of one cluster.

    Args:
        ipp_cluster: ipyparallel's Cluster, which started them.
        client: ipyparallel's Client, connected, with one engine a rank.
        loop: the event loop, in a thread of its own, in which ipyparallel hears of processes that end.
        tag: the value of `guard.TAG` in the environment of all of them.
        folder: private folder for connection files and logs, removed by `stop`.
        guard: the process that ends the others when this process is gone.
    """

    ipp_cluster: Any
    client: Any
    loop: asyncio.AbstractEventLoop
    tag: str
    folder: str
    guard: subprocess.Popen


def launchers() -> list[str]:
    """Names that `engines` may have: the ipyparallel engine launchers that are installed here."""
    return sorted({point.name.lower() for point in entry_points(group="ipyparallel.engine_launchers")})


def check_launcher(engines: str | None) -> str:
    """The launcher's name, or the best one here for None; ArgumentError for a name that nobody registered."""
    if engines is None:
        return STOCK
    if not isinstance(engines, str) or engines.lower() not in launchers():
        rule = f"None or one of the launchers installed here ({', '.join(launchers())})"
        refuse("engines", rule, engines, f'Call Cluster(n) or Cluster(n, engines="{STOCK}").')
    return engines.lower()


def prepare() -> tuple[str, str, subprocess.Popen]:
    """Make the cluster's private folder and start its guard; return tag, folder and guard."""
    tag = f"{guard.owner_of_this_process()}-{uuid.uuid4().hex[:8]}"
    folder = tempfile.mkdtemp(prefix="distlab-")
    command = [sys.executable, guard.__file__, str(os.getpid()), tag, folder]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return tag, folder, subprocess.Popen(command, cwd="/", start_new_session=True, **streams)


def start(n: int, engines: str, threads: int, tag: str, folder: str, watcher: subprocess.Popen) -> Processes:
    """Start the controller and `n` engines and connect a client; blocks until every engine has registered.

    Runs on: the notebook's kernel, in any thread.

    Args:
        n: number of ranks. threads: OpenMP threads a rank, set before torch loads.

    Raises:
        ClusterError: an engine or the controller ended, or did not register; with the last lines it wrote.
    """
    import ipyparallel

    log = logging.getLogger("distlab.ipyparallel")
    log.addHandler(logging.NullHandler())
    log.propagate = False
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="distlab-launcher", daemon=True).start()
    ipp_cluster = ipyparallel.Cluster(
        n=n,
        engines=engines,
        profile_dir=folder,
        cluster_file="",
        load_profile=False,
        config=_config(_environment(threads, tag)),
        log=log,
        log_level=logging.ERROR,
        shutdown_atexit=False,
        delay=0,
        engine_timeout=60,
    )
    try:
        asyncio.run_coroutine_threadsafe(ipp_cluster.start_cluster(), loop).result()
        client = ipp_cluster.connect_client_sync()
        client.wait_for_engines(n, timeout=60, interactive=False)
    except BaseException as error:
        logs = _last_lines(folder)
        stop(Processes(ipp_cluster, None, loop, tag, folder, watcher))
        if isinstance(error, Exception):
            raise ClusterError(f"The ranks did not start: {error}\n{logs}".rstrip()) from error
        raise
    return Processes(ipp_cluster, client, loop, tag, folder, watcher)


def stop(processes: Processes) -> None:
    """End every process of the cluster and remove its folder. Safe to repeat."""
    if processes.client is not None:
        processes.client.close()
    guard.end(guard.find(processes.tag), patience=0.3)
    processes.loop.call_soon_threadsafe(processes.loop.stop)
    processes.guard.terminate()
    processes.guard.wait()
    shutil.rmtree(processes.folder, ignore_errors=True)


def exit_status(processes: Processes, pid: int, patience: float = 1.0) -> int | None:
    """Exit status of an engine's process that has died (negative: killed by that signal); None when nobody knows.

    ipyparallel may tell of the death before its launcher has waited for the process: `patience` is in seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        stopped = (getattr(processes.ipp_cluster.engine_set, "stop_data", None) or {}).get("engines", {})
        for data in list(stopped.values()):
            if data.get("pid") == pid:
                return data.get("exit_code")
        if time.monotonic() > deadline:
            return None
        time.sleep(0.02)


def _environment(threads: int, tag: str) -> dict[str, str]:
    interface = loopback_interface()
    return {
        guard.TAG: tag,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "GLOO_SOCKET_IFNAME": interface,
        "TP_SOCKET_IFNAME": interface,
        # torch looks up the name of 127.0.0.1 when it connects to a store; without a DNS that costs 5 s, so wait 1 s
        "RES_OPTIONS": "timeout:1 attempts:1",
        "PYTHONUNBUFFERED": "1",
    }


def _config(environment: dict[str, str]) -> Any:
    from traitlets.config import Config

    config = Config()
    config.LocalControllerLauncher.environment = environment
    config.LocalControllerLauncher.controller_args = [
        "--ip=127.0.0.1",
        "--usethreads",
        # an engine counts as registered at its first heartbeat: beat often, and allow as long a silence as before
        "--HeartMonitor.period=200",
        "--HeartMonitor.max_heartmonitor_misses=150",
        "--IPController.broadcast_scheduler_depth=0",
    ]
    for launcher in (
        "LocalEngineSetLauncher",
        "MPIEngineSetLauncher",
        "SSHEngineSetLauncher",
        "SlurmEngineSetLauncher",
    ):
        config[launcher].environment = environment
    config.LocalEngineSetLauncher.delay = 0.0
    return config


def _last_lines(folder: str, count: int = 8) -> str:
    """The last lines that the processes of the cluster wrote, newest file last."""
    logs = sorted(Path(folder, "log").glob("*.log"), key=lambda path: path.stat().st_mtime)
    lines = [line for path in logs for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-count:])
