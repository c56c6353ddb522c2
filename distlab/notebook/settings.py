"""The environment and the configuration of a cluster's processes.

Runs on the notebook's kernel, called by starting.py and launcher.py.
"""

import os

from distlab.launch import reaper
from distlab.wire import rendezvous

# ipyparallel's controller listens on this many ports
CONTROLLER_PORTS = 24


def environment(tag: str, interface: str | None) -> dict[str, str]:
    """What the environment of each process of a cluster has in addition to the notebook's.

    Ranks may have more threads, see `thread_variables`.

    Args:
        tag: marks a process as the cluster's.
        interface: the network interface over which the ranks talk; None where each host finds its
            own.
    """
    variables = {
        reaper.TAG: tag,
        # torch looks up the name of 127.0.0.1 when it connects to a store; without a DNS that costs
        # 5 s, so wait 1 s
        "RES_OPTIONS": "timeout:1 attempts:1",
        # what torch's C++ side logs is also raised; its lines carry the time of day, and no saved
        # output may do that
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "FATAL"),
        # torch's profiler writes on stderr that it begins and ends, at every level below this one
        "KINETO_LOG_LEVEL": os.environ.get("KINETO_LOG_LEVEL", "6"),
        # traces read torch's flight recorder; this is torch's own default
        "TORCH_FR_BUFFER_SIZE": os.environ.get("TORCH_FR_BUFFER_SIZE", "2000"),
        "PYTHONUNBUFFERED": "1",
        # programs.command does the same for Python programs of ours; this is for the others. A rank
        # takes it away again when it joins.
        "PYTHONSAFEPATH": "1",
    }
    variables |= thread_variables(1)
    if interface is not None:
        variables |= dict.fromkeys(rendezvous.INTERFACES, interface)
    return variables


def new_tag() -> str:
    """A tag for the processes of a cluster; it begins with the number of this process."""
    return f"{os.getpid()}-{os.urandom(4).hex()}"


def variables_of_folder(folder: str) -> dict[str, str]:
    """The variables by which processes find the folder of their cluster."""
    return {"IPP_CLUSTER_ID": "", "IPP_PROFILE_DIR": folder}


def thread_variables(threads: int) -> dict[str, str]:
    """The variables that set how many threads a rank computes with."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(names, str(threads))


def controller_arguments(address: str, folder: str) -> tuple[str, ...]:
    """The arguments of ipyparallel's controller, which listens at one address.

    Args:
        address: the one at which it listens.
        folder: its own, for the files by which it is reached.
    """
    ports = ",".join(map(str, rendezvous.free_ports(CONTROLLER_PORTS, address)))
    return (
        f"--work-dir={folder}",
        f"--ip={address}",
        "--usethreads",
        f"--IPController.ports={ports}",
        "--HeartMonitor.period=1000",  # but 5 while engines come, see controller.py
        "--HeartMonitor.max_heartmonitor_misses=30",
        "--IPController.broadcast_scheduler_depth=0",
        # the hub would keep a copy of every message, tensors included, for questions that are never
        # asked
        "--nodb",
        "--log-level=WARN",
    )


def encrypt(folder: str) -> None:
    """Have a controller of this profile folder encrypt what it sends, and sign it.

    With encryption ipyparallel leaves signing out, unless it is given a key. The key is in a file
    that only this user can read, and so on no command line.
    """
    path = os.path.join(folder, "ipcontroller_config.py")
    key = os.urandom(32).hex().encode()
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(f"c.Session.key = {key!r}\n")
        file.write("c.IPController.enable_curve = True\n")
