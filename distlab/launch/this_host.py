"""What a host says of itself: whether that many ranks fit on it, its versions, cores and address.

Runs on each host, called by its fork server before torch is imported, for the report that
notebook/hosts.py reads; for this machine also on the notebook's kernel, called by plan.py, and in
the doctor's process.
"""

import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

from distlab import machine
from distlab.arguments import refuse
from distlab.launch import reaper
from distlab.wire import rendezvous
from distlab.wire.orders import Hello, HostPlan

# packages of which notebook and hosts must have the same version
SAME = ("distlab", "torch", "ipyparallel")
# names in a report of versions, beside those of packages: these must be the same as well
PYTHON = "Python"
PROTOCOL = "distlab's messages"

# Memory of a rank after the first all_reduce. A forked one shares most of its pages; any other one
# is a Python of its own.
MEGABYTES_FORKED = 60
MEGABYTES = 190
# Open files for the cluster, and for each rank, measured with 2 and 8 ranks. The controller opens
# most: 77 and 6. A rank has 59 and one for each other rank; the rest is for what a learner opens.
NEEDED_FILES = (100, 7)
# Processes and threads, which count alike: of a cluster, of a forked rank, of any other rank. Fork
# server, controller, store and guard have 13, and the notebook begins some; a forked rank has 14
# after the first all_reduce, one of ipyparallel's own 22.
NEEDED_TASKS = (20, 14, 22)
MORE_USERS_TASKS = "run `ulimit -u 4096` in the shell that starts Python or Jupyter"
MORE_CONTAINERS_TASKS = (
    "start the container with a higher limit, such as docker run --pids-limit 1024"
)


def check_ranks_fit(n: int, engines: str, fresh: bool = False) -> None:
    """Refuse more ranks than there are memory, open files, processes and threads for.

    Without this check, a start hangs when a library is refused a file, and ends in words of the
    system's when it is refused a thread.

    Args:
        n: number of ranks.
        engines: name of what starts them.
        fresh: whether each is a Python of its own.

    Raises:
        ArgumentError: there is no room for them.
    """
    shares = engines == "fork" and not fresh
    _check_memory(n, shares)
    _check_files(n)
    _check_tasks(n, engines)


def _check_memory(n: int, shares: bool) -> None:
    free = machine.free_memory() / 1e6
    each = MEGABYTES_FORKED if shares else MEGABYTES
    most = max(2, int(free // each))
    if n > most:
        limit = f"It has {free / 1000:.0f} GB of free memory."
        _refuse(n, most, f"{limit} A rank takes about {each} MB: close other programs.")


def _check_files(n: int) -> None:
    files = machine.open_files()
    if files is None:
        return
    common, each = NEEDED_FILES
    most = max(0, (files - common) // each)
    if n > most:
        limit = f"A process may open {files} files here."
        cure = "For more, run `ulimit -n 4096` in the shell that starts Python or Jupyter."
        _refuse(n, most, f"{limit} {cure}")


def _check_tasks(n: int, engines: str) -> None:
    limit = machine.tasks()
    common, forked, other = NEEDED_TASKS
    each = forked if engines == "fork" else other
    if limit is None or limit.left >= common + n * each:
        return
    # those of this notebook's clusters end, or become the new cluster's
    own = sum(map(reaper.threads, reaper.of_notebook(os.getpid())))
    most = max(0, (limit.left + own - common) // each)
    if n > most:
        if limit.is_users:
            whose = "You may run"
            more = MORE_USERS_TASKS
        else:
            whose = "This container may run"
            more = MORE_CONTAINERS_TASKS
        room = f"{whose} {limit.most} processes and threads here, and {limit.taken} run already."
        _refuse(n, most, f"{room} End some, or for more {more}.")


def _refuse(n: int, most: int, advice: str) -> NoReturn:
    refuse("n", f"at most {most} on this machine", n, advice)


# --- its report ---


def report_of_host(plans: Sequence[HostPlan], fresh: bool = False) -> Hello:
    """This host's report; also moves into the notebook's folder, and sets the interface for gloo.

    Args:
        plans: one, or one for each of Slurm's nodes, in their order.
        fresh: whether each rank is a Python of its own.

    Raises:
        ArgumentError: its ranks do not fit.
        OSError: it has no address on the interface that is wanted.
    """
    plan = plans[0]
    if len(plans) > 1:
        plan = plans[int(os.environ["SLURM_NODEID"])]
    with contextlib.suppress(OSError):  # the host may not have that folder
        os.chdir(plan.folder)
    check_ranks_fit(plan.ranks, "fork", fresh)
    notebook = plan.notebook or _address_of_notebook()
    address = plan.address or _address(plan.interface, notebook)
    interface = rendezvous.interface_of(address)
    os.environ.update(dict.fromkeys(rendezvous.INTERFACES, interface))
    return Hello(
        host=plan.host,
        name=socket.gethostname(),
        cores=machine.cores(),
        versions=installed(),
        notebook=notebook,
        address=address,
    )


def _address_of_notebook() -> str:
    """The address from which srun or ssh came; "" if neither tells."""
    by_srun = os.environ.get("SLURM_LAUNCH_NODE_IPADDR")
    if by_srun:
        return by_srun
    by_ssh, _, _ = os.environ.get("SSH_CONNECTION", "").partition(" ")
    return by_ssh


def installed() -> dict[str, str]:
    """The versions that must be the same everywhere, by name. Runs on: anywhere."""
    from importlib import metadata  # a cluster without hosts starts sooner

    found = {PYTHON: f"{sys.version_info[0]}.{sys.version_info[1]}"}
    for name in SAME:
        with contextlib.suppress(metadata.PackageNotFoundError):
            version, _, _ = metadata.version(name).partition("+")  # a build's name does not count
            found[name] = version
    with contextlib.suppress(ImportError):  # an older distlab
        from distlab.wire.codec import protocol

        found[PROTOCOL] = protocol()
    return found


def _address(interface: str | None, notebook: str) -> str:
    """This host's address for the other ones.

    It is the one on an interface, or for None on the interface that leads to the notebook.
    """
    if interface is None:
        return rendezvous.address_towards(notebook)
    found = rendezvous.addresses()
    if interface not in found:
        names = ", ".join(found)
        raise OSError(f"it has no interface {interface!r} with an IPv4 address, but {names}")
    return found[interface][0]
