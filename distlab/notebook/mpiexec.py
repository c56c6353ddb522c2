"""mpiexec, which can start the ranks: where it is, its arguments, what it writes at their end.

Called by placement.py and starting.py in the notebook's kernel, for `Cluster(n, engines="mpi")`,
which runs `mpiexec -n 4 python -m ipyparallel.engine --mpi`, as ipyparallel's own launcher does:
rank r is MPI's rank r. MPI ends all processes of a program when one of them ends badly, so a rank
that dies takes the others with it.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

import psutil

from distlab.arguments import wrong
from distlab.compat.ipyparallel import NANNY

INSTALL = "pip install mpich mpi4py"
# for its processes to give back their shared memory, which outlives those that are killed
MPI_END_SECONDS = 1.0
VERSION_SECONDS = 30.0  # for mpiexec to say which one it is
SHARED_FILE = re.compile(r"/dev/shm/mpich\S+")  # among what a process has mapped
OPEN_MPI = re.compile(r"open ?mpi|openrte|prte|prrte", re.IGNORECASE)  # in what its version says


def find_mpiexec() -> str | None:
    """Path of mpiexec; None without one.

    The one beside this Python comes first, because pip puts it there, and else the first on PATH.
    """
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    if os.access(beside, os.X_OK):
        return beside
    return shutil.which("mpiexec")


def check_mpi() -> None:
    """Raise ArgumentError if something is missing that engines="mpi" needs."""
    missing = []
    if find_mpiexec() is None:
        missing.append("mpiexec")
    if find_spec("mpi4py") is None:
        missing.append("mpi4py")
    if missing:
        wrong(f'engines="mpi" needs {" and ".join(missing)}: {INSTALL}. Or call Cluster(n).')


def arguments(
    ranks: Mapping[str, int] | None = None, address: str = "", environment: Iterable[str] = ()
) -> list[str]:
    """The arguments that this mpiexec needs, which are other ones for MPICH and for Open MPI.

    Args:
        ranks: how many are to run, by host; None for this machine.
        address: of this machine, as the hosts see it.
        environment: names of variables that the ranks need there.
    """
    hosts = ""
    if ranks is not None:
        hosts = ",".join(f"{name}:{number}" for name, number in ranks.items())
    if _is_open_mpi():
        return _arguments_of_open_mpi(hosts, environment)
    if hosts:
        return ["-localhost", address, "-hosts", hosts]
    return []


def _is_open_mpi() -> bool:
    """Whether the mpiexec here is Open MPI's, by what it says of its version."""
    command = [find_mpiexec() or "mpiexec", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_SECONDS)
    return OPEN_MPI.search(done.stdout) is not None


def _arguments_of_open_mpi(hosts: str, environment: Iterable[str]) -> list[str]:
    """The arguments of Open MPI, which refuses more ranks than cores, and root, without them.

    Args:
        hosts: with their numbers of ranks, as its option takes them; "" for this machine.
        environment: names of variables that the ranks need there.
    """
    words = ["--oversubscribe"]
    if os.geteuid() == 0:
        words.append("--allow-run-as-root")
    if hosts:
        words += ["--host", hosts]
        for name in environment:
            words += ["-x", name]
    return words


def shared_files(processes: Iterable[psutil.Process]) -> set[str]:
    """Files in which these processes share memory by MPICH; none where the system is not Linux."""
    found: set[str] = set()
    for process in processes:
        with contextlib.suppress(OSError):
            found.update(SHARED_FILE.findall(Path(f"/proc/{process.pid}/maps").read_text()))
    return found


def remove(files: Iterable[str]) -> None:
    """Remove shared files that are still there: of processes that were killed."""
    for path in files:
        Path(path).unlink(missing_ok=True)


def first_to_end(log: str) -> int | None:
    """The engine that ended first, from what mpiexec's processes wrote; None if that is not there.

    How it ended is not known: mpiexec's exit status combines those of all the processes that it
    killed.
    """
    # mpiexec may pass on the lines of two nannies in another order than they were written
    found = NANNY.findall(log)
    if not found:
        return None
    _, engine = min(found)
    return int(engine)
