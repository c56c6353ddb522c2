"""Four ranks on two hosts: started and stopped by ssh beside ipyparallel's own launcher, and by Slurm; a host lost.

The hosts are network namespaces of this machine with a real sshd each, as in tests/network; this takes root.
ipyparallel's launcher gets one ssh connection to each host, which its calls share (ControlMaster).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANKS = {"nodeA": 2, "nodeB": 2}


def ours(made: Any) -> tuple[float, float]:
    """Seconds to start and to stop, group included."""
    import distlab

    began = time.perf_counter()
    cluster = distlab.Cluster(hosts=RANKS)
    started = time.perf_counter()
    cluster.stop()
    return started - began, time.perf_counter() - started


def theirs(made: Any) -> tuple[float, float]:
    """The same of stock engines, without a group."""
    import sys

    import ipyparallel
    from traitlets.config import Config

    shared = made.folder / "shared_config"
    options = "ControlMaster auto\n    ControlPersist 60\n    ControlPath {}/%C\n"
    shared.write_text(f"Host *\n    {options.format(made.folder)}{made.config.read_text()}")
    words = ["-F", str(shared)]
    config = Config()
    for launcher in (config.SSHEngineSetLauncher, config.SSHEngineLauncher):
        launcher.ssh_args, launcher.scp_args = words, words
        launcher.remote_python = sys.executable
        launcher.remote_profile_dir = str(made.folder / "profile")
    config.SSHEngineSetLauncher.engines, config.SSHEngineSetLauncher.delay = RANKS, 0
    began = time.perf_counter()
    cluster = ipyparallel.Cluster(
        engines="ssh", n=4, controller_ip=made.hosts.here, config=config, profile_dir=str(made.folder / "here")
    )
    client = cluster.start_and_connect_sync()
    client.wait_for_engines(4)
    started = time.perf_counter()
    cluster.stop_cluster_sync()
    return started - began, time.perf_counter() - started


def measure(repeat: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of each contestant, in turns: {"start, ssh": {name: [...]}, ...}; none without hosts."""
    import pytest

    from tests.network.daemons import slurm, ssh_hosts

    contestants: dict[str, Callable[[Any], tuple[float, float]]] = {"distlab": ours, "stock ipyparallel": theirs}
    seconds: dict[str, dict[str, list[float]]] = {
        what: {name: [] for name in contestants} for what in ("start, ssh", "stop, ssh")
    }
    with contextlib.suppress(pytest.skip.Exception), contextlib.ExitStack() as ends:
        made = ends.enter_context(ssh_hosts(Path(ends.enter_context(tempfile.TemporaryDirectory()))))
        os.environ["PATH"] = f"{made.programs}{os.pathsep}{os.environ['PATH']}"
        for _ in range(repeat):
            for name, contestant in contestants.items():
                start, stop = contestant(made)
                seconds["start, ssh"][name].append(start)
                seconds["stop, ssh"][name].append(stop)
        seconds |= run_there_and_here(repeat) | {"a host lost, ssh": told_of_a_loss(made, repeat)}
    with contextlib.suppress(pytest.skip.Exception), contextlib.ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        ends.enter_context(slurm(folder))
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
        seconds["start, Slurm"] = start_by_slurm(repeat)
    return seconds


def told_of_a_loss(made: Any, repeat: int) -> dict[str, list[float]]:
    """Seconds from the loss of a host in the middle of a cell until the cell has failed with its name."""
    import distlab

    def wait(rank: int, world_size: int) -> None:
        import torch.distributed as dist

        time.sleep(30 if rank >= 2 else 0)
        dist.barrier()

    ways = {"its cable is pulled": (made.hosts.cut, made.hosts.repair), "it is killed": (made.kill, made.boot)}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for way, (lose, bring_back) in ways.items():
        for _ in range(repeat):
            with distlab.Cluster(hosts=RANKS) as cluster:
                timer = threading.Timer(1.0, lose, ["nodeB"])
                began = time.perf_counter() + 1.0
                timer.start()
                with contextlib.suppress(distlab.RankDied):
                    cluster.run(wait)
                seconds[way].append(time.perf_counter() - began)
                timer.join()
                bring_back("nodeB")
    return seconds


def start_by_slurm(repeat: int) -> dict[str, list[float]]:
    """Seconds until four ranks on two nodes are ready, and four on this machine."""
    import distlab

    places: dict[str, dict[str, Any]] = {"Slurm": {"engines": "slurm", "nodes": 2}, "this machine": {}}
    seconds: dict[str, list[float]] = {name: [] for name in places}
    for _ in range(repeat):
        for name, options in places.items():
            began = time.perf_counter()
            cluster = distlab.Cluster(4, **options)
            seconds[name].append(time.perf_counter() - began)
            cluster.stop()
    return seconds


def run_there_and_here(repeat: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of a warm run, and until a deadlock is told, freed and rebuilt: on the two hosts, and on this machine."""
    import distlab
    from benchmarks.programs import first_sum
    from benchmarks.stuck import everybody_receives

    places: dict[str, dict[str, Any]] = {"two hosts": {"hosts": RANKS}, "this machine": {"n": 4}}
    seconds: dict[str, dict[str, list[float]]] = {
        what: {name: [] for name in places} for what in ("run, ssh", "deadlock, ssh")
    }
    for name, where in places.items():
        with distlab.Cluster(**where) as cluster:
            for turn in range(10 * repeat + 3):
                began = time.perf_counter()
                cluster.run(first_sum)
                if turn >= 3:
                    seconds["run, ssh"][name].append(time.perf_counter() - began)
            for _ in range(repeat):
                began = time.perf_counter()
                with contextlib.suppress(distlab.DeadlockError):
                    cluster.run(everybody_receives)
                seconds["deadlock, ssh"][name].append(time.perf_counter() - began)
    return seconds


if __name__ == "__main__":
    print(measure(2))
