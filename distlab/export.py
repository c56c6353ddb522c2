"""Cells that ran on the ranks, written down as a script that runs under torchrun and prints the same.

Runs on the notebook's kernel, called by `Cluster.export` and `%%px --export`. The script is plain PyTorch at the top
level of a file, as the cells were, and needs nothing of distlab. drafting.py writes its parts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distlab import rewriting
from distlab.arguments import MPI_BACKEND
from distlab.drafting import Draft, add_cell, add_push, add_run, bound
from distlab.errors import refuse
from distlab.history import Step

HEAD = '''\
"""Cells of a notebook, for {n} ranks.

    {command}
"""
{futures}
import atexit as _atexit  # cells may use any name that does not begin with an underscore
import io as _io
import os as _os
import sys as _sys

import torch
import torch._dynamo  # before the group: in torch 2.13 gloo's threads outlive a group that is older than this import
import torch.distributed as dist
import torch.distributed as _dist

if "RANK" not in _os.environ:
    raise SystemExit("torchrun starts this script: {command}")
if _sys.platform == "linux" and _os.environ["LOCAL_WORLD_SIZE"] == _os.environ["WORLD_SIZE"]:
    _os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine

{gpu}dist.init_process_group("{backend}")  # torchrun has put rank, world size and the address of rank 0 into os.environ
rank, world_size = _RANK, _WORLD_SIZE = dist.get_rank(), dist.get_world_size()

_PRINTED, _VALUES = _io.StringIO(), []  # what this rank prints, and the value of a cell's last line, wait their turn
_TURNS = range(_WORLD_SIZE)
_sys.stdout = _PRINTED


def _show_value(value):
    """Keep the value of a cell's last line for the end of the cell."""
    if value is not None:
        _VALUES.append(f"{{value!r}}")


def _print_mine():
    """Print what this rank has kept, with its rank in front."""
    screen = _sys.__stdout__
    for line in _PRINTED.getvalue().splitlines():
        screen.write(f"rank {{_RANK}}: {{line}}".rstrip() + "\\n")
    for value in _VALUES:
        screen.write(f"rank {{_RANK}} -> {{value}}\\n")
    screen.flush()
    _PRINTED.seek(0)
    _PRINTED.truncate()
    _VALUES.clear()


def _end_of_cell():
    """Let the ranks print, one after the other."""
    for turn in _TURNS:
        if turn == _RANK:
            _print_mine()
        if _dist.is_initialized():
            _dist.barrier()


_atexit.register(_print_mine)  # also what was printed before an error'''
DISPLAY = '''


def display(*things):
    """What a notebook shows as pictures and tables is text here."""
    print(*things, sep="\\n")'''
KEEPS = """

_NAMES, _KEPT = globals(), {}  # what cells have defined, and what a call must not change of it"""
TAIL = """\
if _dist.is_initialized():
    _dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Export:
    """What was written into a script.

    Args:
        path: where it is. command: starts it.
        cells: how many cells and calls it has.
        left_out: what is not in it, or as a comment only, with the reason.
        missing: what only the notebook had, to be defined in the script by hand.
    """

    path: str
    command: str
    cells: int
    left_out: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def __repr__(self) -> str:
        lines = [f"{self.path}: {self.cells} {'cell' if self.cells == 1 else 'cells'}"]
        lines += [f"  left out: {what}" for what in self.left_out]
        lines += [f"  define by hand, where the script says so: {what}" for what in self.missing]
        return "\n".join([*lines, f"Run it: {self.command}"])


def check_path(path: str | os.PathLike, force: bool) -> Path:
    """A path for a script; ArgumentError where something is already, unless it is to be replaced."""
    if not isinstance(path, (str, os.PathLike)):
        refuse("path", "a file's name", path, 'Call cluster.export("script.py").', wrong_type=True)
    target = Path(path)
    if target.suffix != ".py" or not target.parent.is_dir():
        advice = 'Call cluster.export("script.py") or write %%px --export script.py.'
        refuse("path", "the name of a .py file in a directory that is there", str(path), advice)
    if target.is_dir() or (target.exists() and not force):
        advice = "Choose another name, or replace the file: --force, in a call force=True."
        refuse("path", "the name of a file that is not there yet", str(path), advice)
    return target


def export(steps: Sequence[Step], path: Path, n: int, backend: str, threads: int) -> Export:
    """Write the steps into a script at `path`, in the order in which they ran.

    Args:
        n, backend, threads: the cluster's.
    """
    draft = Draft(n, bound=bound([step for step in steps if not step.failed]))
    used = rewriting.names_used([step.source for step in steps if step.kind == "cell" and not step.failed])
    for step in steps:
        draft.number += step.kind != "push"
        if step.kind == "cell":
            add_cell(draft, step)
        elif step.kind == "run":
            add_run(draft, step)
        else:
            add_push(draft, step, used)
    # torchrun gives each rank one thread unless it is told otherwise; with others, sums may differ in their last digits
    several = f"OMP_NUM_THREADS={threads} " if threads > 1 else ""
    command = f"{several}torchrun --standalone --nproc-per-node {n} {path.name}"
    futures = "".join(f"\n{line}\n" for line in sorted(draft.futures))
    gpu = ""
    if backend == "nccl":  # objects and barriers travel by way of the current GPU, which is 0 at first
        gpu = 'torch.cuda.set_device(int(_os.environ["LOCAL_RANK"]))\n'
    elif backend == MPI_BACKEND:
        draft.left_out.insert(0, f"the backend {backend}, which needs mpiexec: under torchrun the script uses gloo")
        backend = "gloo"
    head = HEAD.format(n=n, command=command, backend=backend, gpu=gpu, futures=futures)
    if draft.displays or ("display" in used and "display" not in draft.made):
        head += DISPLAY
    if draft.keeps:
        head += KEEPS
    path.write_text("\n\n".join([head, *draft.parts, TAIL]), encoding="utf-8")
    return Export(str(path), command, draft.cells, tuple(draft.left_out), tuple(dict.fromkeys(draft.missing)))
