"""Runs a command of Python on what looks like another machine.

Called by `make test`, for the notebooks.

python tools/disguise.py first|second|all ARGUMENTS OF PYTHON: on which half of the cores, or on
all.

A saved output must not know the machine that it was saved on. So the notebooks are compared in a
copy of the project whose path has spaces, with another home and temporary directory, half of the
cores, programs that tell of other hardware, the arithmetic of an older CPU, whose sums are rounded
otherwise, a narrow terminal and colours on: an output that knows its machine fails here, and not
only at a learner's.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
X86 = platform.machine() in ("x86_64", "AMD64")
COPIED = (
    "distlab",
    "distlab_predict",
    "distlab_course",
    "figs",
    "notebooks",
    "tests",
    "pyproject.toml",
)
PROGRAMS = {
    "lscpu": (
        "Architecture:  riscv64\nCPU(s):        3\nModel name:    a disguise\nL1d cache:     7 KiB"
    ),
    "nvidia-smi": "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV7\t0-2\nGPU1\tNV7\t X \t0-2",
}
SAYS = {
    "PYTHON_CPU_COUNT": "3",  # what os.cpu_count() says, since Python 3.13
    "TZ": "Asia/Kathmandu",
    "TERM": "xterm-256color",
    "COLUMNS": "63",
    **dict.fromkeys(("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "PYTHON_COLORS"), "1"),
}
if X86:  # which instructions torch, MKL and oneDNN use
    SAYS |= {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}


def put_on(folder: Path) -> dict[str, str]:
    """Make the other machine's directories in `folder`, and return the environment there."""
    ignored = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", ".distlab_progress.json")
    places = {name: folder / name for name in ("bin", "course", "home", "scratch")}
    for place in places.values():
        place.mkdir()
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(
            ROOT / name,
            places["course"] / name,
            **({"ignore": ignored} if copy is shutil.copytree else {}),
        )
    for name, says in PROGRAMS.items():
        (places["bin"] / name).write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
        (places["bin"] / name).chmod(0o755)
    path = os.pathsep.join([str(places["bin"]), os.environ.get("PATH", os.defpath)])
    where = {
        "PATH": path,
        "PYTHONPATH": places["course"],
        "HOME": places["home"],
        "TMPDIR": places["scratch"],
    }
    return {**os.environ, **SAYS, **{name: str(value) for name, value in where.items()}}


def leave_cores(half: str) -> None:
    """Keep this process, and what it starts, on half of the cores, where the system lets it."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        middle = len(cores) // 2
        os.sched_setaffinity(
            0, {"first": cores[: middle or 1], "second": cores[middle:], "all": cores}[half]
        )


def main(half: str, *arguments: str) -> int:
    with tempfile.TemporaryDirectory(
        prefix="another machine ", ignore_cleanup_errors=True
    ) as folder:
        environment = put_on(Path(folder))
        leave_cores(half)
        # matplotlib looks for the fonts once in each home, and says so in the output of a cell when
        # that takes long
        subprocess.call([sys.executable, "-c", "import matplotlib.font_manager"], env=environment)
        return subprocess.call(
            [sys.executable, *arguments], cwd=Path(folder) / "course", env=environment
        )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
