"""Four ranks on two hosts: how they start and stop, and how the loss of a host is noticed.

They are started by ssh beside ipyparallel's own launcher, and by Slurm.

The hosts are network namespaces of this machine with a real sshd each, as in tests/network; this
takes root. ipyparallel's launcher gets one ssh connection to each host, which its calls share
(ControlMaster).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Found, in_turns, timed_in_turns
from benchmarks.programs import first_sum
from benchmarks.stuck import deadlock

RANKS = {"nodeA": 2, "nodeB": 2}


def ours(**where: Any) -> tuple[float, float]:
    """Seconds to start and to stop, group included."""
    import distlab

    began = time.perf_counter()
    cluster = distlab.Cluster(**where)
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
        launcher.ssh_args = words
        launcher.scp_args = words
        launcher.remote_python = sys.executable
        launcher.remote_profile_dir = str(made.folder / "profile")
    config.SSHEngineSetLauncher.engines = RANKS
    config.SSHEngineSetLauncher.delay = 0
    began = time.perf_counter()
    cluster = ipyparallel.Cluster(
        engines="ssh",
        n=4,
        controller_ip=made.hosts.here,
        config=config,
        profile_dir=str(made.folder / "here"),
    )
    client = cluster.start_and_connect_sync()
    client.wait_for_engines(4)
    started = time.perf_counter()
    cluster.stop_cluster_sync()
    return started - began, time.perf_counter() - started


def measure(repeat: int) -> dict[str, Found]:
    """Tables of contestants; none of what cannot be made on this machine."""
    import pytest

    import distlab
    from tests.network.daemons import slurm, ssh_hosts

    tables: dict[str, Found] = {}
    with contextlib.suppress(pytest.skip.Exception), contextlib.ExitStack() as ends:
        made = ends.enter_context(
            ssh_hosts(Path(ends.enter_context(tempfile.TemporaryDirectory())))
        )
        os.environ["PATH"] = f"{made.programs}{os.pathsep}{os.environ['PATH']}"
        contestants = {
            "distlab": partial(ours, hosts=RANKS),
            "stock ipyparallel": partial(theirs, made),
        }
        found = in_turns(contestants, repeat)
        for place, what in enumerate(("start", "stop")):
            tables[f"{what}, ssh"] = {
                name: [both[place] for both in own] for name, own in found.items()
            }
        tables |= run_there_and_here(repeat)
        losses = {
            "its cable is pulled": partial(loss, made.hosts.cut, made.hosts.repair),
            "it is killed": partial(loss, made.kill, made.boot),
        }
        tables["a host lost, ssh"] = in_turns(losses, repeat)
    with contextlib.suppress(pytest.skip.Exception), contextlib.ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        ends.enter_context(slurm(folder))
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
        found = in_turns(
            {
                "Slurm": partial(ours, n=4, engines=distlab.Slurm(nodes=2)),
                "this machine": partial(ours, n=4),
            },
            repeat,
        )
        tables["start, Slurm"] = {name: [start for start, _ in own] for name, own in found.items()}
    return tables


def loss(lose: Callable[[str], None], bring_back: Callable[[str], None]) -> float:
    """Seconds from the loss of a host during a cell until the cell has failed with its name."""
    import distlab

    def wait(rank: int, world_size: int) -> None:
        import torch.distributed as dist

        time.sleep(30 if rank >= 2 else 0)
        dist.barrier()

    with distlab.Cluster(hosts=RANKS) as cluster:
        timer = threading.Timer(1.0, lose, ["nodeB"])
        began = time.perf_counter() + 1.0
        timer.start()
        with contextlib.suppress(distlab.RankDied):
            cluster.run(wait)
        seconds = time.perf_counter() - began
        timer.join()
        bring_back("nodeB")
    return seconds


def run_there_and_here(repeat: int) -> dict[str, Found]:
    """Seconds of a warm run, and until a deadlock's ranks are free: on two hosts, and here."""
    import distlab

    tables: dict[str, Found] = {"run, ssh": {}, "deadlock, ssh": {}}
    places: dict[str, dict[str, Any]] = {"two hosts": {"hosts": RANKS}, "this machine": {"n": 4}}
    for name, where in places.items():
        with distlab.Cluster(**where) as cluster:
            tables["run, ssh"] |= timed_in_turns(
                {name: partial(cluster.run, first_sum)}, 10 * repeat, warm_up=3
            )
            tables["deadlock, ssh"] |= in_turns({name: partial(deadlock, cluster)}, repeat)
    return tables
