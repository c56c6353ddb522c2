"""Runs a command of Python on what looks like another machine.

Called by `make test`, for the notebooks:

    python tools/disguise.py first|second|all ARGUMENTS OF PYTHON

The first argument says on which half of the cores the command runs, or that it runs on all.

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
    programs = folder / "bin"
    course = folder / "course"
    home = folder / "home"
    scratch = folder / "scratch"
    for place in (programs, course, home, scratch):
        place.mkdir()
    copy_project(course)
    for name, says in PROGRAMS.items():
        program = programs / name
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
        program.chmod(0o755)
    places = {
        "PATH": os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": str(course),
        "HOME": str(home),
        "TMPDIR": str(scratch),
    }
    return {**os.environ, **SAYS, **places}


def copy_project(course: Path) -> None:
    """Copy what the notebooks and their tests need, without what they have left."""
    ignored = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", ".distlab_progress.json")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, course / name, ignore=ignored)
        else:
            shutil.copy(source, course / name)


def leave_cores(half: str) -> None:
    """Keep this process, and what it starts, on half of the cores, where the system lets it.

    Args:
        half: "first", "second", or "all" for all cores.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    middle = len(cores) // 2
    halves = {"first": cores[: max(1, middle)], "second": cores[middle:], "all": cores}
    os.sched_setaffinity(0, halves[half])


def main(half: str, *arguments: str) -> int:
    """Run Python with these arguments in disguise, and return its exit status."""
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
