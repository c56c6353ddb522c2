"""How to start a cluster: the arguments of `Cluster`, checked before any process starts.

Runs on the notebook's kernel, called by cluster.py; starting.py carries out the plan. `connect`
finds the engines of a running ipyparallel cluster, which can become ranks, too.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distlab import arguments, machine
from distlab.arguments import refuse
from distlab.errors import ClusterError
from distlab.launch import this_host
from distlab.notebook import hosts as machines
from distlab.notebook import mpiexec
from distlab.notebook.hosts import LOCALHOST, SHELL, SLURM_NAME, SSH_NAME, Host, Hosts, by_ssh
from distlab.wire.rendezvous import INIT_METHODS

if TYPE_CHECKING:
    from distlab.simulated.network import Network

ATTACHED = "attached"  # of Cluster.engines
START = "Start one with `ipcluster start -n 4`, or call Cluster(4)."
# How long a communication call waits for its peers. Long, because one rank may prepare for minutes:
# it compiles, reads data, evaluates. Nobody has to wait that long for a program that hangs: a
# deadlock is proven within two seconds.
TIMEOUT = 600.0
CONNECT_SECONDS = 10.0  # for a controller to answer
EXAMPLE = 'Call Cluster(hosts={"nodeA": 4, "nodeB": 4}).'
STOCK, FORK = "local", "fork"  # a process for each rank by ipyparallel, and forks of one process
LAUNCHERS = (FORK, STOCK, mpiexec.NAME, SLURM_NAME, SSH_NAME)
MPI = 'Cluster(n, engines="mpi", backend="distlab_course.mpi_backend")'
GLOO = 'Call Cluster(n) or Cluster(n, backend="gloo").'
FROM_SOURCE = {
    "mpi": f"Only a torch that was built from source with MPI has it. {GLOO} {MPI} runs on MPI without it.",
    "ucc": f"Only a torch that was built from source with UCC has it. {GLOO} It has the same functions.",
}


class ControllerEndedError(ClusterError):
    """The controller ended while a cluster was starting: ipyparallel binds a port some time after
    choosing it.
    """


@dataclass(frozen=True)
class Engines:
    """Engines of a running ipyparallel cluster.

    Attributes:
        client: their ipyparallel Client.
        where: what `connect` was given.
    """

    client: Any
    where: str


@dataclass(frozen=True)
class Plan:
    """How to start a cluster; see `Cluster` for the meaning of each value.

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
        preload: modules that a fork server imports before it forks.
    """

    n: int
    backend: str
    init_method: str
    engines: str
    timeout: float
    threads: int | None
    network: Network | None = None
    hosts: Hosts | None = None
    attached: Engines | None = None
    preload: tuple[str, ...] = ()

    @property
    def forks(self) -> bool:
        """Whether fork servers start the ranks, and replace one that has died."""
        return self.engines in (FORK, SSH_NAME, SLURM_NAME)

    @property
    def again(self) -> str:
        """What to do after a rank has died; "" where a new process takes its place."""
        if self.attached is not None:
            return (
                f"start its engines again there, then call Cluster.attach({self.attached.where!r})"
            )
        return "" if self.forks else "call cluster.restart() for new ranks"


def make_plan(
    n: Any,
    backend: Any,
    init_method: Any,
    engines: Any,
    timeout: Any,
    threads: Any,
    network: Any,
    **where: Any,
) -> Plan:
    """The plan of a cluster; ArgumentError if an argument breaks its rule, or this machine has no
    room for the ranks.

    Args:
        where: `preload`, and those arguments of `Cluster` that concern several hosts.
    """
    found, hosts, preload = None, None, where.pop("preload", ())
    if isinstance(engines, Engines):
        found, engines, n = engines, ATTACHED, len(engines.client.ids)
    else:
        engines = check_launcher(
            SSH_NAME if engines is None and where["hosts"] is not None else engines
        )
        hosts = _hosts(n, engines, **where)
    n = arguments.whole_number(
        "n", len(hosts.host_of_rank) if hosts else n, 1, advice="Call Cluster(4)."
    )
    # as torch writes it
    init_method = init_method.removesuffix("://") if isinstance(init_method, str) else init_method
    arguments.one_of(
        "init_method",
        init_method,
        INIT_METHODS,
        'Call Cluster(n) or Cluster(n, init_method="tcp").',
    )
    if (hosts or found) and init_method == "file":
        refuse(
            "init_method",
            '"tcp" or "env" for several hosts, which share no file',
            init_method,
            "Leave it out.",
        )
    if threads is not None:
        threads = arguments.whole_number(
            "threads", threads, 1, advice="Call Cluster(n, threads=1)."
        )
    elif not hosts and not found:
        threads = max(1, machine.cores() // n)
    backend, timeout = check_backend(backend, n), arguments.seconds("timeout", timeout)
    network = check_network(network, n, backend)
    if isinstance(preload, str) or not all(map(_is_module, preload)):
        refuse(
            "preload",
            "a list of modules that are installed here",
            preload,
            'Call Cluster(4, preload=["numpy"]).',
        )
    if not hosts and not found:
        this_host.check(n, engines)
    return Plan(
        n, backend, init_method, engines, timeout, threads, network, hosts, found, tuple(preload)
    )


def _hosts(
    n: Any, engines: str, hosts: Any, python: Any, interface: Any, **job: Any
) -> Hosts | None:
    """Where the ranks of a launcher run: None for this machine."""
    extra = {"python": python or sys.executable, "interface": interface}
    if engines == SLURM_NAME:
        arguments.left_out(
            "hosts", hosts, "left out with Slurm, which chooses them", "Give nodes= and partition=."
        )
        return _job(n, extra, **job)
    for name, value in job.items():
        arguments.left_out(name, value, f'given with engines="{SLURM_NAME}" alone', "Leave it out.")
    if hosts is None:
        if engines == SSH_NAME or python or interface:
            refuse("hosts", "given for ssh, python= and interface=", hosts, EXAMPLE)
        return None
    found = _read_hosts(hosts, extra)
    if engines not in (SSH_NAME, mpiexec.NAME):
        refuse(
            "engines", f'"{SSH_NAME}" or "{mpiexec.NAME}" with hosts, or left out', engines, EXAMPLE
        )
    if n not in (None, len(found.host_of_rank)):
        refuse("n", f"left out, or {len(found.host_of_rank)} as in hosts", n, EXAMPLE)
    return found


def check_launcher(engines: str | None) -> str:
    """The launcher's name, for None the best one here; ArgumentError for one that does not exist."""
    if engines is None:
        return FORK if sys.platform == "linux" else STOCK
    name = engines.lower() if isinstance(engines, str) else engines
    arguments.one_of(
        "engines", name, LAUNCHERS, f'Call Cluster(n) or Cluster(n, engines="{STOCK}").'
    )
    if name == mpiexec.NAME:
        mpiexec.check()
    return name


def _read_hosts(hosts: Any, extra: Mapping[str, Any]) -> Hosts:
    """Hosts by name with their numbers of ranks."""
    for name, count in arguments.mapping(
        "hosts", hosts, "host names to numbers of ranks", EXAMPLE
    ).items():
        arguments.whole_number(
            f"the number of ranks of {name}", count, 1, advice=f"{EXAMPLE} Leave out others."
        )
    if hasattr(hosts, "reach"):  # practice hosts know by themselves what leads to each
        found = [
            Host(name, hosts[name], (*hosts.reach(name), *SHELL), hosts.address(name))
            for name in hosts
        ]
        return Hosts(tuple(found), **extra, here=hosts.here)
    found = [
        Host(name, count, SHELL if name == LOCALHOST else by_ssh(name))
        for name, count in hosts.items()
    ]
    return Hosts(tuple(found), **extra)


def _job(
    n: Any, extra: Any, nodes: Any, partition: Any, time: Any, options: Any, queue_timeout: Any
) -> Hosts:
    """The nodes to ask Slurm for, and the ranks on each: the same number everywhere, or one more on
    some.
    """
    machines.check_slurm()
    n = arguments.whole_number("n", n, 1, advice="Call Cluster(4).")
    nodes = (machines.nodes_of_allocation() or 1) if nodes is None else nodes
    arguments.whole_number("nodes", nodes, 1, n, "Call Cluster(8, nodes=2, ...).")
    if isinstance(options, str):
        refuse(
            "options",
            "a list of words for srun",
            options,
            'For example: options=["--account=me"].',
            True,
        )
    counts = [n // nodes + (number < n % nodes) for number in range(nodes)]
    limit = 60.0 if queue_timeout is None else arguments.seconds("queue_timeout", queue_timeout)
    job = machines.Job(nodes, counts[0], partition, time, tuple(options or ()), limit)
    command = (*machines.srun(job), *SHELL)
    return Hosts(
        tuple(Host(f"node {number}", count, command) for number, count in enumerate(counts)),
        job=job,
        **extra,
    )


def check_network(network: Any, n: int, backend: str) -> Network | None:
    """None, or a description of machines with as many ranks as the cluster."""
    if network is None:
        return None
    from distlab.simulated.network import Network  # others start sooner without it

    arguments.instance(
        "network", network, Network, 'Call Cluster(8, network=distlab.Network("5 us", "25 GB/s")).'
    )
    if backend != "gloo":
        refuse("backend", "gloo on simulated machines", backend, "Leave backend out.")
    network.check_size(n)
    return network


def check_backend(backend: Any, n: int) -> str:
    """A backend that can serve `n` ranks here: its name in small letters, or the module that
    registers it.

    torch is imported unless it is gloo or a module.
    """
    asked = backend.lower() if isinstance(backend, str) else ""
    if asked == "gloo":
        return asked
    if asked == "nccl":
        from distlab.devices import why_not_nccl

        if why := why_not_nccl(n):
            refuse(
                "backend",
                "one that can serve the ranks here",
                asked,
                f"{why} Call Cluster({n}) for gloo.",
            )
        return asked
    if asked not in FROM_SOURCE and _is_module(backend):
        return backend
    import torch.distributed as dist

    here = [
        b
        for b in dist.Backend.backend_list
        if b not in ("undefined", "fake") and dist.is_backend_available(b)
    ]
    if asked not in here:
        rule = f"a backend that this torch has ({', '.join(map(repr, here))}), or a module that registers one"
        refuse("backend", rule, backend, FROM_SOURCE.get(asked, GLOO))
    return asked


def _is_module(name: Any) -> bool:
    """Whether there is a module of this name; its parent packages are imported."""
    with contextlib.suppress(ImportError, ValueError):
        return isinstance(name, str) and importlib.util.find_spec(name) is not None
    return False


# --- engines that others started ---


def connect(where: Any) -> Engines:
    """The engines of a running cluster, by a profile's name or a connection file.

    Raises:
        ClusterError: no controller is found or answers, or its engines are not 0 to n - 1.
    """
    import ipyparallel

    try:
        client = ipyparallel.Client(
            connection_info=_connection_file(where), timeout=CONNECT_SECONDS
        )
    except (OSError, ipyparallel.error.IPythonError) as error:
        raise ClusterError(
            f"No ipyparallel cluster answers at {where!r} ({error}). {START}"
        ) from error
    if not client.ids or client.ids != list(range(len(client.ids))):
        found = client.ids
        client.close()
        raise ClusterError(
            f"Ranks are engines 0 to n - 1, and this cluster has {found}: start its engines again."
        )
    return Engines(client, os.fspath(where))


def _connection_file(where: Any) -> str:
    """The path of the connection file that is meant; of a profile, the newest."""
    from IPython.paths import get_ipython_dir

    path = Path(os.fspath(where))
    of_profile = Path(get_ipython_dir()).glob(f"profile_{path}/security/ipcontroller*-client.json")
    newest = path if path.is_file() else max(of_profile, key=os.path.getmtime, default=None)
    if newest is None:
        raise ClusterError(
            f"No ipyparallel cluster runs in profile {where!r}, and no file has this path. {START}"
        )
    return str(newest)
