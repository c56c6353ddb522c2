"""mpiexec as the program that starts the ranks: where it is, what it must be told, what it says when a rank ends.

Called by processes.py in the notebook's kernel, for `Cluster(n, engines="mpi")`. The rest is ipyparallel's own
launcher for MPI, which runs `mpiexec -n 4 python -m ipyparallel.engine --mpi`: rank r is MPI's rank r. MPI ends all
processes of a program when one of them ends badly, so a rank that dies takes the others with it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec

from distlab.compat.ipyparallel import NANNY
from distlab.errors import refuse

NAME = "mpi"  # of ipyparallel's launcher
INSTALL = "pip install mpich mpi4py"


def find() -> str | None:
    """Path of mpiexec: the one beside this Python, where pip puts it, else the first on PATH; None without one."""
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    return beside if os.access(beside, os.X_OK) else shutil.which("mpiexec")


def check() -> None:
    """ArgumentError when something is missing that engines="mpi" needs."""
    missing = [name for name, place in {"mpiexec": find(), "mpi4py": find_spec("mpi4py")}.items() if not place]
    if missing:
        here = f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not installed"
        rule = "a launcher whose programs are installed here"
        refuse("engines", rule, NAME, f"{here}: {INSTALL} brings what MPI needs. Or call Cluster(n).")


def arguments() -> list[str]:
    """What this mpiexec must be told; Open MPI refuses more ranks than cores, and the user root, unless it is."""
    words = subprocess.run([find() or "mpiexec", "--version"], capture_output=True, text=True, timeout=30).stdout
    if not re.search(r"open ?mpi|openrte|prte|prrte", words, re.IGNORECASE):
        return []
    return ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]


def first_to_end(log: str) -> int | None:
    """The engine that ended first, by what its processes have written; None when that does not tell.

    How it ended nobody tells: what mpiexec says at the end is made of the exit statuses of all that it has killed.
    """
    found = NANNY.findall(log)  # mpiexec may pass on the lines of two nannies in another order than they were written
    return int(min(found)[1]) if found else None
