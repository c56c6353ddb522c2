"""What a cluster's processes need of this machine: its limits, what a host reports, environment and configuration.

Runs on the notebook's kernel, called by plan.py, hosts.py and processes.py; in the doctor's process; and on each host,
in its fork server before torch is imported, for the report that hosts.py reads.
"""

import contextlib
import os
import socket
import sys
from collections.abc import Mapping, Sequence

from distlab import machine
from distlab.launch import reaper
from distlab.text import refuse
from distlab.wire import rendezvous
from distlab.wire.orders import Hello, HostPlan

SAME = ("distlab", "torch", "ipyparallel")  # packages of which notebook and hosts must have the same version
PYTHON, PROTOCOL = "Python", "distlab's messages"  # whose versions must be the same, too

# of a rank after the first all_reduce: a forked one shares most of its pages, others are a Python of their own each
MEGABYTES_FORKED, MEGABYTES = 60, 190
# (for the cluster, and for each rank), measured with 2 and 8 ranks. The controller opens most: 77 and 6. A rank has 59
# and one for each other rank; the rest is for what a learner opens.
NEEDED_FILES = (100, 7)
# processes and threads, which count alike: fork server, controller, store and guard have 13, and the notebook begins
# some; a forked rank has 14 after the first all_reduce, one of ipyparallel's own 22
NEEDED_TASKS = (20, 14, 22)
MORE_TASKS = {
    True: "run `ulimit -u 4096` in the shell that starts Python or Jupyter",
    False: "start the container with a higher limit, such as docker run --pids-limit 1024",
}


def check(n: int, engines: str) -> None:
    """ArgumentError if `n` ranks of a launcher need more memory, open files, or processes and threads than there are.

    Without this check, a start hangs when a library is refused a file, and ends in words of the system's when it is
    refused a thread.
    """
    free, each = machine.memory() / 1e6, MEGABYTES_FORKED if engines == "fork" else MEGABYTES
    most = max(2, int(free // each))
    if n > most:
        limit = f"It has {free / 1000:.0f} GB of free memory. A rank takes about {each} MB: close other programs."
        refuse("n", f"at most {most} on this machine", n, limit)
    _check_files(n)
    _check_tasks(n, engines)


def _check_files(n: int) -> None:
    files = machine.open_files()
    if files is None:
        return
    common, each = NEEDED_FILES
    most = max(0, (files - common) // each)
    if n > most:
        cure = "For more, run `ulimit -n 4096` in the shell that starts Python or Jupyter."
        refuse("n", f"at most {most} on this machine", n, f"A process may open {files} files here. {cure}")


def _check_tasks(n: int, engines: str) -> None:
    limit = machine.tasks()
    common, forked, other = NEEDED_TASKS
    each = forked if engines == "fork" else other
    if limit is None or limit.left >= common + n * each:
        return
    own = reaper.of_notebook(os.getpid())  # which end, or become the new cluster's
    most = max(0, (limit.left + sum(map(reaper.threads, own)) - common) // each)
    if n > most:
        whose = "You may run" if limit.is_users else "This container may run"
        words = f"{whose} {limit.most} processes and threads here, and {limit.taken} run already."
        cure = f"End some, or for more {MORE_TASKS[limit.is_users]}."
        refuse("n", f"at most {most} on this machine", n, f"{words} {cure}")


# --- what a host reports of itself ---


def report_of_host(plans: Sequence[HostPlan]) -> Hello:
    """This host's report; also moves into the notebook's folder, and sets the interface for gloo.

    Args:
        plans: one, or one for each of Slurm's nodes, in their order.

    Raises:
        ArgumentError: its ranks do not fit. OSError: it has no address on the interface that is wanted.
    """
    plan = plans[int(os.environ["SLURM_NODEID"])] if len(plans) > 1 else plans[0]
    with contextlib.suppress(OSError):
        os.chdir(plan.folder)
    check(plan.ranks, "fork")
    came_by_ssh = os.environ.get("SSH_CONNECTION", "").partition(" ")[0]
    notebook = plan.notebook or os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or came_by_ssh
    address = plan.address or _address(plan.interface, notebook)
    os.environ.update(dict.fromkeys(rendezvous.INTERFACES, rendezvous.interface_of(address)))
    return Hello(plan.host, socket.gethostname(), machine.cores(), installed(), notebook, address)


def installed() -> dict[str, str]:
    """The versions that must be the same everywhere, by name. Runs on: anywhere."""
    from importlib import metadata  # a cluster without hosts starts sooner

    found = {PYTHON: f"{sys.version_info[0]}.{sys.version_info[1]}"}
    for name in SAME:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name).partition("+")[0]
    with contextlib.suppress(ImportError):  # an older distlab
        from distlab.wire.codec import protocol

        found[PROTOCOL] = protocol()
    return found


def differences(theirs: Mapping[str, str]) -> str:
    """What is not as it is here, in words; "" if all is. Runs on: the notebook's kernel.

    Args:
        theirs: what is installed there.
    """
    ours = installed()
    different = [name for name in ours if theirs.get(name) != ours[name]]
    if len(different) > 1 and PROTOCOL in different:
        different.remove(PROTOCOL)  # the other differences say why
    if not different:
        return ""
    found = ", ".join(f"{name} {theirs.get(name, 'not installed')}" for name in different)
    wanted = ", ".join(f"{name} {ours[name]}" for name in different)
    return f"has {found}; this machine has {wanted}"


def _address(interface: str | None, notebook: str) -> str:
    """This host's address for the other ones: on an interface, or for None on the one that leads to the notebook."""
    if interface is None:
        return rendezvous.address_towards(notebook)
    found = rendezvous.addresses()
    if interface not in found:
        raise OSError(f"it has no interface {interface!r} with an IPv4 address, but {', '.join(found)}")
    return found[interface][0]


# --- environment and configuration ---


def environment(tag: str, alone: bool) -> dict[str, str]:
    """What the environment of each process of a cluster has in addition to the notebook's; ranks have more threads.

    Args:
        tag: marks a process as the cluster's.
        alone: whether all are on this machine, else each host has an interface.
    """
    return {
        reaper.TAG: tag,
        **thread_variables(1),
        **(dict.fromkeys(rendezvous.INTERFACES, rendezvous.loopback_interface()) if alone else {}),
        # torch looks up the name of 127.0.0.1 when it connects to a store; without a DNS that costs 5 s, so wait 1 s
        "RES_OPTIONS": "timeout:1 attempts:1",
        # what torch's C++ side logs is also raised; its lines carry the time of day, and no saved output may do that
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "FATAL"),
        # torch's profiler writes on stderr that it begins and ends, at every level below this one
        "KINETO_LOG_LEVEL": os.environ.get("KINETO_LOG_LEVEL", "6"),
        # traces read torch's flight recorder; this is torch's own default
        "TORCH_FR_BUFFER_SIZE": os.environ.get("TORCH_FR_BUFFER_SIZE", "2000"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",  # as fork_server.command does it, for all that it does not start; join takes it back
    }


def thread_variables(threads: int) -> dict[str, str]:
    """The variables that set how many threads a rank computes with."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))


def controller_arguments(address: str, folder: str) -> tuple[str, ...]:
    """The arguments of ipyparallel's controller, which listens at one address.

    Args:
        folder: which it puts first on its path.
    """
    return (
        f"--work-dir={folder}",
        f"--ip={address}",
        "--usethreads",
        f"--IPController.ports={','.join(map(str, rendezvous.free_ports(24, address)))}",
        "--HeartMonitor.period=1000",  # but 5 while engines come, see controller.py
        "--HeartMonitor.max_heartmonitor_misses=30",
        "--IPController.broadcast_scheduler_depth=0",
        # the hub would keep a copy of every message, tensors included, for questions that are never asked
        "--nodb",
        "--log-level=WARN",
    )


def encrypt(folder: str) -> None:
    """Have a controller of this profile folder encrypt what it sends, and sign it with a key that no command line has.

    With encryption ipyparallel leaves signing out, unless it is given a key.
    """
    path = os.path.join(folder, "ipcontroller_config.py")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(f"c.Session.key = {os.urandom(32).hex().encode()!r}\nc.IPController.enable_curve = True\n")
