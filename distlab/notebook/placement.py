"""Where the ranks of a cluster run: on this machine, on hosts with names, or on nodes of Slurm.

Runs on the notebook's kernel, called by plan.py before anything starts; what does not fit together
is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeGuard

from distlab import arguments
from distlab.arguments import wrong
from distlab.notebook import mpiexec
from distlab.notebook.hosts import (
    LOCALHOST,
    SHELL,
    Host,
    Hosts,
    by_ssh,
    check_slurm,
    nodes_of_allocation,
    srun,
)
from distlab.notebook.start_methods import Mpi, Slurm, Ssh, StartMethod

HOSTS_EXAMPLE = 'Call Cluster(hosts={"nodeA": 4, "nodeB": 4}).'
SLURM_EXAMPLE = "Call Cluster(8, engines=Slurm(nodes=2))."


class Reachable(Protocol):
    """A mapping of hosts that knows what leads to each, as practice hosts do; see `Cluster`.

    Attributes:
        here: this machine's address for the hosts.
    """

    here: str

    def reach(self, name: str) -> Sequence[str]:
        """The words to put before a command to run it on a host."""

    def address(self, name: str) -> str:
        """A host's address for the other hosts."""


def _is_reachable(hosts: object) -> TypeGuard[Reachable]:
    return hasattr(hosts, "reach")


def place_ranks(
    n: int | None, method: str | StartMethod, hosts: Mapping[str, int] | None
) -> Hosts | None:
    """Where a start method runs the ranks; None for this machine."""
    if isinstance(method, Slurm):
        if hosts is not None:
            wrong(f'engines="slurm" needs no hosts=, because Slurm chooses them. {SLURM_EXAMPLE}')
        return _slurm_nodes(n, method)
    if isinstance(method, Mpi):
        mpiexec.check_mpi()
    if hosts is not None:
        return _named_hosts(n, method, hosts)
    if isinstance(method, Ssh):
        wrong(f'engines="ssh" needs hosts=. {HOSTS_EXAMPLE}')
    if isinstance(method, Mpi) and (method.python or method.interface):
        elsewhere = "python= and interface= of Mpi are for other machines"
        wrong(f"{elsewhere}, so give hosts= as well. {HOSTS_EXAMPLE}")
    return None


def _named_hosts(n: int | None, method: str | Ssh | Mpi, hosts: Mapping[str, int]) -> Hosts:
    """Hosts by name, with their numbers of ranks."""
    found = _read_hosts(hosts)
    if isinstance(method, str):
        wrong(
            f'engines="{method}" starts ranks only on this machine. With hosts=, leave it out, '
            f'or write engines="mpi". {HOSTS_EXAMPLE}'
        )
    ranks = sum(host.ranks for host in found)
    if n not in (None, ranks):
        wrong(f"The hosts have {ranks} ranks, but n is {n!r}. Leave out n. {HOSTS_EXAMPLE}")
    here = hosts.here if _is_reachable(hosts) else ""
    return Hosts(found, method, here)


def _read_hosts(hosts: Mapping[str, int]) -> tuple[Host, ...]:
    """Each host with what leads to it; ArgumentError for what is no number of ranks."""
    arguments.mapping("hosts", hosts, "host names to numbers of ranks", HOSTS_EXAMPLE)
    advice = f"{HOSTS_EXAMPLE} Leave out others."
    found = []
    for name, ranks in hosts.items():
        arguments.whole_number(f"the number of ranks of {name}", ranks, 1, advice=advice)
        if _is_reachable(hosts):
            found.append(Host(name, ranks, (*hosts.reach(name), *SHELL), hosts.address(name)))
        elif name == LOCALHOST:
            found.append(Host(name, ranks, SHELL))
        else:
            found.append(Host(name, ranks, by_ssh(name)))
    return tuple(found)


def _slurm_nodes(n: int | None, job: Slurm) -> Hosts:
    """The nodes to ask Slurm for, and the ranks on each.

    The number of ranks is the same everywhere, or one more on the first nodes.
    """
    check_slurm()
    n = arguments.whole_number("n", n, 1, advice="Call Cluster(4).")
    nodes = job.nodes or nodes_of_allocation() or 1
    if nodes > n:
        wrong(f"Each node needs a rank: n is {n}, and there are {nodes} nodes. {SLURM_EXAMPLE}")
    fewest, more = divmod(n, nodes)
    most = fewest + 1 if more else fewest
    command = (*srun(job, nodes, most), *SHELL)
    found = []
    for number in range(nodes):
        ranks = fewest + 1 if number < more else fewest
        found.append(Host(f"node {number}", ranks, command))
    return Hosts(tuple(found), job)
