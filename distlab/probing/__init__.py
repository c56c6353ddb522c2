"""`probe`: what every function of torch.distributed does here, tried out instead of looked up.

Called by the notebook; notebook 06 shows the result. The cases run on processes of their own, which are started for
them: what hangs or ends a process there harms no rank of the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from distlab.arguments import MPI_BACKEND
from distlab.errors import refuse
from distlab.probing.names import BACKENDS, DEVICES, FUNCTIONS, REDUCTIONS, Column
from distlab.probing.table import Probe

if TYPE_CHECKING:
    from distlab.cluster import Cluster

# backends in Python, and the module that registers them
REGISTERED_BY = {MPI_BACKEND: "distlab.mpi_backend"}
MOST_RANKS = 4  # more would be told the same, and each imports torch
EXAMPLE = "Call distlab.probe(cluster)."


def probe(cluster: Cluster, backends: str | Sequence[str] = BACKENDS, modules: str | Sequence[str] = ()) -> Probe:
    """Try every function that communicates, and every ReduceOp with every dtype, on each backend and device.

    Each case runs on as many processes as the cluster has ranks, but at most 4, with small tensors, and its result is
    compared with the right one. One that seems to hang is tried once more, with more time. The ranks of the cluster are
    not used, and keep what they have.

    Runs on: the notebook's kernel.

    Args:
        cluster: a running one of 2 ranks or more. backends: a name or several, also of such as a module registers.
        modules: to import on the processes first; they register backends, then or in a function `register`.

    Returns:
        The `Probe`, which shows itself: each case works, is refused with torch's message, gives a wrong result, hangs,
        ends its process, or its backend is not built or its device not there; or it was not tried, since the
        processes that had answered before did not start again.

    Raises:
        ArgumentError: the cluster has one rank, or there is no backend to try.
        ClusterError: the cluster is not running, or the processes do not start.
    """
    from distlab.cluster import Cluster
    from distlab.probing.driver import run_cases
    from distlab.progress import progress

    if not isinstance(cluster, Cluster):
        refuse("cluster", "a Cluster", cluster, EXAMPLE, wrong_type=True)
    if cluster.n < 2:
        refuse("cluster", "of 2 ranks or more, to have somebody to talk to", cluster.n, "Make one: Cluster(2).")
    columns = _columns(backends)
    todo = [(column, name) for column in columns for name in (*FUNCTIONS, *REDUCTIONS)]
    modules = _modules(modules, columns)
    size = min(cluster.n, MOST_RANKS)
    with progress(len(todo)) as tell:
        found = run_cases(size, todo, modules, cluster.ranks.environment, _starter(cluster.engines, size), tell)
    return Probe(metadata.version("torch"), size, found)


def _columns(backends: Any) -> list[Column]:
    names = [backends] if isinstance(backends, str) else backends
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        refuse("backends", 'a list of names of backends, such as ["gloo"]', backends, EXAMPLE, wrong_type=True)
    return [Column(name, device) for name in dict.fromkeys(map(str.lower, names)) for device in DEVICES]


def _modules(modules: str | Sequence[str], columns: Sequence[Column]) -> list[str]:
    """What the processes import first: the modules given, and those of the columns' backends."""
    own = [REGISTERED_BY[column.backend] for column in columns if column.backend in REGISTERED_BY]
    return list(dict.fromkeys([*([modules] if isinstance(modules, str) else modules), *own]))


def _starter(engines: str, size: int) -> list[str]:
    """The command that starts all processes together, where the cluster's were started so; [] where one by one."""
    if engines != "mpi":
        return []
    from distlab import mpiexec

    return [mpiexec.find() or "mpiexec", *mpiexec.arguments(), "-n", str(size)]
