"""Lab 60: the processes of a cluster on several hosts, who started them, and what connects them.

`processes_here` runs on every rank. The rest runs in the notebook's kernel, on what the ranks have
found there; it calls processes by names such as "rank 2" and "fork server 0". What neither the
ranks nor the store is, such as the program that carries a practice host's cable, is "the way in".
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import psutil

# an address and a port
End = tuple[str, int]
# two names of processes
Pair = tuple[str, str]
WAY_IN = "the way in"


class Connection(NamedTuple):
    """A TCP connection, or a socket that only listens.

    Attributes:
        here: the process's own end.
        there: the other end; None for a socket that listens.
    """

    here: End
    there: End | None


class Found(NamedTuple):
    """What a rank knows of the processes of its host.

    Attributes:
        own: its process id.
        above: those of its parent, its grandparent, and so on.
        sockets: the connections of its parent, and of all that its parent has started, by their
            ids.
    """

    own: int
    above: list[int]
    sockets: dict[int, list[Connection]]


def processes_here(rank: int, world_size: int) -> Found:
    """This rank's process, its ancestors, and the connections of its host. Runs on: every rank."""
    above = psutil.Process().parents()
    parent = above[0]
    sockets = {}
    for process in (parent, *parent.children()):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            sockets[process.pid] = _connections_of(process)
    return Found(os.getpid(), [process.pid for process in above], sockets)


def started(
    found: Sequence[Found], hosts: Mapping[str, int]
) -> tuple[dict[str, list[str]], list[Pair]]:
    """The names of the processes by machine, and pairs: which one has started which.

    Runs on: the notebook's kernel.

    Args:
        found: what `processes_here` has returned, by rank.
        hosts: number of ranks by the host's name, in the order of the ranks.
    """
    names = _names(found, hosts)
    machines = {"the notebook's machine": ["notebook", "controller"]}
    starts = [("notebook", "controller"), ("fork server 0", "store")]
    for one, host in zip(found, _hosts_of_ranks(hosts), strict=True):
        name = names[one.own]
        server = names[one.above[0]]
        if host not in machines:
            machines[host] = [server]
            if name == "rank 0":
                machines[host].append("store")
            if os.getpid() in one.above:
                starts.append(("notebook", server))
        machines[host].append(name)
        starts.append((server, name))
    return machines, starts


def connected(found: Sequence[Found], hosts: Mapping[str, int]) -> list[Pair]:
    """Pairs of processes that a TCP connection joins: each lists the same two ends.

    Runs on: the notebook's kernel. Args: as for `started`.
    """
    names = _names(found, hosts)
    sockets = _all_sockets(found)
    owner: dict[End, str] = {}
    for process, connections in sockets.items():
        for connection in connections:
            owner.setdefault(connection.here, names.get(process, "controller"))
    pairs = set()
    for process, connections in sockets.items():
        name = names.get(process, "controller")
        for connection in connections:
            if connection.there is None:
                continue
            other = owner.get(connection.there, name)
            if other != name and WAY_IN not in (name, other):
                pairs.add((min(name, other), max(name, other)))
    return sorted(pairs)


def partners(pairs: Sequence[Pair], name: str) -> list[str]:
    """The processes with which one is connected. Runs on: anywhere."""
    others: set[str] = set()
    for pair in pairs:
        if name in pair:
            others.update(pair)
    return sorted(others - {name})


def by_use(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """Connected processes, by what goes over their connections. Runs on: anywhere."""

    def between(first: str, second: str) -> list[Pair]:
        return [pair for pair in pairs if pair[0].startswith(first) and pair[1].startswith(second)]

    return {
        "cells and results: the controller": between("controller", ""),
        "states of the ranks: the notebook": between("notebook", "rank"),
        "addresses: the store": between("rank", "store"),
        "tensors: gloo": between("rank", "rank"),
    }


def listening(found: Sequence[Found], hosts: Mapping[str, int]) -> dict[tuple[str, str], int]:
    """By the name of a process and an address: on how many ports it listens there.

    Runs on: the notebook's kernel. Args: as for `started`.
    """
    names = _names(found, hosts)
    ports: dict[tuple[str, str], set[int]] = {}
    for process, connections in _all_sockets(found).items():
        name = names.get(process, "controller")
        for connection in connections:
            if connection.there is None:
                address, port = connection.here
                ports.setdefault((name, address), set()).add(port)
    return {place: len(numbers) for place, numbers in sorted(ports.items())}


def _names(found: Sequence[Found], hosts: Mapping[str, int]) -> dict[int, str]:
    """The names of processes by their ids; those of the controller have none here."""
    names = {os.getpid(): "notebook"}
    numbers = {host: number for number, host in enumerate(hosts)}
    for rank, (one, host) in enumerate(zip(found, _hosts_of_ranks(hosts), strict=True)):
        names[one.own] = f"rank {rank}"
        names[one.above[0]] = f"fork server {numbers[host]}"
    for process in found[0].sockets:  # the first fork server has also started the store
        names.setdefault(process, "store")
    for one in found:
        for process in one.above:
            names.setdefault(process, WAY_IN)
    return names


def _hosts_of_ranks(hosts: Mapping[str, int]) -> list[str]:
    """The host of each rank."""
    return [host for host, ranks in hosts.items() for _ in range(ranks)]


def _all_sockets(found: Sequence[Found]) -> dict[int, list[Connection]]:
    """The connections of the ranks' hosts, and of the notebook and all that it has started."""
    sockets = {}
    for one in found:
        sockets.update(one.sockets)
    for process in _notebook_and_below():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if process.pid not in sockets:
                sockets[process.pid] = _connections_of(process)
    return sockets


def _notebook_and_below() -> Iterator[psutil.Process]:
    """This process, and those that it and its own have started."""
    notebook = psutil.Process()
    yield notebook
    yield from notebook.children(recursive=True)


def _connections_of(process: psutil.Process) -> list[Connection]:
    """The TCP connections of a process."""
    of_this_psutil: Any = process
    # the name before psutil 6
    read = getattr(of_this_psutil, "net_connections", None) or of_this_psutil.connections
    return [
        Connection(_end(one.laddr), _end(one.raddr) if one.raddr else None) for one in read("tcp")
    ]


def _end(address: Any) -> End:
    """An end of a connection; an IPv4 address is written as such, also where IPv6 carries it."""
    return address.ip.removeprefix("::ffff:"), address.port
