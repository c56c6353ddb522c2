"""The hosts of a cluster: how each is reached, what it reports of itself, and in words why one cannot be used.

Runs on the notebook's kernel, called by processes.py. A host gets one connection, to one fork server:
ssh's own, with the user's configuration, srun's for all of Slurm's nodes, or none for a host that is this machine.
Plans and keys travel over it, and on no command line.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distlab.errors import HostError
from distlab.launch import fork_server, local, slurm
from distlab.launch.connection import Connection
from distlab.wire import rendezvous
from distlab.wire.orders import Hello, HostPlan, ServerPlan

SSH_NAME = "ssh"
HELLO_SECONDS = 20.0  # for a host to report what it is
CONNECT_SECONDS = 10  # for a host to answer ssh
RETURN_SECONDS = 20.0  # for a host that was lost to be reached again
SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ControlMaster=no")


@dataclass(frozen=True)
class Trouble:
    """Why a host cannot be used, in words; `passes`: a host that is just starting has it too."""

    words: str
    passes: bool = False


# what ssh, srun or Python write, as a pattern, and what is wrong then; the first that fits
TROUBLE = {
    r"Permission denied|Too many authentication": Trouble(
        "it asks for a password, or refuses this user's key: `ssh-copy-id {name}` gives it the key. "
        "`ssh {name} true` must work without a question."
    ),
    r"Host key verification failed|IDENTIFICATION HAS CHANGED": Trouble(
        "its host key is unknown, or another one than before: run `ssh {name} true` once in a terminal, and compare "
        "the key."
    ),
    r"Could not resolve hostname": Trouble("that name has no address: write it into ~/.ssh/config or /etc/hosts."),
    r"Connection refused": Trouble(
        "it answers, but no sshd listens there: start one, or give its port in ~/.ssh/config.", passes=True
    ),
    r"timed out|No route to host|Network is unreachable": Trouble(
        "it does not answer: is it on, is a firewall in between?", passes=True
    ),
    r"No module named '?(distlab|psutil|ipyparallel|torch)": Trouble(
        "distlab is not installed there: {python} -m pip install distlab"
    ),
}


Answers = tuple[dict[int, Hello], dict[int, Trouble]]  # what hosts report, and what is wrong with some, by number


@dataclass(frozen=True)
class Host:
    """One host.

    Attributes:
        name: as ssh takes it.
        ranks: how many start there.
        command: what to put before a command line to run it there; None for ssh.
        address: for the other hosts; None for the one that leads to the notebook.
    """

    name: str
    ranks: int
    command: tuple[str, ...] | None = None
    address: str | None = None


@dataclass(frozen=True)
class Hosts:
    """The hosts of a cluster; rank 0 is on the first.

    Attributes:
        hosts: in the order of their ranks; Slurm's have no names yet.
        python: the Python there.
        interface: the network interface that their ranks talk over; None for the one that leads to the notebook.
        job: what is asked of Slurm; None for hosts with names.
    """

    hosts: tuple[Host, ...]
    python: str = sys.executable
    interface: str | None = None
    job: slurm.Job | None = None

    @property
    def local(self) -> list[int]:
        """Numbers of the hosts that are no more than this machine."""
        return [number for number, host in enumerate(self.hosts) if host.command == () and host.address is None]

    @property
    def host_of_rank(self) -> tuple[int, ...]:
        """Number of each rank's host, by rank."""
        return tuple(number for number, host in enumerate(self.hosts) for _ in range(host.ranks))


def connect(
    wanted: Hosts, numbers: Sequence[int], plan: ServerPlan, folder: str, here: str | None = None
) -> list[Connection]:
    """Begin to start fork servers on the hosts of these numbers; `answers` waits for them.

    Args:
        plan: of each server, without its hosts.
        folder: gets their logs.
        here: the address of this machine that the hosts reach, where it is known.
    """
    notebook = (here,) if here else tuple(_own_addresses())
    connections = []
    for group in [numbers] if numbers and wanted.job is not None else [[number] for number in numbers]:
        hosts = []
        for number in group:
            address = here if number in wanted.local else wanted.hosts[number].address
            hosts.append(HostPlan(number, notebook, os.getcwd(), address, wanted.interface))
        log = _log_of(folder, group[0])
        Path(log).unlink(missing_ok=True)
        line = _command(wanted, group[0])
        connections.append(Connection(*fork_server.start(line, replace(plan, hosts=tuple(hosts)), log), group))
    return connections


def _command(wanted: Hosts, number: int) -> list[str]:
    """The command line that leads to the fork server of a host, or to those of Slurm's nodes."""
    line, host = fork_server.remote_command(wanted.python), wanted.hosts[number]
    if wanted.job is not None:
        return [*slurm.command(wanted.job), "sh", "-c", line]
    if host.command is not None:
        return [*host.command, "sh", "-c", line]
    return [*SSH, "-o", f"ConnectTimeout={CONNECT_SECONDS}", host.name, line]


def _own_addresses() -> list[str]:
    """The addresses of this machine."""
    return [one for some in rendezvous.addresses().values() for one in some]


def _log_of(folder: str, number: int) -> str:
    return os.path.join(folder, "log", f"host-{number}.log")


def answers(
    wanted: Hosts, connections: Sequence[Connection], folder: str, waits: Callable[[str], None] = lambda words: None
) -> Answers:
    """Wait until each host has reported what it is, or cannot any more: the reports, and what is wrong with hosts.

    Args:
        waits: called when the job waits in Slurm's queue, with words for a person.
    """
    began = time.monotonic()
    limit = HELLO_SECONDS if wanted.job is None else wanted.job.queue_timeout
    queue = slurm.Queue(waits)
    while any(set(c.hosts) - set(c.hellos) - set(c.lost) for c in connections) and time.monotonic() < began + limit:
        time.sleep(0.01)
        if wanted.job is not None and connections and queue.is_hopeless(_read(folder, connections[0].hosts[0])):
            break
    hellos = {number: hello for connection in connections for number, hello in connection.hellos.items()}
    found = {number: _what_differs(wanted, hello) for number, hello in hellos.items()}
    troubles = {number: Trouble(words) for number, words in found.items() if words}
    for connection in connections:
        if silent := set(connection.hosts) - set(hellos):
            troubles |= dict.fromkeys(silent, _why_silent(wanted, min(silent), connection, folder, limit))
    return hellos, troubles


def _read(folder: str, number: int) -> str:
    return Path(_log_of(folder, number)).read_text(errors="replace")


def _why_silent(wanted: Hosts, number: int, connection: Connection, folder: str, limit: float) -> Trouble:
    """Why a host has reported nothing, from what ssh, srun or its Python have written."""
    if number in connection.lost:
        connection.process.wait()
    written, status = _read(folder, connection.hosts[0]).strip(), connection.process.poll()
    if wanted.job is not None:
        return Trouble(slurm.trouble(wanted.job, written, waits=status is None))
    name = wanted.hosts[number].name
    if status is None:
        words = f"it did not answer within {limit:g} s: try `ssh {name} {wanted.python} -V` in a terminal."
        return Trouble(words, passes=True)
    if status == fork_server.NO_PYTHON:
        return Trouble(f"there is no Python at {wanted.python}: give python=, the path of one there that has distlab.")
    for pattern, trouble in TROUBLE.items():
        if re.search(pattern, written):
            return Trouble(trouble.words.format(name=name, python=wanted.python), trouble.passes)
    return Trouble(f"the process that leads to it ended with status {status}: {written[-500:] or 'it wrote nothing'}")


def _what_differs(wanted: Hosts, hello: Hello) -> str:
    """Why a host that has answered cannot be used; "" where it can."""
    ours, count = local.installed(), wanted.hosts[hello.host].ranks
    if different := [name for name in ours if hello.versions.get(name) != ours[name]]:
        found = ", ".join(f"{name} {hello.versions.get(name, 'not installed')}" for name in different)
        want = ", ".join(f"{name} {ours[name]}" for name in different)
        return f"it has {found}; here is {want}. They must be the same: install them there, or give python=."
    if hello.trouble:
        return f"{hello.trouble}."
    if hello.notebook not in (here := _own_addresses()):
        return (
            f"it sees this machine as {hello.notebook or 'nothing'}, which is no address here ({', '.join(here)}): "
            "its ranks could not call back. Start Jupyter on a machine of the hosts' network."
        )
    if hello.max_ranks < count:
        return f"{count} ranks were asked for, and it has room for {hello.max_ranks}: {hello.limit}"
    return ""


def check(wanted: Hosts, troubles: dict[int, Trouble]) -> None:
    """HostError where there are troubles."""
    if not troubles:
        return
    if wanted.job is not None:
        raise HostError("; ".join(dict.fromkeys(trouble.words for trouble in troubles.values())))
    names = {number: wanted.hosts[number].name for number in sorted(troubles)}
    lines = "".join(f"\n  {name}: {troubles[number].words}" for number, name in names.items())
    what = f"{len(troubles)} of {len(wanted.hosts)} host{'s'[: len(wanted.hosts) > 1]} cannot be used:{lines}"
    raise HostError(f"{what}\n`python -m distlab doctor --hosts {','.join(names.values())}` looks again.")
