"""The hosts of a cluster: how each is reached, what it says of itself, and in words why one cannot be used.

Runs on the notebook's kernel, called by processes.py and doctor.py. A host gets one connection, to one fork server:
ssh's own, with the user's configuration, srun's for all of Slurm's nodes, or none for a host that is this machine.
Plans and keys travel over it, and on no command line.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from distlab.errors import HostError
from distlab.launch import fork_server, host_report, slurm
from distlab.launch.fork_connection import Connection
from distlab.wire import rendezvous

SSH_NAME = "ssh"
HELLO_SECONDS = 20.0  # for a host to say what it is
CONNECT_SECONDS = 10  # for a host to answer ssh
SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ControlMaster=no")
# what ssh, srun or Python write, as a pattern, and what is wrong then; the first that fits
TROUBLE = {
    r"Permission denied|Too many authentication": "it asks for a password, or refuses this user's key: `ssh-copy-id "
    "{name}` gives it the key. `ssh {name} true` must work without a question.",
    r"Host key verification failed|IDENTIFICATION HAS CHANGED": "its host key is unknown, or another one than before: "
    "run `ssh {name} true` once in a terminal, and compare the key.",
    r"Could not resolve hostname": "nobody knows an address of that name: write it into ~/.ssh/config or /etc/hosts.",
    r"Connection refused": "it answers, but no sshd listens there: start one, or give its port in ~/.ssh/config.",
    r"timed out|No route to host|Network is unreachable": "it does not answer: is it on, is a firewall in between?",
    r"No module named '?distlab": "distlab is not installed there: {python} -m pip install distlab",
    r"This account is currently not available|account is locked": "this user may not log in there.",
}


@dataclass(frozen=True)
class Host:
    """One host: `ranks` start there.

    Args:
        name: as ssh takes it. command: what to put before a command line to run it there; None for ssh.
        address: for the other hosts; None for the one that leads to the notebook.
    """

    name: str
    ranks: int
    command: tuple[str, ...] | None = None
    address: str | None = None


@dataclass(frozen=True)
class Hosts:
    """The hosts of a cluster; rank 0 is on the first.

    Args:
        hosts: in the order of their ranks; Slurm's have no names yet. python: the Python there.
        interface: the network interface that their ranks talk over; None for the one that leads to the notebook.
        job: what is asked of Slurm; None for hosts with names. here: address of the notebook, where it is known.
    """

    hosts: tuple[Host, ...]
    python: str = sys.executable
    interface: str | None = None
    job: slurm.Job | None = None
    here: str | None = None

    @property
    def near(self) -> list[int]:
        """Numbers of the hosts that are no more than this machine."""
        return [number for number, host in enumerate(self.hosts) if host.command == () and host.address is None]

    @property
    def homes(self) -> tuple[int, ...]:
        """Number of each rank's host, by rank."""
        return tuple(number for number, host in enumerate(self.hosts) for _ in range(host.ranks))


def connect(
    wanted: Hosts, numbers: Iterable[int], environment: dict[str, str], folder: str, here: str | None = None
) -> list[Connection]:
    """Begin to start fork servers on the hosts of these numbers; see `answers` for what comes of it.

    Args:
        environment: additions to that of the servers. folder: gets their logs.
        here: the address of this machine that the hosts reach, where it is known.
    """
    plans = {
        number: {
            "host": number,
            "ranks": wanted.hosts[number].ranks,
            "here": [here or wanted.here] if here or wanted.here else _mine(),
            "folder": os.getcwd(),
            "address": here if number in wanted.near else wanted.hosts[number].address,
            "interface": wanted.interface,
        }
        for number in numbers
    }
    groups = [list(plans)] if plans and wanted.job is not None else [[number] for number in plans]
    connections = []
    for group in groups:
        plan = {"arguments": ["--log-level=WARN"], "stay": True, "environment": environment}
        log = _log_of(folder, group[0])
        if os.path.exists(log):
            os.remove(log)
        line = _command(wanted, group[0])
        connections.append(
            Connection(*fork_server.start(line, plan | {"hosts": [plans[number] for number in group]}, log), group)
        )
    return connections


def _command(wanted: Hosts, number: int) -> list[str]:
    """The command line that leads to the fork server of a host, or to those of Slurm's nodes."""
    if wanted.job is not None:
        return [*slurm.command(wanted.job), "sh", "-c", fork_server.remote_command(wanted.python)]
    host = wanted.hosts[number]
    if host.command is not None:
        return [*host.command, "sh", "-c", fork_server.remote_command(wanted.python)]
    return [*SSH, "-o", f"ConnectTimeout={CONNECT_SECONDS}", host.name, fork_server.remote_command(wanted.python)]


def _mine() -> list[str]:
    """The addresses of this machine."""
    return [one for some in rendezvous.addresses().values() for one in some]


def _log_of(folder: str, number: int) -> str:
    return os.path.join(folder, "log", f"host-{number}.log")


def answers(
    wanted: Hosts, connections: Iterable[Connection], folder: str, waits: Callable[[str], None] = lambda words: None
) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
    """Wait until each host has said hello, or cannot any more; what they say, and what is wrong with the others.

    Args:
        waits: called when the job waits in Slurm's queue, with words for a person.
    """
    connections, began = list(connections), time.monotonic()
    limit = HELLO_SECONDS if wanted.job is None else wanted.job.queue_timeout
    queue = slurm.Queue(waits)
    while any(set(c.hosts) - set(c.hellos) - set(c.lost) for c in connections) and time.monotonic() < began + limit:
        time.sleep(0.01)
        if wanted.job is not None and connections and queue.is_hopeless(_read(folder, connections[0].hosts[0])):
            break
    hellos = {number: hello for c in connections for number, hello in c.hellos.items()}
    troubles = {}
    for connection in connections:
        if silent := set(connection.hosts) - set(hellos):
            troubles |= dict.fromkeys(silent, _why_silent(wanted, min(silent), connection, folder, limit))
    for number, hello in hellos.items():
        if words := _what_differs(wanted, number, hello):
            troubles[number] = words
    return hellos, troubles


def _read(folder: str, number: int) -> str:
    with open(_log_of(folder, number), errors="replace") as log:
        return log.read()


def _why_silent(wanted: Hosts, number: int, connection: Connection, folder: str, limit: float) -> str:
    """Why a host has not said hello, from what ssh, srun or its Python have written."""
    if number in connection.lost:
        connection.process.wait()
    written, status = _read(folder, connection.hosts[0]).strip(), connection.process.poll()
    if wanted.job is not None:
        return slurm.trouble(wanted.job, written, waits=status is None)
    name = wanted.hosts[number].name
    if status is None:
        return f"it did not answer within {limit:g} s: try `ssh {name} {wanted.python} -V` in a terminal."
    if status == fork_server.NO_PYTHON:
        return f"there is no Python at {wanted.python}: give python=, the path of one there that has distlab."
    for pattern, words in TROUBLE.items():
        if re.search(pattern, written):
            return words.format(name=name, python=wanted.python)
    return f"the process that leads to it ended with status {status}: {written[-500:] or 'it wrote nothing'}"


def _what_differs(wanted: Hosts, number: int, hello: dict[str, Any]) -> str:
    """Why a host that has answered cannot be used; "" where it can."""
    ours, count = host_report.installed(), wanted.hosts[number].ranks
    if different := [name for name in ours if hello.get(name) != ours[name]]:
        found = ", ".join(f"{name} {hello.get(name, 'not installed')}" for name in different)
        want = ", ".join(f"{name} {ours[name]}" for name in different)
        return f"it has {found}; here is {want}. They must be the same: install them there, or give python=."
    if "trouble" in hello:
        return f"{hello['trouble']}."
    if hello["here"] not in (here := _mine()):
        return (
            f"it sees this machine as {hello['here'] or 'nothing'}, which is no address here ({', '.join(here)}): "
            "its ranks could not call back. Start Jupyter on a machine of the hosts' network."
        )
    if hello["room"] < count:
        return f"{count} ranks were asked for, and it has room for {hello['room']}: {hello['limit']}"
    return ""


def check(wanted: Hosts, troubles: dict[int, str]) -> None:
    """HostError where there are troubles."""
    if not troubles:
        return
    if wanted.job is not None:
        raise HostError("; ".join(dict.fromkeys(troubles.values())))
    lines = "".join(f"\n  {wanted.hosts[number].name}: {words}" for number, words in sorted(troubles.items()))
    names = ",".join(wanted.hosts[number].name for number in sorted(troubles))
    what = f"{len(troubles)} of {len(wanted.hosts)} host{'s'[: len(wanted.hosts) > 1]} cannot be used:{lines}"
    raise HostError(f"{what}\n`python -m distlab doctor --hosts {names}` looks again.")
