"""mpiexec as the program that starts the ranks: where it is, its arguments, what it writes when a
rank ends.

Called by placement.py and starting.py in the notebook's kernel, for `Cluster(n, engines="mpi")`, which
runs `mpiexec -n 4 python -m ipyparallel.engine --mpi`, as ipyparallel's own launcher does: rank r
is MPI's rank r. MPI ends all processes of a program when one of them ends badly, so a rank that
dies takes the others with it.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec

from distlab.arguments import wrong
from distlab.compat.ipyparallel import NANNY

INSTALL = "pip install mpich mpi4py"
# that its processes have to give back their shared memory, which outlives those that are killed
END_SECONDS = 1.0


def find() -> str | None:
    """Path of mpiexec: the one beside this Python, where pip puts it, else the first on PATH; None
    without one.
    """
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    return beside if os.access(beside, os.X_OK) else shutil.which("mpiexec")


def check() -> None:
    """ArgumentError when something is missing that engines="mpi" needs."""
    missing = []
    if find() is None:
        missing.append("mpiexec")
    if find_spec("mpi4py") is None:
        missing.append("mpi4py")
    if missing:
        wrong(f'engines="mpi" needs {" and ".join(missing)}: {INSTALL}. Or call Cluster(n).')


def arguments(
    ranks: Mapping[str, int] | None = None, address: str = "", environment: Iterable[str] = ()
) -> list[str]:
    """The arguments that this mpiexec needs; Open MPI refuses the user root, and more ranks than
    cores, without them.

    Args:
        ranks: how many are to run, by host; None for this machine.
        address: of this machine, as the hosts see it.
        environment: names of variables that the ranks need there.
    """
    written = subprocess.run(
        [find() or "mpiexec", "--version"], capture_output=True, text=True, timeout=30
    ).stdout
    hosts = ",".join(f"{name}:{count}" for name, count in (ranks or {}).items())
    if not re.search(r"open ?mpi|openrte|prte|prrte", written, re.IGNORECASE):
        return ["-localhost", address, "-hosts", hosts] if hosts else []
    words = ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    if hosts:
        words += ["--host", hosts, *(word for name in environment for word in ("-x", name))]
    return words


def first_to_end(log: str) -> int | None:
    """The engine that ended first, from what mpiexec's processes wrote; None if they have not
    written it.

    How it ended is not known: mpiexec's exit status combines those of all the processes that it
    killed.
    """
    # mpiexec may pass on the lines of two nannies in another order than they were written
    found = NANNY.findall(log)
    return int(min(found)[1]) if found else None
