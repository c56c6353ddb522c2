"""What has run on the ranks of a cluster, written down as a script that runs under torchrun and prints the same.

Runs on the notebook's kernel: cluster.py and magics.py note each cell, call and push; `Cluster.export` and
`%%px --export` write. The script is plain PyTorch at the top level of a file, as the cells were, and needs nothing of
distlab. A note is source text and keeps no tensor alive.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import json
import os
import shlex
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Any

from distlab.client.arguments import MPI_BACKEND
from distlab.text import rank_list, refuse

LONGEST_TEXT = 200  # of a value that is written into a script as it stands
GIVEN = {"rank", "world_size", "torch", "dist"}  # what distlab defines on every rank, and the script at its top
HEAD = '''\
"""Cells of a notebook, for {n} ranks: {command}"""

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

_TURNS, _value = range(_WORLD_SIZE), None  # the value of a cell's last line, until the cell ends
_sys.stdout = _PRINTED = _io.StringIO()  # what this rank prints waits for its turn
display = print  # what a notebook shows as pictures and tables is text here


def _print_mine():
    global _value
    lines = [f"rank {{_RANK}}: {{line}}".rstrip() + "\\n" for line in _PRINTED.getvalue().splitlines()]
    if _value is not None:
        lines.append(f"rank {{_RANK}} -> {{_value!r}}\\n")
    _value = None
    _sys.__stdout__.writelines(lines)
    _sys.__stdout__.flush()
    _PRINTED.truncate(_PRINTED.seek(0))


def _end_of_cell():  # the ranks print one after the other
    for turn in _TURNS:
        if turn == _RANK:
            _print_mine()
        if _dist.is_initialized():
            _dist.barrier()


_atexit.register(_print_mine)  # also what was printed before an error'''
TAIL = "if _dist.is_initialized():\n    _dist.destroy_process_group()\n"
VALUE = "_value = "
SBATCH = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={cpus}
{more}
export OMP_NUM_THREADS={threads}
# one torchrun on each node starts the ranks there; they meet on the first one, which has rank 0
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((29500 + SLURM_JOB_ID % 1000))
srun {python} -m torch.distributed.run --nnodes {nodes} --nproc-per-node {ranks} \\
  --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$head:$port" {script}
"""


@dataclass(frozen=True)
class Step:
    """One thing that was done on `ranks`.

    Args:
        kind: "cell" for %%px, "call" for cluster.run, or "push".
        source: the cell as it was typed; of a call or a push, how it reads.
        code: what a script has for a call or a push. missing: what that needs and cannot hold.
        failed: the name of the error that it ended with; "" when it ended well.
        pending: the AsyncResult of a cell that was sent with --noblock, and so has not ended here.
    """

    kind: str
    ranks: tuple[int, ...]
    source: str
    code: str = ""
    missing: tuple[str, ...] = ()
    failed: str = ""
    pending: Any = None


@dataclass(frozen=True)
class Export:
    """What was written into a script.

    Args:
        path: where it is. command: starts it, on each of several hosts. cells: how many cells and calls it has.
        notes: what is not in it, or as a comment only, with the reason; and what is to be defined in it by hand.
    """

    path: str
    command: str
    cells: int
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        head = f"{self.path}: {self.cells} {'cell' if self.cells == 1 else 'cells'}"
        return "\n".join([head, *(f"  {note}" for note in self.notes), f"Run it: {self.command}"])


# --- notes of what runs ---


@contextlib.contextmanager
def noting(steps: list[Step], step: Step) -> Iterator[None]:
    """Add the step to the steps when what it does has ended, with the error that it ended with."""
    try:
        yield
    except BaseException as error:
        steps.append(replace(step, failed=type(error).__name__))
        raise
    steps.append(step)


def call(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], ranks: Sequence[int]) -> Step:
    """The step of cluster.run(fn, *args, **kwargs)."""
    lines, missing = [], []
    function = _written("_function", fn, lines, missing)
    given = [_written(f"_argument_{i}", value, lines, missing) for i, value in enumerate(args)]
    given += [f"{name}={_written(f'_{name}', value, lines, missing)}" for name, value in kwargs.items()]
    lines.append(f"{VALUE}{function}({', '.join(['_RANK', '_WORLD_SIZE', *given])})\n")
    source = f"cluster.run({getattr(fn, '__name__', 'a function')})"
    return Step("call", tuple(ranks), source, "".join(lines), tuple(missing))


def push(names: Mapping[str, Any], ranks: Sequence[int]) -> Step:
    """The step of cluster.push(names)."""
    lines, missing = [], []
    for name, value in names.items():
        text = _written(name, value, lines, missing)
        lines.append(f"{name} = {text}\n" if text != name else "")
    return Step("push", tuple(ranks), f"cluster.push({', '.join(names)})", "".join(lines), tuple(missing))


def _written(name: str, value: Any, lines: list[str], missing: list[str]) -> str:
    """How a value of the notebook is written: as it stands, or by a name, which what is added to `lines` defines.

    Args:
        name: for a value that has none of its own. missing: gets the names that the script has to be given by hand.
    """
    own, home = getattr(value, "__name__", None), getattr(value, "__module__", None)
    if text := literal(value):
        return text
    if own and home != "__main__" and getattr(sys.modules.get(home), own, None) is value:
        lines.append(f"from {home} import {own}\n")
        return own
    if isinstance(value, FunctionType) and own != "<lambda>":
        with contextlib.suppress(OSError, SyntaxError):
            source = textwrap.dedent(inspect.getsource(value))
            ast.parse(source)
            names = inspect.getclosurevars(inspect.unwrap(value))
            needed = sorted({*names.globals, *names.nonlocals} - GIVEN - {own})
            missing += needed
            told = f"# uses these names of the notebook: {', '.join(needed)}\n" if needed else ""
            lines.append(f"{told}{source}\n\n")
            return own
    missing.append(name)
    told = f"define {name} here ({type(value).__name__}): only the notebook has it, and a script cannot hold it"
    lines.append(f'raise NotImplementedError("{told}")\n')
    return name


def literal(value: Any) -> str:
    """A Python expression of a number, text or small container of them; "" for anything else."""
    with contextlib.suppress(TypeError, ValueError, SyntaxError, RecursionError):
        if len(json.dumps(value, allow_nan=False)) <= LONGEST_TEXT and ast.literal_eval(repr(value)) == value:
            return repr(value)
    return ""


# --- the script ---


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


def write(steps: Sequence[Step], path: Path, plan: Any, hosts: Sequence[str] = (), job: Any = None) -> Export:
    """Write the steps into a script at `path`, in the order in which they ran; and with `job` a file for sbatch.

    Args:
        plan: the cluster's `arguments.Plan`. hosts: name of each rank's host; none where all are here.
        job: what is asked of Slurm, as `slurm.Job` has it.
    """
    n, backend, threads = plan.n, plan.backend, plan.threads or 1
    parts, notes, missing, number, cells, gpu = [], [], [], 0, 0, ""
    if backend == "nccl":  # objects and barriers travel through the current GPU, which is 0 at first
        gpu = 'torch.cuda.set_device(int(_os.environ["LOCAL_RANK"]))\n'
    elif backend == MPI_BACKEND:
        notes.append(f"left out: the backend {backend}, which needs mpiexec: under torchrun the script uses gloo")
        backend = "gloo"
    for step in steps:
        number += step.kind != "push"
        heading = "pushed from the notebook" if step.kind == "push" else f"{step.kind} {number}"
        code, why = as_script(step.source) if step.kind == "cell" else (step.code, "")
        if step.failed or (step.pending and not (step.pending.done() and step.pending.successful())):
            why = f"it failed with {step.failed}" if step.failed else "it has not ended well yet"
        if why:
            source = step.source.strip()
            notes.append(f"left out: {heading} ({why}): " + source.partition("\n")[0][:60])
            told = f"# --- {heading} is left out: {why}; what it did before is missing below ---"
            parts.append(f"{told}\n{textwrap.indent(source, '# ')}\n")
            continue
        if len(step.ranks) < n:
            heading += f", on {rank_list(step.ranks)} only"
            code = f"if _RANK in {sorted(step.ranks)}:\n{indented(code)}"
        end = "" if step.kind == "push" or step.pending else "_end_of_cell()\n"
        parts.append(f"# --- {heading} ---\n{code}{end}")
        missing += step.missing
        cells += step.kind != "push"
    notes += [f"define by hand, where the script says so: {name}" for name in dict.fromkeys(missing)]
    # torchrun gives each rank one thread unless it is told otherwise; with others, sums may differ in their last digits
    several = f"OMP_NUM_THREADS={threads} " if threads > 1 else ""
    counts = Counter(hosts or [""] * n)
    nodes, most = len(counts), max(counts.values())
    if len({*counts.values()}) > 1:
        notes.append(f"to change: the hosts have {', '.join(map(str, counts.values()))} ranks, and here all {most}")
    meet = "--standalone"
    if nodes > 1:
        meet = f"--nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint FIRST_HOST:29500"
        notes.append("to fill in: FIRST_HOST, the name of the first host; the command is for each host")
    command = f"{several}torchrun {meet} --nproc-per-node {most} {path.name}"
    if job is not None:
        command, notes = (
            f"sbatch {path.with_suffix('.sbatch').name}",
            [note for note in notes if "FIRST_HOST" not in note],
        )
        write_sbatch(path, nodes, most, threads, job)
    head = HEAD.format(n=n, command=command, backend=backend, gpu=gpu)
    path.write_text("\n\n".join([head, *parts, TAIL]), encoding="utf-8")
    return Export(str(path), command, cells, tuple(notes))


def write_sbatch(path: Path, nodes: int, ranks: int, threads: int, job: Any) -> None:
    """Write a batch file for Slurm beside a script, which starts it on `nodes` with as many `ranks` on each."""
    words = [f"--partition={job.partition}"] * bool(job.partition) + [f"--time={job.time}"] * bool(job.time)
    more = "".join(f"#SBATCH {word}\n" for word in [*words, *job.options])
    text = SBATCH.format(
        name=path.stem,
        nodes=nodes,
        cpus=ranks * threads,
        more=more,
        threads=threads,
        python=shlex.quote(sys.executable),
        ranks=ranks,
        script=shlex.quote(path.name),
    )
    path.with_suffix(".sbatch").write_text(text, encoding="utf-8")


def as_script(source: str) -> tuple[str, str]:
    """A %%px cell as a part of a script, which keeps its last line's value; else "", and why no script can hold it."""
    text = source.strip("\n") + "\n"
    try:
        compile(f"pass\n{text}", "<cell>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return "", f"no script can hold it: {error.msg}"
    last = next(reversed(ast.parse(text).body), None)
    if not isinstance(last, ast.Expr) or getattr(getattr(last.value, "func", None), "id", "") in ("print", "display"):
        return text, ""
    lines = text.encode().splitlines(keepends=True)  # ast counts columns in bytes
    if not lines[last.end_lineno - 1][last.end_col_offset :].lstrip().startswith(b";"):
        row, column = last.lineno - 1, last.col_offset
        lines[row] = lines[row][:column] + VALUE.encode() + lines[row][column:]
    return b"".join(lines).decode(), ""


def indented(source: str) -> str:
    """The source four columns to the right, but for lines that begin inside of a string; comments alone pass."""
    tree = ast.parse(source)
    strings = [node for node in ast.walk(tree) if isinstance(node, (ast.Constant, ast.JoinedStr))]
    inside = {line for node in strings for line in range(node.lineno + 1, node.end_lineno + 1)}
    lines = source.split("\n") if tree.body else [*source.split("\n")[:-1], "pass", ""]
    return "\n".join(f"    {line}" if line.strip() and i not in inside else line for i, line in enumerate(lines, 1))
