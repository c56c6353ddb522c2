"""How a cluster is to be started: the arguments of `Cluster`, checked before any process starts.

Runs on the notebook's kernel, called by cluster.py; processes.py carries a plan out, and doctor.py checks parts of one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from distlab import text
from distlab.client import attached
from distlab.launch import mpiexec, slurm
from distlab.launch.hosts import SSH_NAME, Host, Hosts
from distlab.simulated.network import Network
from distlab.text import refuse
from distlab.wire.rendezvous import INIT_METHODS

EXAMPLE = 'Call Cluster(hosts={"nodeA": 4, "nodeB": 4}).'
STOCK, FORK = "local", "fork"  # launchers of ipyparallel, and of distlab
MPI = 'Cluster(n, engines="mpi", backend="distlab_course.mpi_backend")'
GLOO = 'Call Cluster(n) or Cluster(n, backend="gloo").'
FROM_SOURCE = {
    "mpi": f"Only a torch that was built from source beside an MPI has it. {GLOO} {MPI} runs on MPI without it.",
    "mpi4py": f"That is the package by which one is made. Call {MPI}.",
    "ucc": f"Only a torch that was built from source with UCC has it. {GLOO} It has the same functions.",
}


@dataclass(frozen=True)
class Plan:
    """How a cluster is to be started; see `Cluster` for the meaning of each value.

    Attributes:
        n: number of ranks.
        backend: torch.distributed's, in small letters; or a module that registers one.
        init_method: one of INIT_METHODS.
        engines: name of the launcher.
        timeout: seconds that a call waits for its peers.
        threads: OpenMP threads of each rank; None to choose them on the hosts.
        network: the machines that are simulated.
        hosts: where the ranks run; None for this machine.
        attached: engines that others started.
    """

    n: int
    backend: str
    init_method: str
    engines: str
    timeout: float
    threads: int | None
    network: Network | None = None
    hosts: Hosts | None = None
    attached: attached.Engines | None = None


def make_plan(
    n: Any, backend: Any, init_method: Any, engines: Any, timeout: Any, threads: Any, network: Any, **where: Any
) -> Plan:
    """The plan of a cluster; ArgumentError where an argument breaks its rule.

    Args:
        where: the arguments of `Cluster` that are for several hosts.
    """
    hosts, found = None, engines if isinstance(engines, attached.Engines) else None
    if found is not None:
        n, engines = len(found.client.ids), attached.NAME
    else:
        n, engines, hosts = _where(n, engines, **where)
    n = text.whole_number("n", n, 1, advice="Call Cluster(4).")
    init_method = check_init_method(init_method)
    if (hosts or found) and init_method == "file":
        refuse("init_method", '"tcp" or "env" for several hosts, which share no file', init_method, "Leave it out.")
    if threads is not None:
        threads = text.whole_number("threads", threads, 1, advice="Call Cluster(n, threads=1).")
    elif not hosts and not found:
        threads = max(1, (os.cpu_count() or 1) // n)
    backend, timeout = check_backend(backend, n), text.seconds("timeout", timeout)
    network = check_network(network, n, backend)
    return Plan(n, backend, init_method, engines, timeout, threads, network, hosts, found)


def _where(n: Any, engines: Any, hosts: Any, python: Any, interface: Any, **job: Any) -> tuple[int, str, Hosts | None]:
    """The number of ranks, the launcher's name, and the hosts: None for this machine."""
    engines = check_launcher(SSH_NAME if engines is None and hosts is not None else engines)
    job = {name: value for name, value in job.items() if value is not None}
    extra = {"python": python or sys.executable, "interface": interface}
    if engines == slurm.NAME:
        if hosts is not None:
            refuse("hosts", "left out with Slurm, which chooses them", hosts, "Give nodes= and partition=.")
        n = text.whole_number("n", n, 1, advice="Call Cluster(4).")
        return n, engines, _job(n, extra, **job)
    for name, value in job.items():
        refuse(name, f'given with engines="{slurm.NAME}" alone', value, "Leave it out.")
    if hosts is not None:
        found = check_hosts(hosts, extra)
        if engines not in (SSH_NAME, mpiexec.NAME):
            refuse("engines", f'"{SSH_NAME}" or "{mpiexec.NAME}" with hosts, or left out', engines, EXAMPLE)
        if engines == mpiexec.NAME and hasattr(hosts, "reach"):
            refuse("hosts", "reached by ssh for mpiexec", hosts, "Leave engines out.")
        if n not in (None, len(found.host_of_rank)):
            refuse("n", f"left out, or {len(found.host_of_rank)} as hosts have it", n, EXAMPLE)
        return len(found.host_of_rank), engines, found
    if engines == SSH_NAME:
        refuse("hosts", "given for ssh", hosts, EXAMPLE)
    for name, value in {"python": python, "interface": interface}.items():
        if value is not None:
            refuse(name, "given with hosts alone", value, EXAMPLE)
    return n, engines, None


def check_launcher(engines: str | None) -> str:
    """The launcher's name, or the best one here for None; ArgumentError for a name that nobody registered."""
    if engines is None:
        return FORK if sys.platform == "linux" else STOCK
    launchers = sorted({point.name.lower() for point in metadata.entry_points(group="ipyparallel.engine_launchers")})
    if not isinstance(engines, str) or engines.lower() not in launchers:
        rule = f"None or one of the launchers installed here ({', '.join(launchers)})"
        refuse("engines", rule, engines, f'Call Cluster(n) or Cluster(n, engines="{STOCK}").')
    if engines.lower() == mpiexec.NAME:
        mpiexec.check()
    return engines.lower()


def check_hosts(hosts: Any, extra: Mapping[str, Any]) -> Hosts:
    """Hosts by name with their numbers of ranks, or the path of a file that mpiexec would take."""
    if isinstance(hosts, (str, os.PathLike)):
        if not os.path.isfile(hosts):
            refuse("hosts", "a mapping of names to numbers of ranks, or the path of a hostfile", hosts, EXAMPLE)
        return check_hosts(mpiexec.read_hostfile(os.fspath(hosts)), extra)
    for name, count in text.mapping("hosts", hosts, "host names to numbers of ranks", EXAMPLE).items():
        if not isinstance(name, str) or not re.fullmatch(r"(?!-)[\w.@:%-]+", name):
            refuse("hosts", "names of hosts, as ssh takes them", name, EXAMPLE, wrong_type=not isinstance(name, str))
        text.whole_number(f"the number of ranks of {name}", count, 1, advice=f"{EXAMPLE} Leave out others.")
    if not hosts:
        refuse("hosts", "one host or more", hosts, EXAMPLE)
    if hasattr(hosts, "reach"):  # practice hosts know by themselves what leads to each
        found = [Host(name, hosts[name], tuple(hosts.reach(name)), hosts.address(name)) for name in hosts]
    else:
        found = [Host(name, count, () if name == "localhost" else None) for name, count in hosts.items()]
    return Hosts(tuple(found), **extra)


def _job(
    n: int,
    extra: Mapping[str, Any],
    nodes: Any = None,
    partition: Any = None,
    time: Any = None,
    options: Any = (),
    queue_timeout: Any = 60.0,
) -> Hosts:
    """The nodes that Slurm is asked for, and the ranks on each: as many on each as on the others, or one more."""
    slurm.check()
    if nodes is None:
        nodes = slurm.nodes_of_allocation() or 1
    text.whole_number("nodes", nodes, 1, n, "Call Cluster(8, nodes=2, ...).")
    for name, value, example in (("partition", partition, "debug"), ("time", time, "10:00")):
        if value is not None:
            text.string(name, value, "text, as srun takes it", f'Give for example {name}="{example}".')
    if isinstance(options, str) or not all(isinstance(word, str) for word in options):
        refuse("options", "a list of words for srun", options, 'Give for example options=["--account=me"].', True)
    counts = [n // nodes + (number < n % nodes) for number in range(nodes)]
    limit = text.seconds("queue_timeout", queue_timeout)
    job = slurm.Job(nodes, counts[0], partition, time, tuple(options), limit)
    return Hosts(tuple(Host(f"node {number}", count) for number, count in enumerate(counts)), job=job, **extra)


def check_network(network: Any, n: int, backend: str) -> Network | None:
    """None, or a description of machines that has as many ranks as the cluster."""
    if network is None:
        return None
    if not isinstance(network, Network):
        advice = 'Call Cluster(8, network=distlab.Network("5 us", "25 GB/s")).'
        refuse("network", "a distlab.Network", network, advice, wrong_type=True)
    if backend != "gloo":
        refuse("backend", "gloo on simulated machines", backend, "Leave backend out.")
    network.check_size(n)
    return network


def check_init_method(init_method: Any) -> str:
    """One of INIT_METHODS, which may end in "://" as torch writes them."""
    name = init_method.removesuffix("://") if isinstance(init_method, str) else init_method
    return text.one_of("init_method", name, INIT_METHODS, 'Call Cluster(n) or Cluster(n, init_method="tcp").')


def check_backend(backend: Any, n: int) -> str:
    """A backend that can serve `n` ranks here: its name in small letters, or the module that registers it.

    torch is imported for others than gloo and modules.
    """
    asked = backend.lower() if isinstance(backend, str) else ""
    if asked == "gloo":
        return asked
    if asked == "nccl":
        return _check_nccl(n)
    if asked not in FROM_SOURCE and _is_module(backend):
        return backend
    import torch.distributed as dist

    known = [name for name in dist.Backend.backend_list if name not in ("undefined", "fake")]
    here = [name for name in known if dist.is_backend_available(name)]
    if asked not in here:
        rule = f"a backend that this torch has ({', '.join(map(repr, here))}), or a module that registers one"
        not_built = f"This torch was built without it. {GLOO}" if asked in known else GLOO
        refuse("backend", rule, backend, FROM_SOURCE.get(asked, not_built))
    return asked


def _is_module(name: Any) -> bool:
    """Whether there is a module of this name; the packages that it is in are imported."""
    with contextlib.suppress(ImportError, ValueError):
        return isinstance(name, str) and importlib.util.find_spec(name) is not None
    return False


def _check_nccl(n: int) -> str:
    """nccl, where this torch has it and there is a GPU for each of `n` ranks."""
    import torch

    from distlab.devices import why_not_nccl

    if why := why_not_nccl(n):
        gpus = torch.cuda.device_count()
        fewer = f'Cluster({gpus}, backend="nccl"), or ' if 0 < gpus < n else ""
        takes = ", which takes CUDA tensors too" if gpus else ""
        advice = f"{why} Call {fewer}Cluster({n}) for gloo{takes}."
        refuse("backend", "one that can serve the ranks here", "nccl", advice)
    return "nccl"
