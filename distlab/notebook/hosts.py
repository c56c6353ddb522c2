"""The hosts of a cluster: how each is reached, and why one cannot be used, in words.

Runs on the notebook's kernel, called by placement.py, starting.py, launcher.py and export.py. A
program leads to the fork server of each host: ssh, with the user's configuration, to one host; one
srun to all of Slurm's nodes; a shell to a host that is this machine. srun passes its stdin to the
servers of all nodes, and their reports come over its stdout. (ipyparallel's own launcher for Slurm
submits a batch file that starts every engine by itself, and drops `options`.) Plans and keys travel
over these connections, never on a command line.
"""

import contextlib
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distlab.arguments import wrong
from distlab.errors import HostError
from distlab.launch import fork_server, this_host
from distlab.notebook.connection import Connection, Servers
from distlab.notebook.start_methods import Slurm, StartMethod
from distlab.tables import count
from distlab.wire import rendezvous
from distlab.wire.orders import Hello, HostPlan, ServerPlan

# For srun to give back its nodes: if it is killed before, they stay allocated.
SLURM_END_SECONDS = 10.0
HELLO_SECONDS = 20.0  # for a host to report what it is
SSH_SECONDS = 10  # for a host to answer ssh
RETURN_SECONDS = 20.0  # for a host that was lost to be reached again
SHELL = ("sh", "-c")
LOCALHOST = "localhost"  # as a host it is this machine, without ssh


def by_ssh(name: str) -> tuple[str, ...]:
    """The words that lead to a shell of a host.

    By IPv4, since the address that the host then sees is the notebook's: the control channel, the
    store and gloo use such addresses only, see wire/rendezvous.py.
    """
    words = ["ssh", "-T", "-4"]
    for option in (f"ConnectTimeout={SSH_SECONDS}", "BatchMode=yes", "ControlMaster=no"):
        words += ["-o", option]
    return (*words, "--", name)


@dataclass(frozen=True)
class Host:
    """One host.

    Attributes:
        name: as ssh takes it.
        ranks: how many start there.
        command: what to put before a shell line to run it there.
        address: for the other hosts; None for the one that leads to the notebook.
    """

    name: str
    ranks: int
    command: tuple[str, ...] = ()
    address: str | None = None


@dataclass(frozen=True)
class Hosts:
    """The hosts of a cluster; rank 0 is on the first.

    Attributes:
        hosts: in the order of their ranks; Slurm's have no names yet.
        start_method: what starts the ranks there.
        here: the address of this machine that they reach; "" if ssh or srun knows it.
    """

    hosts: tuple[Host, ...]
    start_method: StartMethod
    here: str = ""

    @property
    def python(self) -> str:
        """Path of the Python there."""
        return self.start_method.python or sys.executable

    @property
    def job(self) -> Slurm | None:
        """What Slurm is asked for; None for hosts with names."""
        return self.start_method if isinstance(self.start_method, Slurm) else None

    @property
    def local(self) -> list[int]:
        """Numbers of the hosts that are just this machine."""
        return [number for number, host in enumerate(self.hosts) if host.name == LOCALHOST]

    @property
    def host_of_rank(self) -> tuple[int, ...]:
        """Number of each rank's host, by rank."""
        numbers: list[int] = []
        for number, host in enumerate(self.hosts):
            numbers += [number] * host.ranks
        return tuple(numbers)


# --- Slurm ---


def check_slurm() -> None:
    """Raise ArgumentError if Slurm's commands are not installed."""
    if shutil.which("srun") is None:
        wrong(
            'engines="slurm" needs srun, which was not found: '
            "run this on a machine of the Slurm cluster, or call Cluster(n)."
        )


def nodes_of_allocation() -> int | None:
    """How many nodes the allocation has that this process is in; None outside of one."""
    nodes = os.environ.get("SLURM_JOB_NUM_NODES")
    return None if nodes is None else int(nodes)


def slurm_options(job: Slurm) -> list[str]:
    """The options of a job for srun and sbatch alike; a person's own come last, and so count."""
    options = []
    if job.partition:
        options.append(f"--partition={job.partition}")
    if job.time:
        options.append(f"--time={job.time}")
    options += job.options
    return options


def srun(job: Slurm, nodes: int, ranks: int) -> list[str]:
    """srun's command line: one task on each node, with a CPU for each of its ranks.

    Args:
        job: what Slurm is asked for.
        nodes: how many there are.
        ranks: on the node that has the most.
    """
    words = [
        "srun",
        "--job-name=distlab",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={ranks}",
        f"--immediate={math.ceil(job.queue_timeout)}",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--input=all",
        "--unbuffered",
    ]
    if nodes_of_allocation() is not None:
        words.append("--overlap")  # the task of the notebook has these nodes already
    return words + slurm_options(job)


# --- what leads to fork servers, and what these report ---


def programs(
    wanted: Hosts, numbers: Sequence[int], plan: ServerPlan, here: str
) -> Iterator[tuple[list[str], ServerPlan]]:
    """The command line and the plan of each program that leads to fork servers on hosts.

    Args:
        wanted: the hosts of the cluster.
        numbers: of the hosts that are to be reached.
        plan: of each server, without its hosts.
        here: the address of this machine that the hosts reach; "" if they find it themselves.
    """
    server = fork_server.remote_command(wanted.python)
    for together in _led_to_together(wanted, numbers):
        command = [*wanted.hosts[together[0]].command, server]
        hosts = tuple(_host_plan(wanted, number, here) for number in together)
        yield command, replace(plan, hosts=hosts)


def _led_to_together(wanted: Hosts, numbers: Sequence[int]) -> list[Sequence[int]]:
    """Numbers of the hosts to which one program leads: one srun to all, ssh to one each."""
    if not numbers:
        return []
    if wanted.job is not None:
        return [numbers]
    return [[number] for number in numbers]


def _host_plan(wanted: Hosts, number: int, here: str) -> HostPlan:
    """What the host of this number needs to know."""
    host = wanted.hosts[number]
    return HostPlan(
        host=number,
        ranks=host.ranks,
        folder=os.getcwd(),
        notebook=here,
        address=here if number in wanted.local else host.address,
        interface=wanted.start_method.interface,
    )


def answers(
    servers: Servers, wanted: Hosts, numbers: Sequence[int], logs: Path
) -> dict[int, Hello]:
    """What each of these hosts reports about itself, by number.

    Args:
        servers: the fork servers of the cluster.
        wanted: the hosts of the cluster.
        numbers: of the hosts that are meant.
        logs: the folder of what the programs that lead to them write.

    Raises:
        HostError: a host has not answered in time, or cannot be used.
    """
    limit = HELLO_SECONDS
    if wanted.job is not None:
        limit += wanted.job.queue_timeout
    deadline = time.monotonic() + limit
    hellos: dict[int, Hello] = {}
    troubles: dict[int, str] = {}
    for number in numbers:
        connection = servers.to(number)
        hello = _hello_of(connection, number, deadline)
        if hello is None:
            troubles[number] = _why_no_hello(wanted, number, connection, logs, limit)
            continue
        hellos[number] = hello
        difference = _what_differs(hello, wanted.start_method)
        if difference:
            troubles[number] = difference
    if troubles:
        raise HostError(_all_troubles(wanted, troubles))
    return hellos


def _hello_of(connection: Connection, number: int, deadline: float) -> Hello | None:
    """What a host reports about itself; None if it is lost, or silent until the deadline."""
    while number not in connection.hellos and number not in connection.lost:
        if time.monotonic() >= deadline:
            break
        time.sleep(0.01)
    hello = connection.hellos.get(number)
    if hello is None and number in connection.lost and not connection.trouble:
        # All that the program writes is in its log once it has ended. One that leads to a host that
        # has only fallen silent does not end.
        with contextlib.suppress(subprocess.TimeoutExpired):
            connection.process.wait(max(1.0, deadline - time.monotonic()))
    return hello


def _why_no_hello(
    wanted: Hosts, number: int, connection: Connection, logs: Path, limit: float
) -> str:
    """Why a host has not said what it is, and what to try.

    The last line that ssh, srun or the host's Python has written says why, if what the host has
    reported can be read at all.

    Args:
        wanted: the hosts of the cluster.
        number: the host's.
        connection: to its server.
        logs: the folder of what the programs that lead to hosts write.
        limit: seconds for which it was waited for.
    """
    if connection.trouble:
        advice = f"install it, or give {_other_python(wanted.start_method)}"
        return f"{connection.trouble}. distlab must be the same there: {advice}."
    log = logs / f"host-{connection.hosts[0]}.log"
    last = _last_line(log) or f"no answer within {limit:g} s"
    last = last.rstrip(".")
    if wanted.job is not None:
        where = "`squeue` shows the queue, and `sinfo` the partitions."
        return f"{last}. {where} Slurm(queue_timeout=600) waits longer."
    host = wanted.hosts[number]
    if host.command == by_ssh(host.name):
        return f"{last}. `ssh {host.name} {wanted.python} -V` must work without a prompt."
    return f"{last}."


def _last_line(log: Path) -> str:
    """The last line of a log that is not blank; "" without one."""
    lines = log.read_text(errors="replace").split("\n")
    for line in reversed(lines):
        if line.strip():
            return line.strip()
    return ""


def _what_differs(hello: Hello, method: StartMethod) -> str:
    """Why a host that has answered cannot be used; "" if it can."""
    different = differences(hello.versions)
    if different:
        advice = f"install them there, or give {_other_python(method)}"
        return f"it {different}. They must be the same: {advice}."
    if not any(hello.notebook in own for own in rendezvous.addresses().values()):
        seen = f"it sees this machine as {hello.notebook}, which is not its address"
        return f"{seen}, so the ranks could not connect."
    return ""


def _other_python(method: StartMethod) -> str:
    """The argument of `Cluster` that names another Python on the hosts."""
    return f"engines={type(method).__name__}(python=...)"


def differences(theirs: Mapping[str, str]) -> str:
    """What is not as it is here, in words; "" if all is.

    Args:
        theirs: the versions that are installed there, by name.
    """
    ours = this_host.installed()
    different = [name for name in ours if theirs.get(name) != ours[name]]
    if len(different) > 1 and this_host.PROTOCOL in different:
        different.remove(this_host.PROTOCOL)  # the other differences say why
    if not different:
        return ""
    found = ", ".join(f"{name} {theirs.get(name, 'not installed')}" for name in different)
    wanted = ", ".join(f"{name} {ours[name]}" for name in different)
    return f"has {found}; this machine has {wanted}"


def _all_troubles(wanted: Hosts, troubles: Mapping[int, str]) -> str:
    """One message for all hosts that cannot be used; Slurm's nodes have no names to tell yet."""
    if wanted.job is not None:
        return "; ".join(dict.fromkeys(troubles.values()))
    names = []
    lines = [f"{len(troubles)} of {count(len(wanted.hosts), 'host')} cannot be used:"]
    for number in sorted(troubles):
        name = wanted.hosts[number].name
        names.append(name)
        lines.append(f"  {name}: {troubles[number]}")
    lines.append(f"`python -m distlab doctor --hosts {','.join(names)}` checks again.")
    return "\n".join(lines)
