"""How to start a cluster: the arguments of `Cluster`, checked before any process starts.

Runs on the notebook's kernel, called by cluster.py; starting.py carries out the plan. `connect`
finds the engines of a running ipyparallel cluster, which can become ranks, too.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from distlab import arguments, machine
from distlab.arguments import refuse, wrong
from distlab.errors import ClusterError
from distlab.launch import this_host
from distlab.notebook import hosts as machines
from distlab.notebook import mpiexec
from distlab.notebook.hosts import LOCALHOST, SHELL, Host, Hosts, by_ssh
from distlab.notebook.launchers import Launcher, Mpi, Slurm, Ssh
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
SLURM_EXAMPLE = "Call Cluster(8, engines=Slurm(nodes=2))."
STOCK, FORK = "local", "fork"  # a process for each rank by ipyparallel, and forks of one process
LAUNCHERS = (FORK, STOCK, Mpi.name, Slurm.name, Ssh.name)
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
        return self.engines in (FORK, Ssh.name, Slurm.name)

    @property
    def again(self) -> str:
        """What to do after a rank has died; "" where a new process takes its place."""
        if self.attached is not None:
            return (
                f"start its engines again there, then call Cluster.attach({self.attached.where!r})"
            )
        return "" if self.forks else "call cluster.restart() for new ranks"


def make_plan(
    n: int | None,
    *,
    backend: str,
    init_method: str,
    engines: str | Launcher | Engines | None,
    timeout: float,
    threads: int | None,
    network: Network | None,
    preload: Sequence[str],
    hosts: Mapping[str, int] | None,
) -> Plan:
    """The plan of a cluster with these arguments of `Cluster`.

    Raises:
        ArgumentError: an argument breaks its rule, or does not fit another one, or this machine has
            no room for the ranks.
    """
    if isinstance(engines, Engines):
        attached, where = engines, None
        name = ATTACHED
        n = len(engines.client.ids)
    else:
        attached = None
        launcher = _launcher(engines, hosts)
        name = launcher if isinstance(launcher, str) else launcher.name
        where = _where(n, launcher, hosts)
        if where is not None:
            n = len(where.host_of_rank)
    only_here = where is None and attached is None
    n = arguments.whole_number("n", n, 1, advice="Call Cluster(4).")
    init_method = _check_init_method(init_method, only_here)
    if threads is not None:
        arguments.whole_number("threads", threads, 1, advice="Call Cluster(n, threads=1).")
    elif only_here:
        threads = max(1, machine.cores() // n)
    backend = check_backend(backend, n)
    timeout = arguments.seconds("timeout", timeout)
    network = check_network(network, n, backend)
    _check_preload(preload)
    if only_here:
        this_host.check(n, name)
    return Plan(
        n=n,
        backend=backend,
        init_method=init_method,
        engines=name,
        timeout=timeout,
        threads=threads,
        network=network,
        hosts=where,
        attached=attached,
        preload=tuple(preload),
    )


def _check_init_method(init_method: str, only_here: bool) -> str:
    """How ranks meet, by its name; torch writes it like the beginning of an address."""
    if isinstance(init_method, str):
        init_method = init_method.removesuffix("://")
    advice = 'Call Cluster(n) or Cluster(n, init_method="tcp").'
    arguments.one_of("init_method", init_method, INIT_METHODS, advice)
    if init_method == "file" and not only_here:
        wrong(
            'init_method="file" needs a file that all ranks share, and hosts share none: leave it out.'
        )
    return init_method


def _check_preload(preload: Sequence[str]) -> None:
    if isinstance(preload, str) or not all(map(_is_module, preload)):
        advice = 'Call Cluster(4, preload=["numpy"]).'
        refuse("preload", "a list of modules that are installed here", preload, advice)


# --- what starts the ranks, and where ---


def check_launcher(engines: str | None) -> str:
    """The launcher's name, for None the best one here; ArgumentError for one that does not exist."""
    if engines is None:
        return FORK if sys.platform == "linux" else STOCK
    name = engines.lower() if isinstance(engines, str) else engines
    advice = f'Call Cluster(n) or Cluster(n, engines="{STOCK}").'
    return arguments.one_of("engines", name, LAUNCHERS, advice)


def _launcher(engines: str | Launcher | None, hosts: Mapping[str, int] | None) -> str | Launcher:
    """What starts the ranks: an object, or the name of a launcher that needs nothing else."""
    if isinstance(engines, (Ssh, Slurm, Mpi)):
        return engines
    for kind in (Ssh, Slurm, Mpi):
        if engines is kind:
            advice = f"Call Cluster(n, engines={kind.__name__}())."
            wrong(f"engines must be an object, got the class {kind.__name__}. {advice}")
    if engines is None and hosts is not None:
        return Ssh()
    name = check_launcher(engines)
    for kind in (Ssh, Slurm, Mpi):
        if name == kind.name:
            return kind()
    return name


def _where(
    n: int | None, launcher: str | Launcher, hosts: Mapping[str, int] | None
) -> Hosts | None:
    """Where the ranks of a launcher run: None for this machine."""
    if isinstance(launcher, Slurm):
        if hosts is not None:
            wrong(f'engines="slurm" needs no hosts=, because Slurm chooses them. {SLURM_EXAMPLE}')
        return _slurm_nodes(n, launcher)
    if isinstance(launcher, Mpi):
        mpiexec.check()
    if hosts is not None:
        return _named_hosts(n, launcher, hosts)
    if isinstance(launcher, Ssh):
        wrong(f'engines="ssh" needs hosts=. {EXAMPLE}')
    if isinstance(launcher, Mpi) and (launcher.python or launcher.interface):
        wrong(f"python= and interface= of Mpi are for other machines: give hosts=, too. {EXAMPLE}")
    return None


def _named_hosts(n: int | None, launcher: str | Ssh | Mpi, hosts: Mapping[str, int]) -> Hosts:
    """Hosts by name, with their numbers of ranks."""
    found = _read_hosts(hosts)
    if isinstance(launcher, str):
        wrong(
            f'engines="{launcher}" starts ranks on this machine only: with hosts=, leave it out, '
            f'or write engines="mpi". {EXAMPLE}'
        )
    ranks = sum(host.ranks for host in found)
    if n not in (None, ranks):
        wrong(f"The hosts have {ranks} ranks, and n is {n!r}: leave n out. {EXAMPLE}")
    here = hosts.here if isinstance(hosts, Reachable) else ""
    return Hosts(found, launcher, here)


@runtime_checkable
class Reachable(Protocol):
    """A mapping of hosts that knows what leads to each, as practice hosts do; see `Cluster`."""

    here: str

    def reach(self, name: str) -> Sequence[str]: ...

    def address(self, name: str) -> str: ...


def _read_hosts(hosts: Mapping[str, int]) -> tuple[Host, ...]:
    """What leads to each host; ArgumentError for what is no number of ranks."""
    arguments.mapping("hosts", hosts, "host names to numbers of ranks", EXAMPLE)
    found = []
    for name, ranks in hosts.items():
        advice = f"{EXAMPLE} Leave out others."
        arguments.whole_number(f"the number of ranks of {name}", ranks, 1, advice=advice)
        if isinstance(hosts, Reachable):
            found.append(Host(name, ranks, (*hosts.reach(name), *SHELL), hosts.address(name)))
        elif name == LOCALHOST:
            found.append(Host(name, ranks, SHELL))
        else:
            found.append(Host(name, ranks, by_ssh(name)))
    return tuple(found)


def _slurm_nodes(n: int | None, job: Slurm) -> Hosts:
    """The nodes to ask Slurm for, and the ranks on each: the same number everywhere, or one more on
    the first ones.
    """
    machines.check_slurm()
    n = arguments.whole_number("n", n, 1, advice="Call Cluster(4).")
    nodes = job.nodes or machines.nodes_of_allocation() or 1
    if nodes > n:
        wrong(f"Each node needs a rank: n is {n}, and there are {nodes} nodes. {SLURM_EXAMPLE}")
    ranks, more = divmod(n, nodes)
    counts = [ranks + 1] * more + [ranks] * (nodes - more)
    command = (*machines.srun(job, nodes, max(counts)), *SHELL)
    found = [Host(f"node {number}", count, command) for number, count in enumerate(counts)]
    return Hosts(tuple(found), job)


# --- what ranks are made of ---


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
