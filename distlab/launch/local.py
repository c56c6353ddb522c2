"""What a cluster's processes need of this machine: its limits, what a host reports, environment and configuration.

Runs on the notebook's kernel, called by cluster.py and processes.py; in the doctor's process; and on each host, in its
fork server before torch is imported, for the report that hosts.py reads.
Without the look at the limits, a start that is refused a file or a process somewhere in a library hangs.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import resource
import secrets
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

from distlab.errors import ClusterError
from distlab.launch import mpiexec, reaper
from distlab.text import refuse
from distlab.wire import rendezvous
from distlab.wire.orders import Hello, HostPlan

SAME = ("distlab", "torch", "ipyparallel")  # packages of which notebook and hosts must have the same version

# of a rank after the first all_reduce: a forked one shares most of its pages, others are a Python of their own each
MEGABYTES_FORKED, MEGABYTES = 60, 190
# (for the cluster, and for each rank), measured with 2 and 8 ranks. The controller opens most: 77 and 6. A rank has 59
# and one for each other rank; the rest is for what a learner opens.
NEEDED_FILES = (100, 7)
NEEDED_FILES_HERE = (30, 1)  # by the notebook's process, besides what it has open
# controller, fork server, guard and store have 12 threads, the notebook 8, and a rank 14, to which PyTorch adds
NEEDED_THREADS = (20, 16)
MANY_THREADS = 10_000  # a limit above it is not looked at


@dataclass(frozen=True)
class Limit:
    """One limit of this machine.

    Attributes:
        what: is limited, in words.
        value: how much of it there is.
        ranks: for how many ranks that is enough.
        cure: how to raise it.
    """

    what: str
    value: int
    ranks: int
    cure: str


def check(n: int, engines: str) -> None:
    """The machine has what `n` ranks of a launcher need: ArgumentError where fewer would fit, ClusterError for none."""
    check_loopback()
    for limit in limits(engines):
        allows = f"allows {limit.value} {limit.what}"
        if limit.ranks < 1:
            why = f"this machine {allows}, which is too few for one rank."
            raise ClusterError(f"No cluster can be started: {why} {limit.cure}")
        if n > limit.ranks:
            advice = f"It {allows}. Call Cluster({limit.ranks}). {limit.cure}"
            refuse("n", f"at most {limit.ranks} on this machine", n, advice)


def limits(engines: str) -> list[Limit]:
    """The memory that is free, and the limits of this process that may matter."""
    free, each = psutil.virtual_memory().available / 1e6, MEGABYTES_FORKED if engines == "fork" else MEGABYTES
    cure = f"A rank takes about {each} MB: close other programs."
    found = [Limit("GB of free memory", round(free / 1000), max(2, int(free // each)), cure)]
    value, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if value != resource.RLIM_INFINITY:
        cure = "For more, run `ulimit -n 4096` in the shell that starts Python or Jupyter."
        if value >= most != resource.RLIM_INFINITY:
            cure = "The administrator of this machine can allow more (`ulimit -n`)."
        here = value - psutil.Process().num_fds()
        ranks = min(_ranks(value, *NEEDED_FILES), _ranks(here, *NEEDED_FILES_HERE))
        found.append(Limit("open files for each process", value, ranks, cure))
    value, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if 0 <= value < MANY_THREADS and os.geteuid() != 0:  # the limit does not hold for root
        cure = "End other programs, or ask the administrator of this machine for more (`ulimit -u`)."
        everything = [process.info for process in psutil.process_iter(["uids", "num_threads"])]
        threads = sum(one["num_threads"] or 0 for one in everything if one["uids"] and one["uids"].real == os.getuid())
        ranks = _ranks(value - threads, *NEEDED_THREADS)
        found.append(Limit("processes and threads for each user", value, ranks, cure))
    return found


def _ranks(free: int, base: int, each: int) -> int:
    return max(0, (free - base) // each)


def check_loopback() -> int:
    """Really connect over 127.0.0.1; the port that was used. ClusterError where that is not possible."""
    try:
        with rendezvous.listen() as listener:
            port = listener.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return port
    except OSError as error:
        why = f"127.0.0.1 cannot be reached ({error}), over which notebook and ranks talk."
        cure = "Bring the loopback interface up, as root: `ip link set lo up; ip address replace 127.0.0.1/8 dev lo`."
        raise ClusterError(f"{why} {cure}") from error


# --- what a host reports of itself ---


def report_of_host(plans: Sequence[HostPlan]) -> Hello:
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
        address = _address(plan, notebook)
        interface = rendezvous.interface_of(address)
        tight = min(limits("fork"), key=lambda limit: limit.ranks)
    except OSError as error:
        return replace(found, trouble=str(error))
    os.environ.update(dict.fromkeys(rendezvous.INTERFACES, interface))
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


def _address(plan: HostPlan, notebook: str) -> str:
    """This host's address for the other ones; OSError that lists the interfaces where the one that is wanted has none.

    Args:
        notebook: the notebook's address.
    """
    if plan.address or plan.interface is None:
        return plan.address or rendezvous.address_towards(notebook)
    found = rendezvous.addresses()
    if plan.interface not in found:
        there = ", ".join(f"{name} ({some[0]})" for name, some in found.items())
        raise OSError(f"it has no interface {plan.interface!r} with an IPv4 address, but {there}")
    return found[plan.interface][0]


# --- environment and configuration ---


def environment(threads: int | None, tag: str, alone: bool = True) -> dict[str, str]:
    """What the environment of each process of a cluster has besides the notebook's.

    Args:
        threads: OpenMP threads of each; None where the hosts report how many cores they have.
        tag: marks a process as the cluster's.
        alone: whether all are on this machine, else each host has an interface.
    """
    return {
        reaper.TAG: tag,
        **thread_variables(threads or 1),
        **(dict.fromkeys(rendezvous.INTERFACES, rendezvous.loopback_interface()) if alone else {}),
        # torch looks up the name of 127.0.0.1 when it connects to a store; without a DNS that costs 5 s, so wait 1 s
        "RES_OPTIONS": "timeout:1 attempts:1",
        # what torch's C++ side logs is also raised; its lines carry the time of day, and no saved output may do that
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "FATAL"),
        # torch's profiler writes on stderr that it begins and ends, at every level below this one
        "KINETO_LOG_LEVEL": os.environ.get("KINETO_LOG_LEVEL", "6"),
        # traces read torch's flight recorder; this is torch's own default, which 2.9 does not have for gloo yet
        "TORCH_FR_BUFFER_SIZE": os.environ.get("TORCH_FR_BUFFER_SIZE", "2000"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",  # as fork_server.command does it, for all that it does not start; join takes it back
    }


def thread_variables(threads: int) -> dict[str, str]:
    """The variables that set how many threads a rank computes with."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))


def controller_arguments(address: str) -> list[str]:
    """The arguments of ipyparallel's controller, which listens at one address."""
    return [
        f"--ip={address}",
        "--usethreads",
        f"--IPController.ports={','.join(map(str, rendezvous.free_ports(24, address)))}",
        # an engine counts as registered at its first heartbeat: beat often, and allow as long a silence as before
        "--HeartMonitor.period=50",
        "--HeartMonitor.max_heartmonitor_misses=600",
        "--IPController.broadcast_scheduler_depth=0",
        # the hub would keep a copy of every message, tensors included, for questions that are never asked
        "--nodb",
        "--log-level=WARN",
    ]


def encrypt(folder: str) -> None:
    """Have a controller of this profile folder encrypt what it sends, and sign it with a key that no command line has.

    With encryption ipyparallel leaves signing out, unless it is given a key.
    """
    path = os.path.join(folder, "ipcontroller_config.py")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(f"c.Session.key = {secrets.token_hex(32).encode()!r}\nc.IPController.enable_curve = True\n")


def config(environment: dict[str, str], mpi_arguments: Sequence[str]) -> Any:
    """ipyparallel's configuration for launchers whose processes get these additions to their environment."""
    from traitlets.config import Config

    launchers = ("LocalController", *(f"{name}EngineSet" for name in ("Fork", "Local", "MPI", "SSH", "Slurm")))
    config = Config({f"{name}Launcher": {"environment": environment} for name in launchers})
    config.LocalEngineSetLauncher.delay = 0.0
    config.MPIEngineSetLauncher.mpi_cmd = [mpiexec.find()]
    config.MPIEngineSetLauncher.mpi_args = [*mpi_arguments]
    return config
