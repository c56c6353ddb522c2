"""What starts the ranks of a cluster: the names, and `Ssh`, `Slurm` and `Mpi`, which say more.

A person makes one in the notebook's kernel, for the argument `engines` of `Cluster`, and whatever
starts ranks reads it there. Each checks its fields when it is made. placement.py checks whether it
fits the other arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from distlab import arguments
from distlab.arguments import refuse, wrong


@dataclass(frozen=True, kw_only=True)
class OnOtherMachines:
    """What `Ssh`, `Slurm` and `Mpi` share: which Python and which interface ranks use there.

    Attributes:
        python: path of the Python there; None for the path of this Python.
        interface: name of the network interface there over which the ranks talk; None for the one
            that leads to this machine.
    """

    python: str | None = None
    interface: str | None = None

    def __post_init__(self) -> None:
        _check_text("python", self.python, "/opt/python/bin/python")
        _check_text("interface", self.interface, "ib0")


@dataclass(frozen=True, kw_only=True)
class Ssh(OnOtherMachines):
    """Ranks on machines that ssh reaches without asking for a password.

    hosts= names them: `Cluster(hosts={"nodeA": 4}, engines=Ssh(interface="ib0"))`. Where neither
    the Python nor the interface has to be named, `Cluster(hosts={"nodeA": 4})` is enough.

    Attributes:
        python: path of the Python on the hosts; None for the path of this Python.
        interface: name of the network interface on the hosts over which the ranks talk; None for
            the one that leads to this machine.

    Raises:
        ArgumentError: a field breaks its rule.
    """

    name: ClassVar[str] = "ssh"


@dataclass(frozen=True, kw_only=True)
class Slurm(OnOtherMachines):
    """Ranks on nodes of a Slurm cluster, started by one `srun`.

    `Cluster(8, engines=Slurm(nodes=2, partition="debug", time="10:00"))` has four ranks on each of
    two nodes. Slurm chooses the nodes, so hosts= is left out.

    Attributes:
        nodes: number of nodes; None for those of the allocation that this process is in, or 1.
        partition: Slurm's partition; None for its default one.
        time: the job's time limit, such as "10:00"; None for that of the partition.
        options: further words for srun, which override the other fields: ["--account=me"].
        queue_timeout: seconds to wait in the queue.
        python: path of the Python on the nodes; None for the path of this Python.
        interface: name of the network interface on the nodes over which the ranks talk; None for
            the one that leads to this machine.

    Raises:
        ArgumentError: a field breaks its rule.
    """

    name: ClassVar[str] = "slurm"

    nodes: int | None = None
    partition: str | None = None
    time: str | None = None
    options: Sequence[str] = ()
    queue_timeout: float = 60.0

    def __post_init__(self) -> None:
        if self.nodes is not None:
            arguments.whole_number("nodes", self.nodes, 1, advice="For example: nodes=2.")
        _check_text("partition", self.partition, "debug")
        _check_text("time", self.time, "10:00")
        _check_options(self.options)
        queue_timeout = arguments.seconds("queue_timeout", self.queue_timeout)
        super().__post_init__()
        # the class is frozen
        object.__setattr__(self, "options", tuple(self.options))
        object.__setattr__(self, "queue_timeout", queue_timeout)


@dataclass(frozen=True, kw_only=True)
class Mpi(OnOtherMachines):
    """Ranks that mpiexec starts, here or on hosts=; they have mpi4py's `MPI`.

    `Cluster(4, engines=Mpi())` is the same as `Cluster(4, engines="mpi")`. A rank that dies ends
    the others.

    Attributes:
        python: path of the Python on the hosts; None for the path of this Python.
        interface: name of the network interface on the hosts over which the ranks talk; None for
            the one that leads to this machine.

    Raises:
        ArgumentError: a field breaks its rule.
    """

    name: ClassVar[str] = "mpi"


StartMethod = Ssh | Slurm | Mpi
FORK = "fork"  # forks of one process
STOCK = "local"  # a process for each rank by ipyparallel
START_METHODS = (FORK, STOCK, Mpi.name, Slurm.name, Ssh.name)


def default_start_method() -> str:
    """The name of the best start method here."""
    if sys.platform == "linux":
        return FORK
    return STOCK


def check_start_method(engines: str | None) -> str:
    """The start method's name, None for the best one here; ArgumentError if it does not exist."""
    if engines is None:
        return default_start_method()
    name = engines.lower() if isinstance(engines, str) else engines
    advice = f'Call Cluster(n) or Cluster(n, engines="{STOCK}").'
    return arguments.one_of("engines", name, START_METHODS, advice)


def start_method_of(
    engines: str | StartMethod | None, hosts: Mapping[str, int] | None
) -> str | StartMethod:
    """The start method: an object, or the name of one that needs nothing else."""
    if isinstance(engines, (Ssh, Slurm, Mpi)):
        return engines
    for kind in (Ssh, Slurm, Mpi):
        if engines is kind:
            advice = f"Call Cluster(n, engines={kind.__name__}())."
            wrong(f"engines must be an object, got the class {kind.__name__}. {advice}")
    if engines is None and hosts is not None:
        return Ssh()
    name = check_start_method(engines)
    for kind in (Ssh, Slurm, Mpi):
        if name == kind.name:
            return kind()
    return name


# --- rules of their fields ---


def _check_text(name: str, value: object, example: str) -> None:
    """Refuse what is neither a text nor None, which stands for the default."""
    if value is not None and not isinstance(value, str):
        refuse(name, "a text", value, f'For example: {name}="{example}".', wrong_type=True)


def _check_options(value: Any) -> None:
    """Refuse what is no list of texts: one text alone would be read as a list of letters."""
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    if not is_list or not all(isinstance(word, str) for word in value):
        advice = 'For example: options=["--account=me"].'
        refuse("options", "a list of words for srun", value, advice, wrong_type=True)
