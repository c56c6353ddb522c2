"""What a host says of itself before its ranks start: where it is reached, what is installed, how many ranks fit.

Runs on the host, in its fork server, before torch is imported; hosts.py reads it in the notebook's kernel.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

from distlab.launch import limits
from distlab.wire.rendezvous import INTERFACES, address_towards, addresses, interface_of

SAME = ("distlab", "torch", "ipyparallel")  # packages of which notebook and hosts must have the same version


def make(plans: list[dict[str, Any]]) -> tuple[int, str, dict[str, Any]]:
    """This host's number, its address for the other hosts, and the report; it also moves into the notebook's folder.

    Args:
        plans: one, or one for each of Slurm's nodes, in their order: `host` (its number), `ranks`, `here` (addresses of
            the notebook's machine), `folder` (where the notebook works), `address` and `interface` (wishes or None).
    """
    plan = plans[int(os.environ["SLURM_NODEID"])] if len(plans) > 1 else plans[0]
    with contextlib.suppress(OSError):
        os.chdir(plan["folder"])
    here = _notebook(plan["here"])
    report = {"name": socket.gethostname(), "here": here, "cores": len(os.sched_getaffinity(0))}
    report |= installed()
    try:
        address = plan["address"] or (_address_on(plan["interface"]) if plan["interface"] else address_towards(here))
        interface = interface_of(address)
        os.environ.update(dict.fromkeys(INTERFACES, interface))
        tight = min(limits.limits("fork"), key=lambda limit: limit.ranks)
        report |= {"address": address, "interface": interface, "room": tight.ranks}
        report["limit"] = f"{tight.value} {tight.what}. {tight.cure}"
    except OSError as error:
        address, report["trouble"] = "", f"{error}"
    return plan["host"], address, report


def installed() -> dict[str, str]:
    """The versions that must be the same everywhere, as words. Runs on: anywhere."""
    found = {"Python": f"{sys.version_info[0]}.{sys.version_info[1]}"}
    for name in SAME:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name).partition("+")[0]
    return found


def _notebook(addresses: list[str]) -> str:
    """The notebook's address as this host sees it: from where ssh or srun came, else one on the same network."""
    if len(addresses) == 1:
        return addresses[0]
    asked = os.environ.get("SSH_CONNECTION", "").split(" ")[0] or os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
    if asked in addresses:
        return asked
    for mine in (one for found in psutil.net_if_addrs().values() for one in found if one.family == socket.AF_INET):
        network = ipaddress.ip_network(f"{mine.address}/{mine.netmask}", strict=False)
        if not network.is_loopback and (near := [a for a in addresses if ipaddress.ip_address(a) in network]):
            return near[0]
    return asked


def _address_on(interface: str) -> str:
    """The IPv4 address of a network interface; OSError that lists the interfaces where it has none."""
    found = addresses()
    if interface not in found:
        there = ", ".join(f"{name} ({some[0]})" for name, some in found.items())
        raise OSError(f"it has no interface {interface!r} with an IPv4 address, but {there}")
    return found[interface][0]
