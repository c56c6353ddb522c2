"""What the notebook and the fork servers send each other: plans and orders there, reports back.

Runs on both sides; codec.py has the JSON. `host` is the number of a host, 0 for the server on this
machine.
"""

from dataclasses import dataclass

CONTROLLER = -1  # in place of an engine's number


@dataclass(frozen=True)
class HostPlan:
    """What one host needs to know before its ranks start.

    Attributes:
        host: its number.
        ranks: how many start there.
        folder: where the notebook works.
        notebook: the notebook's address; "" if the host can find it, because ssh or srun came from
            there.
        address: of this host for the others; None for the one that leads to the notebook.
        interface: network interface of the ranks; None for the one with that address.
    """

    host: int
    ranks: int
    folder: str
    notebook: str = ""
    address: str | None = None
    interface: str | None = None


@dataclass(frozen=True)
class ServerPlan:
    """The first line that a fork server reads.

    Attributes:
        environment: additions to the environment, ipyparallel's IPP_CLUSTER_ID and IPP_PROFILE_DIR
            among them.
        preload: what a person wants imported before the first fork.
        controller: arguments of ipyparallel's controller, if the server is to fork it as well.
        hosts: of servers on other hosts: the plan of each host that reads this line.
        fresh: whether its first engines are fresh, so that nothing is imported for them.
        direct: whether the engines are ranks of a launcher, without ipyparallel.
    """

    environment: dict[str, str]
    preload: tuple[str, ...]
    controller: tuple[str, ...] = ()
    hosts: tuple[HostPlan, ...] = ()
    fresh: bool = False
    direct: bool = False


@dataclass(frozen=True)
class ForkOrder:
    """The order to fork an engine, after additions to the environment.

    Attributes:
        host: the number of its host.
        engine: its number.
        environment: the additions.
        fresh: whether it becomes a new interpreter, which shares nothing with other engines.
    """

    host: int
    engine: int
    environment: dict[str, str]
    fresh: bool = False


@dataclass(frozen=True)
class KillOrder:
    """The order to end an engine by SIGKILL.

    Attributes:
        host: the number of its host.
        engine: its number.
    """

    host: int
    engine: int


@dataclass(frozen=True)
class Alive:
    """A host's heartbeat, and the notebook's answer to it: a report and an order.

    Attributes:
        host: the number of the host.
    """

    host: int


@dataclass(frozen=True)
class Hello:
    """What a host reports about itself before its ranks start.

    Attributes:
        host: its number.
        name: its own name.
        cores: how many of them it may use.
        versions: of Python and packages.
        notebook: the notebook's address as the host sees it.
        address: of the host for the others.
    """

    host: int
    name: str
    cores: int
    versions: dict[str, str]
    notebook: str
    address: str


@dataclass(frozen=True)
class StoreAddress:
    """Where a server serves the store in which the ranks meet."""

    address: str
    port: int


@dataclass(frozen=True)
class EngineProcess:
    """The report that an engine runs as a process, or that it has ended.

    Attributes:
        engine: its number; CONTROLLER for the controller, whose end alone is reported.
        pid: the number of its process.
        status: with which it has ended, negative for a signal; None while it runs.
        log: the end of what it wrote.
        fault: where it was if a fault in compiled code ended it, see wire/faults.py.
    """

    engine: int
    pid: int
    status: int | None = None
    log: str = ""
    fault: str = ""


@dataclass(frozen=True)
class NotForked:
    """The report that the system has refused to fork an engine, or the store.

    Attributes:
        why: for what reason, in the system's words.
    """

    why: str


AnyOrder = ForkOrder | KillOrder | Alive
AnyReport = Alive | Hello | StoreAddress | EngineProcess | NotForked
