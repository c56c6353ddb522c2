"""How the processes of a cluster are started: their environment, and ipyparallel's configuration.

Runs on the notebook's kernel, called by processes.py.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

from distlab.launch import mpiexec, reaper
from distlab.launch.hosts import Hosts
from distlab.wire.rendezvous import INTERFACES, free_ports, loopback_interface


def environment(threads: int | None, tag: str, alone: bool = True) -> dict[str, str]:
    """What the environment of each process of a cluster has besides the notebook's.

    Args:
        threads: OpenMP threads of each; None where the hosts are to say how many cores they have.
        tag: marks a process as the cluster's. alone: whether all are on this machine, else each host has an interface.
    """
    return {
        reaper.TAG: tag,
        **thread_variables(threads or 1),
        **(dict.fromkeys(INTERFACES, loopback_interface()) if alone else {}),
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


def controller_arguments(address: str) -> list[str]:
    """The arguments of ipyparallel's controller, which listens at one address."""
    return [
        f"--ip={address}",
        "--usethreads",
        f"--IPController.ports={','.join(map(str, free_ports(24, address)))}",
        # an engine counts as registered at its first heartbeat: beat often, and allow as long a silence as before
        "--HeartMonitor.period=50",
        "--HeartMonitor.max_heartmonitor_misses=600",
        "--IPController.broadcast_scheduler_depth=0",
        # the hub would keep a copy of every message, tensors included, for questions that nobody asks
        "--nodb",
        "--log-level=WARN",
    ]


def encrypt(folder: str) -> None:
    """Have a controller of this profile folder encrypt what it sends, and sign it with a key that no command line has.

    With encryption ipyparallel leaves signing out, unless it is given a key.
    """
    path = os.path.join(folder, "ipcontroller_config.py")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(f"c.Session.key = {secrets.token_hex(32).encode()!r}\nc.IPController.enable_curve = True\n")


def config(environment: dict[str, str], engines: str, hosts: Hosts | None, address: str) -> Any:
    """ipyparallel's configuration for a launcher of engines; `address`: of this machine, as the hosts see it."""
    from traitlets.config import Config

    launchers = ("LocalController", *(f"{name}EngineSet" for name in ("Fork", "Local", "MPI", "SSH", "Slurm")))
    config = Config({f"{name}Launcher": {"environment": environment} for name in launchers})
    config.LocalEngineSetLauncher.delay = 0.0
    if engines == mpiexec.NAME:
        config.MPIEngineSetLauncher.mpi_cmd = [mpiexec.find()]
        config.MPIEngineSetLauncher.mpi_args = mpiexec.arguments(hosts, address, environment)
    return config
