"""What a host reports of itself before its ranks start: its address, what is installed, how many ranks fit.

Runs on the host, in its fork server, before torch is imported; hosts.py reads the report in the notebook's kernel.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import psutil

from distlab.launch import local
from distlab.wire.orders import Hello, HostPlan
from distlab.wire.rendezvous import INTERFACES, address_towards, addresses, interface_of

SAME = ("distlab", "torch", "ipyparallel")  # packages of which notebook and hosts must have the same version


def make(plans: Sequence[HostPlan]) -> Hello:
    """This host's report; it also moves into the notebook's folder, and sets the interface for gloo.

    Args:
        plans: one, or one for each of Slurm's nodes, in their order.
    """
    plan = plans[int(os.environ["SLURM_NODEID"])] if len(plans) > 1 else plans[0]
    with contextlib.suppress(OSError):
        os.chdir(plan.folder)
    notebook = notebook_address(plan)
    found = Hello(plan.host, socket.gethostname(), len(os.sched_getaffinity(0)), installed(), notebook)
    try:
        address = plan.address or (_address_on(plan.interface) if plan.interface else address_towards(notebook))
        interface = interface_of(address)
        tight = min(local.limits("fork"), key=lambda limit: limit.ranks)
    except OSError as error:
        return replace(found, trouble=str(error))
    os.environ.update(dict.fromkeys(INTERFACES, interface))
    limit = f"{tight.value} {tight.what}. {tight.cure}"
    return replace(found, address=address, interface=interface, max_ranks=tight.ranks, limit=limit)


def installed() -> dict[str, str]:
    """The versions that must be the same everywhere, by name. Runs on: anywhere."""
    found = {"Python": f"{sys.version_info[0]}.{sys.version_info[1]}"}
    for name in SAME:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name).partition("+")[0]
    return found


def notebook_address(plan: HostPlan) -> str:
    """The notebook's address as this host sees it: from where ssh or srun came, else one on the same network."""
    if len(plan.notebook) == 1:
        return plan.notebook[0]
    caller = os.environ.get("SSH_CONNECTION", "").split(" ")[0] or os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
    if caller in plan.notebook:
        return caller
    for own in (one for found in psutil.net_if_addrs().values() for one in found if one.family == socket.AF_INET):
        network = ipaddress.ip_network(f"{own.address}/{own.netmask}", strict=False)
        # this machine itself is a host where it is given one of its loopback addresses
        wanted = not network.is_loopback or (plan.address and ipaddress.ip_address(plan.address) in network)
        if wanted and (near := [one for one in plan.notebook if ipaddress.ip_address(one) in network]):
            return near[0]
    return caller


def _address_on(interface: str) -> str:
    """The IPv4 address of a network interface; OSError that lists the interfaces where it has none."""
    found = addresses()
    if interface not in found:
        there = ", ".join(f"{name} ({some[0]})" for name, some in found.items())
        raise OSError(f"it has no interface {interface!r} with an IPv4 address, but {there}")
    return found[interface][0]
