"""The hosts of a cluster: how each is reached, and why one cannot be used, in words.

Runs on the notebook's kernel, called by launcher.py. A host gets one connection to one fork
server: by ssh with the user's configuration, one srun for all of Slurm's nodes, or none for a host
that is this machine. srun's stdin goes to the servers of all nodes, and their reports come over its
stdout; ipyparallel's own launcher for Slurm submits a batch file that starts every engine by
itself, and drops `options`. Plans and keys travel over it, never on a command line.
"""

import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distlab.arguments import wrong
from distlab.errors import HostError
from distlab.launch import fork_server, this_host
from distlab.notebook.connection import Servers
from distlab.notebook.launchers import Launcher, Slurm
from distlab.wire import rendezvous
from distlab.wire.orders import Hello, HostPlan, ServerPlan

# that srun has to give back the nodes, which stay allocated where it is killed
SLURM_END_SECONDS = 10.0
HELLO_SECONDS = 20.0  # for a host to report what it is
CONNECT_SECONDS = 10  # for a host to answer ssh
RETURN_SECONDS = 20.0  # for a host that was lost to be reached again
SHELL = ("sh", "-c")
LOCALHOST = "localhost"  # as a host it is this machine, without ssh


def by_ssh(name: str) -> tuple[str, ...]:
    """The words that lead to a shell of a host; by IPv4, since the address that the host then sees
    is the notebook's.

    The control channel, the store and gloo use such addresses only, see wire/rendezvous.py.
    """
    options = (f"ConnectTimeout={CONNECT_SECONDS}", "BatchMode=yes", "ControlMaster=no")
    return ("ssh", "-T", "-4", *(word for option in options for word in ("-o", option)), "--", name)


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
        launcher: what starts the ranks there.
        here: the address of this machine that they reach; "" if ssh or srun knows it.
    """

    hosts: tuple[Host, ...]
    launcher: Launcher
    here: str = ""

    @property
    def python(self) -> str:
        """Path of the Python there."""
        return self.launcher.python or sys.executable

    @property
    def job(self) -> Slurm | None:
        """What Slurm is asked for; None for hosts with names."""
        return self.launcher if isinstance(self.launcher, Slurm) else None

    @property
    def local(self) -> list[int]:
        """Numbers of the hosts that are just this machine."""
        return [number for number, host in enumerate(self.hosts) if host.name == LOCALHOST]

    @property
    def host_of_rank(self) -> tuple[int, ...]:
        """Number of each rank's host, by rank."""
        return tuple(number for number, host in enumerate(self.hosts) for _ in range(host.ranks))


# --- Slurm ---


def check_slurm() -> None:
    """ArgumentError where Slurm's commands are not installed."""
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
    return [*options, *job.options]


def srun(job: Slurm, nodes: int, ranks: int) -> list[str]:
    """srun's command line: one task on each node, with a CPU for each of its ranks.

    Args:
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


# --- connections ---


def programs(
    wanted: Hosts, numbers: Sequence[int], plan: ServerPlan, here: str
) -> Iterator[tuple[list, ServerPlan]]:
    """What leads to fork servers on the hosts of these numbers: command line and plan for each
    program.

    Args:
        plan: of each server, without its hosts.
        here: the address of this machine that the hosts reach; "" if they find it themselves.
    """
    line = fork_server.remote_command(wanted.python)
    for group in (
        [numbers] if numbers and wanted.job is not None else [[number] for number in numbers]
    ):
        hosts = []
        for number in group:
            host = wanted.hosts[number]
            address = here if number in wanted.local else host.address
            hosts.append(
                HostPlan(number, host.ranks, os.getcwd(), here, address, wanted.launcher.interface)
            )
        yield [*wanted.hosts[group[0]].command, line], replace(plan, hosts=tuple(hosts))


def answers(
    servers: Servers, wanted: Hosts, numbers: Sequence[int], logs: Path
) -> dict[int, Hello]:
    """What each of these hosts reports about itself, by number; HostError if one does not, or
    cannot be used.

    Args:
        logs: the folder of what the programs that lead to them write.
    """
    limit = HELLO_SECONDS + (wanted.job.queue_timeout if wanted.job is not None else 0.0)
    deadline = time.monotonic() + limit
    troubles: dict[int, str] = {}
    for number in numbers:
        connection = servers.to(number)
        while (
            number not in connection.hellos
            and number not in connection.lost
            and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        if number in connection.lost and not connection.trouble:
            connection.process.wait()  # so that all that it has written is in its log
        if hello := connection.hellos.get(number):
            troubles[number] = _what_differs(hello, wanted.launcher)
        elif connection.trouble:
            advice = f"install it, or give {_other_python(wanted.launcher)}"
            troubles[number] = f"{connection.trouble}. distlab must be the same there: {advice}."
        else:
            troubles[number] = _why_silent(
                wanted, number, logs / f"host-{connection.hosts[0]}.log", limit
            )
    if troubles := {number: words for number, words in troubles.items() if words}:
        raise HostError(_all_troubles(wanted, troubles))
    return {number: servers.to(number).hellos[number] for number in numbers}


def _why_silent(wanted: Hosts, number: int, log: Path, limit: float) -> str:
    """Why a host has reported nothing: the last line that ssh, srun or its Python has written, and
    what to try.
    """
    lines = log.read_text(errors="replace").split("\n")
    last = next(
        (line.strip() for line in reversed(lines) if line.strip()), f"no answer within {limit:g} s"
    ).rstrip(".")
    if wanted.job is not None:
        return f"{last}. `squeue` shows the queue, and `sinfo` the partitions. Slurm(queue_timeout=600) waits longer."
    host = wanted.hosts[number]
    if host.command == by_ssh(host.name):
        return f"{last}. `ssh {host.name} {wanted.python} -V` must work without a prompt."
    return f"{last}."


def _what_differs(hello: Hello, launcher: Launcher) -> str:
    """Why a host that has answered cannot be used; "" if it can."""
    if different := differences(hello.versions):
        advice = f"install them there, or give {_other_python(launcher)}"
        return f"it {different}. They must be the same: {advice}."
    if not any(hello.notebook in some for some in rendezvous.addresses().values()):
        return f"it sees this machine as {hello.notebook}, which is not its address: the ranks could not connect."
    return ""


def _other_python(launcher: Launcher) -> str:
    """The argument of `Cluster` that names another Python on the hosts."""
    return f"engines={type(launcher).__name__}(python=...)"


def differences(theirs: Mapping[str, str]) -> str:
    """What is not as it is here, in words; "" if all is.     Args:
    theirs: what is installed there.
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
    if wanted.job is not None:
        return "; ".join(dict.fromkeys(troubles.values()))
    names = {number: wanted.hosts[number].name for number in sorted(troubles)}
    lines = "".join(f"\n  {name}: {troubles[number]}" for number, name in names.items())
    what = f"{len(troubles)} of {len(wanted.hosts)} host{'s'[: len(wanted.hosts) > 1]} cannot be used:{lines}"
    return f"{what}\n`python -m distlab doctor --hosts {','.join(names.values())}` checks again."
