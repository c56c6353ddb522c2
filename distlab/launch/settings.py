"""How the processes of a cluster are started: their environment, and ipyparallel's configuration.

Runs on the notebook's kernel, called by processes.py.
"""

from __future__ import annotations

import os
from typing import Any

from distlab.launch import mpiexec, reaper
from distlab.wire.rendezvous import free_ports, loopback_interface


def environment(threads: int, tag: str) -> dict[str, str]:
    """What the environment of each process of a cluster has besides the notebook's; `tag` marks it as the cluster's."""
    interface = loopback_interface()
    return {
        reaper.TAG: tag,
        **thread_variables(threads),
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
        "PYTHONSAFEPATH": "1",  # as fork_server.command does it, for all that it does not start; join takes it back
    }


def thread_variables(threads: int) -> dict[str, str]:
    """The variables that say how many threads a rank computes with."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))


def controller_arguments() -> list[str]:
    """The arguments of ipyparallel's controller."""
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


def config(environment: dict[str, str], engines: str) -> Any:
    """ipyparallel's configuration for a launcher of engines and this environment."""
    from traitlets.config import Config

    launchers = ("LocalController", *(f"{name}EngineSet" for name in ("Fork", "Local", "MPI", "SSH", "Slurm")))
    config = Config({f"{name}Launcher": {"environment": environment} for name in launchers})
    config.LocalEngineSetLauncher.delay = 0.0
    if engines == mpiexec.NAME:
        config.MPIEngineSetLauncher.mpi_cmd = [mpiexec.find()]
        config.MPIEngineSetLauncher.mpi_args = mpiexec.arguments()
    return config
