"""What this machine lets a process have: cores, memory, open files, processes and threads.

Runs on the notebook's kernel, called by plan.py, sweep.py, predict's recorder and the doctor; and
in the fork server of each host, called by this_host.py. A machine may be larger than what a process
gets of it: Slurm and taskset allow some of the cores, and a container, as those of JupyterHub,
Binder and Docker are, has a share of their time, and of the memory.
"""

import contextlib
import math
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from distlab.arguments import refuse

# of the environment: how many cores to count with, whatever the machine says
CORES = "DISTLAB_CORES"
# Linux's control groups, version 1 or 2: which of them this process is in, and their limits
OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
PROCESSES = Path("/proc")
FAR = 2000  # processes and threads: a limit that leaves so many more is not looked at closely


@dataclass(frozen=True)
class TaskLimit:
    """A limit on processes and threads, which count alike.

    Attributes:
        most: how many there may be.
        taken: how many there are.
        is_users: whether it is the user's (`ulimit -u`), and not a container's.
    """

    most: int
    taken: int
    is_users: bool

    @property
    def left(self) -> int:
        """How many more may start."""
        return max(0, self.most - self.taken)


def cores() -> int:
    """How many cores' worth of time this process may use, at least 1.

    The smallest of: the cores of the machine, those that this process may run on, and the quota of
    its containers, rounded up. Where that is not what you mean, set DISTLAB_CORES.

    Runs on: anywhere.

    Raises:
        ArgumentError: DISTLAB_CORES is no number.

    Source: Linux, Documentation/admin-guide/cgroup-v2.rst (cpu.max), and scheduler/sched-bwc.rst
        for version 1.
    """
    wanted = os.environ.get(CORES)
    if wanted is not None:
        return _given(wanted)
    counts = [os.cpu_count() or 1]
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        counts.append(len(os.sched_getaffinity(0)))
    for group in _groups("cpu"):
        quota = _quota(group)
        if quota is not None:
            counts.append(math.ceil(quota))
    return max(1, min(counts))


def free_memory() -> int:
    """The bytes that this process and its children can still take.

    They are those of the machine, or those of its containers if that is less.

    Runs on: anywhere.
    """
    import psutil

    free = [psutil.virtual_memory().available]
    for group in _groups("memory"):
        left = _memory_left(group)
        if left is not None:
            free.append(left)
    return max(0, min(free))


def open_files() -> int | None:
    """How many files a process may have open; None for any number. Runs on: anywhere."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def tasks() -> TaskLimit | None:
    """The limit on processes and threads that is reached first.

    None where there is none, or it is far away.

    Runs on: anywhere.

    Source: Linux, getrlimit(2) on RLIMIT_NPROC, which does not bind root; admin-guide/cgroup-v2.rst
    on pids.max.
    """
    limits = [_tasks_of_container(group) for group in _groups("pids")]
    limits.append(_tasks_of_this_user())
    found = [limit for limit in limits if limit is not None]
    return min(found, key=lambda limit: limit.left, default=None)


def _tasks_of_container(group: Path) -> TaskLimit | None:
    """The limit of a container; None for no limit."""
    with contextlib.suppress(ValueError):  # "max", or no such files
        most = int(_read_text(group / "pids.max"))
        taken = int(_read_text(group / "pids.current"))
        return TaskLimit(most, taken, is_users=False)
    return None


def _tasks_of_this_user() -> TaskLimit | None:
    """The limit of the user (`ulimit -u`); None for no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if sys.platform != "linux" or soft == resource.RLIM_INFINITY or os.getuid() == 0:
        return None
    taken = _tasks_of_all()  # quick to find, and as many as the user's or more
    if soft - taken < FAR:
        taken = _tasks_of_user(os.getuid())
    return TaskLimit(soft, taken, is_users=True)


def _tasks_of_all() -> int:
    """How many processes and threads run on this machine: "0.20 0.18 0.12 1/80 11206" are 80."""
    with contextlib.suppress(ValueError, IndexError):
        return int(_read_text(PROCESSES / "loadavg").split()[3].partition("/")[2])
    return FAR


def _tasks_of_user(user: int) -> int:
    """How many processes and threads of a user run here."""
    found = 0
    for process in PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if _owner(process) == user:
                found += len(os.listdir(process / "task"))
    return found


def _owner(path: Path) -> int:
    """The number of the user whose file or process this is."""
    return path.stat().st_uid


def _given(wanted: str) -> int:
    """The number of cores in DISTLAB_CORES."""
    if not wanted.isdecimal() or int(wanted) == 0:
        advice = "It is a variable of the environment: unset it, or change it."
        refuse(CORES, "a whole number above 0", wanted, advice)
    return int(wanted)


# --- control groups ---


def _groups(controller: str) -> Iterator[Path]:
    """The folders of the control groups whose limits bind this process.

    A group is also under the limits of those around it. Inside a container the path may be that of
    the host, which is not there; the container's own group is then the root of what is mounted.

    Args:
        controller: whose limits are wanted: "cpu", "memory" or "pids".
    """
    for line in _read_text(OWN_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            root = GROUPS
        elif controller in controllers.split(","):
            root = GROUPS / controllers
            if not root.is_dir():
                root = GROUPS / controller
        else:
            continue
        group = root
        yield group
        for part in path.strip("/").split("/"):
            group = group / part
            if group != root and group.is_dir():
                yield group


def _quota(group: Path) -> float | None:
    """The cores' worth of time that a group may use; None for no limit."""
    # "150000 100000": microseconds in a period of so many
    words = _read_text(group / "cpu.max").split()
    if not words:  # version 1
        words = [
            _read_text(group / "cpu.cfs_quota_us").strip(),
            _read_text(group / "cpu.cfs_period_us").strip(),
        ]
    with contextlib.suppress(ValueError, ZeroDivisionError):  # "max 100000", or nothing
        quota, period = map(int, words)
        if quota > 0:  # version 1 says -1 for no limit
            return quota / period
    return None


def _memory_left(group: Path) -> int | None:
    """The bytes that a group may still take; None for no limit.

    What it keeps of files counts as free: the system drops that when memory is wanted.
    """
    if (group / "memory.max").exists():
        limit, used, kept = "memory.max", "memory.current", "inactive_file"
    else:  # version 1
        limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        kept = "total_inactive_file"
    with contextlib.suppress(ValueError):  # "max", or no such files
        left = int(_read_text(group / limit)) - int(_read_text(group / used))
        return left + _statistics(group).get(kept, 0)
    return None


def _statistics(group: Path) -> dict[str, int]:
    """What a group's memory consists of, in bytes by kind."""
    found = {}
    for line in _read_text(group / "memory.stat").splitlines():
        kind, _, num_bytes = line.partition(" ")
        if num_bytes.isdecimal():
            found[kind] = int(num_bytes)
    return found


def _read_text(path: Path) -> str:
    """The text of a file; "" if there is none."""
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""
