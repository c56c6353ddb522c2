"""The rules that arguments must keep, checked before anything is started or sent; called by cluster.py and magics.py.

Runs on the notebook's kernel. Every check raises `ArgumentError` in the house form, or returns the value to use.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from distlab.client import attached
from distlab.launch import mpiexec, slurm
from distlab.launch.hosts import SSH_NAME, Host, Hosts
from distlab.simulated.network import Network
from distlab.text import refuse
from distlab.wire.rendezvous import INIT_METHODS

EXAMPLE = 'Call Cluster(hosts={"nodeA": 4, "nodeB": 4}).'
JOB = ("nodes", "partition", "time", "options", "queue_timeout")
WORDS = {"partition": "debug", "time": "10:00"}
STOCK, FORK = "local", "fork"  # launchers of ipyparallel, and of distlab
MPI_BACKEND = "mpi4py"  # distlab's own, in mpi_backend.py
GLOO = 'Call Cluster(n) or Cluster(n, backend="gloo").'
FROM_SOURCE = {
    "mpi": f"Only a torch that was built from source beside an MPI has it. {GLOO} "
    f'Cluster(n, engines="mpi", backend="{MPI_BACKEND}") runs on MPI without it.',
    "ucc": f"Only a torch that was built from source with UCC has it. {GLOO} It has the same functions.",
}


@dataclass(frozen=True)
class Plan:
    """How a cluster is to be made; checked values, see `Cluster` for their meaning."""

    n: int
    backend: str
    init_method: str
    engines: str
    timeout: float
    threads: int | None
    network: Network | None = None
    hosts: Hosts | None = None
    attached: attached.Engines | None = None


def check_plan(
    n: Any, backend: Any, init_method: Any, engines: Any, timeout: Any, threads: Any, network: Any, where: Mapping
) -> Plan:
    """The arguments of `Cluster`, all of them; `where` has those that are for several hosts."""
    found = engines if isinstance(engines, attached.Engines) else None
    if found is not None:
        hosts, engines, n = None, attached.NAME, len(found.client.ids)
    else:
        hosts, engines, n = check_where(n, engines, **where)
    threads = check_threads(threads)
    init_method = check_init_method(init_method)
    if (hosts or found) and init_method == "file":
        refuse("init_method", '"tcp" or "env" for several hosts, which share no file', init_method, "Leave it out.")
    return Plan(
        n=check_size(n),
        backend=check_backend(backend, n, engines),
        init_method=init_method,
        engines=engines,
        timeout=check_seconds("timeout", timeout),
        threads=threads or (None if hosts or found else max(1, (os.cpu_count() or 1) // n)),
        network=check_network(network, n, backend),
        hosts=hosts,
        attached=found,
    )


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


def check_where(
    n: Any, engines: Any, *, hosts: Any, python: Any, interface: Any, job: Mapping[str, Any]
) -> tuple[Hosts | None, str, Any]:
    """The hosts, None for this machine alone; the launcher's name; and the number of ranks."""
    given = [name for name, value in {"python": python, "interface": interface}.items() if value is not None]
    options = {name: value for name, value in job.items() if value is not None}
    if unknown := sorted(set(options) - set(JOB)):
        refuse("arguments", f"some of Cluster's, or of a job's ({', '.join(JOB)})", unknown[0], "See help(Cluster).")
    if engines is None and hosts is not None:
        engines = SSH_NAME
    engines = check_launcher(engines)
    if options and engines != slurm.NAME:
        name = min(options)
        refuse(name, f'given with engines="{slurm.NAME}" alone', options[name], "Leave it out.")
    extra = {"python": python or sys.executable, "interface": interface}
    if engines == slurm.NAME:
        if hosts is not None:
            refuse("hosts", "left out with Slurm, which chooses them", hosts, "Give nodes= and partition=.")
        check_size(n)
        return check_job(n, options, extra), engines, n
    if hosts is None:
        if engines == SSH_NAME:
            refuse("hosts", "given for ssh", hosts, EXAMPLE)
        if given:
            refuse(given[0], "given with hosts alone", {"python": python, "interface": interface}[given[0]], EXAMPLE)
        if n is None:
            refuse("n", "a whole number of ranks", n, "Call Cluster(4).", wrong_type=True)
        return None, engines, n
    if engines not in (SSH_NAME, mpiexec.NAME):
        refuse("engines", f'"{SSH_NAME}" or "{mpiexec.NAME}" with hosts, or left out', engines, EXAMPLE)
    found = check_hosts(hosts, extra)
    if engines == mpiexec.NAME and hasattr(hosts, "reach"):
        refuse("hosts", "reached by ssh for mpiexec", hosts, "Leave engines out.")
    total = len(found.host_of_rank)
    if n is not None and n != total:
        refuse("n", f"left out, or {total} as hosts have it", n, EXAMPLE)
    return found, engines, total


def check_hosts(hosts: Any, extra: Mapping[str, Any]) -> Hosts:
    """Hosts by name with their numbers of ranks, or the path of a file that mpiexec would take."""
    if isinstance(hosts, (str, os.PathLike)):
        if not os.path.isfile(hosts):
            refuse("hosts", "a mapping of names to numbers of ranks, or the path of a hostfile", hosts, EXAMPLE)
        return check_hosts(mpiexec.read_hostfile(os.fspath(hosts)), extra)
    if not isinstance(hosts, Mapping):
        refuse("hosts", "a mapping of host names to numbers of ranks", hosts, EXAMPLE, wrong_type=True)
    for name, count in hosts.items():
        if not isinstance(name, str) or not re.fullmatch(r"(?!-)[\w.@:%-]+", name):
            refuse("hosts", "names of hosts, as ssh takes them", name, EXAMPLE, wrong_type=not isinstance(name, str))
        if not _is_whole(count) or count < 1:
            refuse(f"the number of ranks of {name}", "a whole number, 1 or more", count, f"{EXAMPLE} Leave out others.")
    if not hosts:
        refuse("hosts", "one host or more", hosts, EXAMPLE)
    if hasattr(hosts, "reach"):  # it says by itself what leads to each host
        found = [Host(name, hosts[name], tuple(hosts.reach(name)), hosts.address(name)) for name in hosts]
    else:
        found = [Host(name, ranks, () if name == "localhost" else None) for name, ranks in hosts.items()]
    return Hosts(tuple(found), **extra)


def check_job(n: int, options: Mapping[str, Any], extra: Mapping[str, Any]) -> Hosts:
    """The nodes that Slurm is asked for, and the ranks on each: as many on each as on the others, or one more."""
    slurm.check()
    nodes = options.get("nodes", slurm.nodes_of_allocation() or 1)
    if not _is_whole(nodes) or not 1 <= nodes <= n:
        refuse("nodes", f"a whole number from 1 to the number of ranks, {n}", nodes, "Call Cluster(8, nodes=2, ...).")
    for name in ("partition", "time"):
        if not isinstance(options.get(name, ""), str):
            refuse(name, "text, as srun takes it", options[name], f'Give for example {name}="{WORDS[name]}".', True)
    more = options.get("options", ())
    if isinstance(more, str) or not all(isinstance(word, str) for word in more):
        refuse("options", "a list of words for srun", more, 'Give for example options=["--account=me"].', True)
    seconds = check_seconds("queue_timeout", options.get("queue_timeout", 60.0))
    counts = [n // nodes + (number < n % nodes) for number in range(nodes)]
    job = slurm.Job(nodes, counts[0], options.get("partition"), options.get("time"), tuple(more), seconds)
    return Hosts(tuple(Host(f"node {number}", count) for number, count in enumerate(counts)), job=job, **extra)


def check_size(n: Any) -> int:
    """A number of ranks: whole, and 1 or more; limits.py looks whether the machine has room for them."""
    if not _is_whole(n) or n < 1:
        rule = "1 or more" if _is_whole(n) else "a whole number of ranks"
        refuse("n", rule, n, "Call Cluster(4).", wrong_type=not _is_whole(n))
    return n


def check_seconds(name: str, value: Any) -> float:
    """A number of seconds above 0."""
    wrong_type = isinstance(value, bool) or not isinstance(value, (int, float))
    if wrong_type or not 0 < value < float("inf"):
        refuse(name, "a number of seconds above 0", value, f"Give for example {name}=5.", wrong_type)
    return float(value)


def check_threads(threads: Any) -> int | None:
    """A number of threads, or None."""
    if threads is not None and (not _is_whole(threads) or threads < 1):
        refuse("threads", "None or a whole number of 1 or more", threads, "Call Cluster(n, threads=1).")
    return threads


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
    """One of `rendezvous.INIT_METHODS`, which may end in "://" as torch writes them."""
    name = init_method.removesuffix("://") if isinstance(init_method, str) else init_method
    if name not in INIT_METHODS:
        rule = f"one of {', '.join(map(repr, INIT_METHODS))}"
        refuse("init_method", rule, init_method, 'Call Cluster(n) or Cluster(n, init_method="tcp").')
    return name


def check_backend(backend: Any, n: int, engines: str = "fork") -> str:
    """A backend that can serve `n` ranks here, in small letters; torch is imported for others than gloo and mpi4py."""
    asked = backend.lower() if isinstance(backend, str) else ""
    if asked == MPI_BACKEND and engines != "mpi":
        advice = f'MPI knows only what mpiexec starts. Call Cluster(n, engines="mpi", backend="{MPI_BACKEND}").'
        refuse("engines", f'"mpi" for backend "{MPI_BACKEND}"', engines, advice)
    if asked in ("gloo", MPI_BACKEND):
        return asked
    if asked == "nccl":
        return check_nccl(n)
    import torch.distributed as dist

    known = [name for name in dist.Backend.backend_list if name not in ("undefined", "fake")]
    here = [name for name in known if dist.is_backend_available(name)]
    if asked not in here:
        rule = f"a backend that this torch has ({', '.join(map(repr, here))})"
        not_built = f"This torch was built without it. {GLOO}" if asked in known else GLOO
        refuse("backend", rule, backend, FROM_SOURCE.get(asked, not_built))
    return asked


def check_nccl(n: int) -> str:
    """nccl, where this torch has it and there is a GPU for each of `n` ranks."""
    import torch

    from distlab.devices import why_not_nccl

    why = why_not_nccl(n)
    if why:
        gpus = torch.cuda.device_count()
        fewer = f'Cluster({gpus}, backend="nccl"), or ' if 0 < gpus < n else ""
        takes = ", which takes CUDA tensors too" if gpus else ""
        advice = f"{why} Call {fewer}Cluster({n}) for gloo{takes}."
        refuse("backend", "one that can serve the ranks here", "nccl", advice)
    return "nccl"


def check_ranks(ranks: Any, n: int) -> list[int]:
    """Different ranks of a cluster of `n`; all of them for None."""
    if ranks is None:
        return list(range(n))
    is_list = isinstance(ranks, Sequence) and not isinstance(ranks, (str, bytes))
    in_range = is_list and all(_is_whole(rank) and 0 <= rank < n for rank in ranks)
    if not in_range or not 0 < len(ranks) == len(set(ranks)):
        rule = f"a list of different ranks from 0 to {n - 1}"
        refuse("ranks", rule, ranks, "Leave ranks out to mean all of them.", wrong_type=not is_list)
    return list(ranks)


def check_names(names: Any) -> dict[str, Any]:
    """Values by names of variables."""
    example = 'cluster.push({"x": 1})'
    if not isinstance(names, Mapping):
        refuse("names", "a mapping of names to values", names, f"Call {example}.", wrong_type=True)
    return {check_name(name, example): value for name, value in names.items()}


def check_name(name: Any, example: str) -> str:
    """The name of a variable; `example` is a call that has one."""
    if not isinstance(name, str) or not name.isidentifier():
        refuse("names", "names of variables", name, f"Call {example}.", wrong_type=not isinstance(name, str))
    return name


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
