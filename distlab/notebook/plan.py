"""How to start a cluster: the arguments of `Cluster`, checked before any process starts.

Runs on the notebook's kernel, called by cluster.py; starting.py carries out the plan.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distlab import arguments, machine
from distlab.arguments import refuse, wrong
from distlab.errors import ClusterError
from distlab.launch import this_host
from distlab.notebook.attached import Attached
from distlab.notebook.hosts import Hosts
from distlab.notebook.placement import place_ranks
from distlab.notebook.start_methods import FORK, Slurm, Ssh, StartMethod, start_method_of
from distlab.wire.rendezvous import INIT_METHODS

if TYPE_CHECKING:
    from distlab.notebook.early import EarlyServer
    from distlab.simulated.network import Network

ATTACHED = "attached"  # of Cluster.engines
# How long a communication call waits for its peers. Long, because one rank may prepare for minutes:
# it compiles, reads data, evaluates. Nobody has to wait that long for a program that hangs: a
# deadlock is proven within two seconds.
TIMEOUT = 600.0
GLOO = 'Call Cluster(n) or Cluster(n, backend="gloo").'
MPI = 'Cluster(n, engines="mpi", backend="distlab_course.mpi_backend")'
# backends that the usual torch does not have, and what to do without them
FROM_SOURCE = {
    "mpi": "Only a torch that was built from source with MPI has it. "
    f"{GLOO} {MPI} runs on MPI without it.",
    "ucc": "Only a torch that was built from source with UCC has it. "
    f"{GLOO} It has the same functions.",
}


class ControllerEndedError(ClusterError):
    """The controller ended while a cluster was starting.

    That happens where another program takes a port first: ipyparallel binds one some time after
    choosing it.
    """


@dataclass(frozen=True)
class Plan:
    """How to start a cluster; see `Cluster` for the meaning of each value.

    Attributes:
        n: number of ranks.
        backend: torch.distributed's, in small letters; or a module that registers one.
        init_method: one of INIT_METHODS.
        engines: name of the start method.
        timeout: seconds that a call waits for its peers.
        threads: OpenMP threads of each rank; None to choose them on the hosts.
        network: the machines that are simulated.
        hosts: where the ranks run; None for this machine.
        attached: engines that others started.
        preload: modules that a fork server imports before it forks.
        fresh: whether each rank is an interpreter of its own.
        direct: whether ranks are without ipyparallel, for one program: see direct.py.
        early: their fork server, where it has started already.
    """

    n: int
    backend: str
    init_method: str
    engines: str
    timeout: float
    threads: int | None
    network: Network | None = None
    hosts: Hosts | None = None
    attached: Attached | None = None
    preload: tuple[str, ...] = ()
    fresh: bool = False
    direct: bool = False
    early: EarlyServer | None = None

    @property
    def forks(self) -> bool:
        """Whether fork servers start the ranks, and replace one that has died."""
        return self.engines in (FORK, Ssh.name, Slurm.name)

    def starts_like(self, other: Plan) -> bool:
        """Whether the processes of another plan can start the ranks of this one.

        A fork server whose first ranks were fresh has imported nothing that others could share.
        """
        if other.fresh and not self.fresh:
            return False
        if self.direct or other.direct:
            return False
        if self.engines != other.engines or self.hosts != other.hosts:
            return False
        return self.preload == other.preload

    @property
    def again(self) -> str:
        """What to do after a rank has died; "" where a new process takes its place."""
        if self.attached is not None:
            attach = f"Cluster.attach({self.attached.where!r})"
            return f"start its engines again there, then call {attach}"
        if self.forks:
            return ""
        return "call cluster.restart() for new ranks"


def make_plan(
    n: int | None,
    *,
    backend: str,
    init_method: str,
    engines: str | StartMethod | Attached | None,
    timeout: float,
    threads: int | None,
    network: Network | None,
    preload: Sequence[str],
    hosts: Mapping[str, int] | None,
    fresh: bool,
) -> Plan:
    """The plan of a cluster with these arguments of `Cluster`.

    Raises:
        ArgumentError: an argument breaks its rule, or does not fit another one, or this machine has
            no room for the ranks.
    """
    start = _start_of(n, engines, hosts)
    n = arguments.whole_number("n", start.n, 1, advice="Call Cluster(4).")
    init_method = _check_init_method(init_method, start.is_only_here)
    if threads is not None:
        arguments.whole_number("threads", threads, 1, advice="Call Cluster(n, threads=1).")
    elif start.is_only_here:
        threads = max(1, machine.cores() // n)
    backend = check_backend(backend, n)
    timeout = arguments.seconds("timeout", timeout)
    network = check_network(network, n, backend)
    _check_preload(preload)
    _check_fresh(fresh, start.attached)
    if start.is_only_here:
        this_host.check_ranks_fit(n, start.engines, fresh)
    return Plan(
        n=n,
        backend=backend,
        init_method=init_method,
        engines=start.engines,
        timeout=timeout,
        threads=threads,
        network=network,
        hosts=start.hosts,
        attached=start.attached,
        preload=tuple(preload),
        fresh=fresh,
    )


@dataclass(frozen=True)
class _Start:
    """What starts the ranks, and where; attributes as of `Plan`, but `n` may be anything yet."""

    n: int | None
    engines: str
    hosts: Hosts | None = None
    attached: Attached | None = None

    @property
    def is_only_here(self) -> bool:
        """Whether all ranks will be started on this machine."""
        return self.hosts is None and self.attached is None


def _start_of(
    n: int | None,
    engines: str | StartMethod | Attached | None,
    hosts: Mapping[str, int] | None,
) -> _Start:
    """What starts the ranks, with these arguments of `Cluster`."""
    if isinstance(engines, Attached):
        return _Start(len(engines.client.ids), ATTACHED, attached=engines)
    method = start_method_of(engines, hosts)
    name = method if isinstance(method, str) else method.name
    placed = place_ranks(n, method, hosts)
    if placed is None:
        return _Start(n, name)
    return _Start(len(placed.host_of_rank), name, placed)


def _check_init_method(init_method: str, only_here: bool) -> str:
    """How ranks meet, by its name; torch writes it like the beginning of an address."""
    if isinstance(init_method, str):
        init_method = init_method.removesuffix("://")
    advice = 'Call Cluster(n) or Cluster(n, init_method="tcp").'
    arguments.one_of("init_method", init_method, INIT_METHODS, advice)
    if init_method == "file" and not only_here:
        why = "needs a file that all ranks share, and hosts share none"
        wrong(f'init_method="file" {why}: leave it out.')
    return init_method


def _check_preload(preload: Sequence[str]) -> None:
    """Refuse what is no list of modules: one text alone would be read as a list of letters."""
    if isinstance(preload, str) or not all(map(_is_module, preload)):
        advice = 'Call Cluster(4, preload=["numpy"]).'
        refuse("preload", "a list of modules that are installed here", preload, advice)


def _check_fresh(fresh: bool, attached: Attached | None) -> None:
    """Refuse fresh ranks where others have started them.

    Those of ipyparallel's own and of mpiexec are interpreters of their own anyway.
    """
    arguments.instance("fresh", fresh, bool, "Call Cluster(4, fresh=True).")
    if fresh and attached is not None:
        wrong(
            "fresh=True starts new interpreters, but attached engines already run. Leave it out, "
            "or call Cluster(4, fresh=True)."
        )


def check_network(network: Any, n: int, backend: str) -> Network | None:
    """None, or a description of machines with as many ranks as the cluster."""
    if network is None:
        return None
    from distlab.simulated.network import Network  # others start sooner without it

    advice = 'Call Cluster(8, network=distlab.Network("5 us", "25 GB/s")).'
    arguments.instance("network", network, Network, advice)
    if backend != "gloo":
        refuse("backend", "gloo on simulated machines", backend, "Leave backend out.")
    network.check_size(n)
    return network


def check_backend(backend: str, n: int) -> str:
    """A backend that can serve `n` ranks here: its name in small letters, or a module's name.

    A module registers a backend when it is imported. For other backends than gloo and modules,
    torch is imported here to ask it.
    """
    name = backend.lower() if isinstance(backend, str) else ""
    if name == "gloo":
        return name
    if name == "nccl":
        _check_nccl(n)
        return name
    if name not in FROM_SOURCE and _is_module(backend):
        return backend
    available = _available_backends()
    if name not in available:
        names = ", ".join(map(repr, available))
        rule = f"a backend that this torch has ({names}), or a module that registers one"
        refuse("backend", rule, backend, FROM_SOURCE.get(name, GLOO))
    return name


def _check_nccl(n: int) -> None:
    """Raise ArgumentError if there is no GPU for each rank."""
    from distlab.devices import why_not_nccl  # others start sooner without it

    why = why_not_nccl(n)
    if why:
        advice = f"{why} Call Cluster({n}) for gloo."
        refuse("backend", "one that can serve the ranks here", "nccl", advice)


def _available_backends() -> list[str]:
    """The backends that this torch has, and that a program can use."""
    import torch.distributed as dist  # others start sooner without it

    names = [name for name in dist.Backend.backend_list if name not in ("undefined", "fake")]
    return [name for name in names if dist.is_backend_available(name)]


def _is_module(name: object) -> bool:
    """Whether there is a module of this name; its parent packages are imported."""
    if not isinstance(name, str):
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
