"""What this machine lets a cluster have: memory, open files, processes, loopback interface; looked at before a start.

Runs on the notebook's kernel, called by cluster.py, and by doctor.py. Without this a start that is refused a file or a
process somewhere in a library waits for what cannot come.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

from distlab.errors import ClusterError
from distlab.text import refuse
from distlab.wire.rendezvous import listen

# after the first all_reduce: a forked rank shares most of its pages, others are a Python of their own each
MEGABYTES_PER_RANK = {"fork": 60}
MEGABYTES_PER_PYTHON = 190
# (for the cluster, and for each rank), measured with 2 and 8 ranks. The controller opens most: 77 and 6. A rank has 59
# and one for each other rank; the rest is for what a learner opens.
NEEDED_FILES = (100, 7)
NEEDED_FILES_HERE = (30, 1)  # by the notebook's process, besides what it has open
# controller, fork server, guard and store have 12 threads, the notebook 8, and a rank 14, to which PyTorch adds
NEEDED_THREADS = (20, 16)


@dataclass(frozen=True)
class Limit:
    """One limit: `what` may be had, `value` times in all; enough for `ranks` ranks; `cure` raises it."""

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
    """The memory that is free, and the limits of this process that are finite."""
    free, each = psutil.virtual_memory().available / 1e6, MEGABYTES_PER_RANK.get(engines, MEGABYTES_PER_PYTHON)
    cure = f"A rank takes about {each} MB: close other programs."
    found = [Limit("GB of free memory", round(free / 1000), max(2, int(free // each)), cure)]
    value, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if value != resource.RLIM_INFINITY:
        higher = 4096 if most == resource.RLIM_INFINITY else min(most, 4096)
        cure = f"For more, run `ulimit -n {higher}` in the shell that starts Python or Jupyter."
        if value >= higher:
            cure = "The administrator of this machine can allow more (`ulimit -n`)."
        here = value - psutil.Process().num_fds()
        ranks = min(_ranks(value, *NEEDED_FILES), _ranks(here, *NEEDED_FILES_HERE))
        found.append(Limit("open files for each process", value, ranks, cure))
    value, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if value != resource.RLIM_INFINITY and os.geteuid() != 0:  # the limit does not hold for root
        cure = "End other programs, or ask the administrator of this machine for more (`ulimit -u`)."
        ranks = _ranks(value - _threads_of_user(value), *NEEDED_THREADS)
        found.append(Limit("processes and threads for each user", value, ranks, cure))
    return found


def check_loopback() -> int:
    """Really connect over 127.0.0.1; the port that was used. ClusterError where that is not possible."""
    try:
        with listen() as listener:
            port = listener.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return port
    except OSError as error:
        why = f"127.0.0.1 cannot be reached ({error}), over which notebook and ranks talk."
        cure = "Bring the loopback interface up, as root: `ip link set lo up; ip address replace 127.0.0.1/8 dev lo`."
        raise ClusterError(f"{why} {cure}") from error


def _ranks(free: int, base: int, each: int) -> int:
    return max(0, (free - base) // each)


def _threads_of_user(limit: int) -> int:
    """How many threads this user has; those of all users where they are far from the limit, which is quicker."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        everyone = int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])
        if everyone < limit // 2:
            return everyone
    everything = [process.info for process in psutil.process_iter(["uids", "num_threads"])]
    return sum(info["num_threads"] or 0 for info in everything if info["uids"] and info["uids"].real == os.getuid())
