"""What has run on the ranks of a cluster, as a script for torchrun: the cells, word for word.

Runs on the notebook's kernel: cluster.py and magics.py note each cell, call and push;
`Cluster.export` and `%%px --export` write. Before the cells stands script_head.txt, and sbatch.txt
is for a file for sbatch. The script is plain PyTorch and does not need distlab. What only the
notebook has, such as a value that was pushed, becomes a comment that says what to define. A step
keeps no value alive.
"""

from __future__ import annotations

import ast
import math
import shlex
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distlab.arguments import refuse
from distlab.notebook.hosts import slurm_options
from distlab.notebook.plan import Plan
from distlab.notebook.start_methods import Slurm
from distlab.words import rank_list

SET_GPU = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
SCRIPT_BACKENDS = ("gloo", "nccl")  # those that a script can have
TAIL = "if dist.is_initialized():\n    dist.destroy_process_group()\n"


@dataclass(frozen=True)
class ScriptStep:
    """One thing that some ranks have done without an error.

    Attributes:
        kind: "cell" for %%px, "called" for cluster.run, "pushed" for cluster.push.
        ranks: those that did it.
        source: the cell as typed, or what only the notebook has: a function with its arguments, or
            names.
    """

    kind: str
    ranks: tuple[int, ...]
    source: str


@dataclass(frozen=True)
class Export:
    """What was written into a script.

    Attributes:
        path: where it is.
        command: starts it, on each of several hosts.
        cells: how many cells it has.
        notes: what is only a comment, and why; and what has to be defined by hand.
    """

    path: str
    command: str
    cells: int
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        cells = "cell" if self.cells == 1 else "cells"
        lines = [f"{self.path}: {self.cells} {cells}"]
        lines += [f"  {note}" for note in self.notes]
        lines.append(f"Run it: {self.command}")
        return "\n".join(lines)


def _template(name: str) -> str:
    """The text of a file beside this one."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def write(
    steps: Sequence[ScriptStep],
    path: Path,
    force: bool,
    plan: Plan,
    hosts: Sequence[str],
    slurm: bool,
) -> Export:
    """Write the steps into a script, in the order in which they ran.

    Args:
        steps: what ran on the ranks.
        path: of the script.
        force: whether to replace an existing file; otherwise an existing file is an ArgumentError.
        plan: of the cluster.
        hosts: name of each rank's host; none where all are here.
        slurm: whether to write a file for sbatch; for a cluster that Slurm started, one is always
            written.
    """
    job = None if plan.hosts is None else plan.hosts.job
    if job is None and slurm:
        job = Slurm()
    _check_path(path, force, has_batch_file=job is not None)
    nodes = max(1, len(set(hosts)))
    if job is None:
        command = _torchrun(path, plan, nodes)
    else:
        command = _write_batch_file(path, plan, nodes, job)
    parts = [_head(plan, command)]
    notes = []
    if plan.backend not in SCRIPT_BACKENDS:
        notes.append(f"left out: the backend {plan.backend}; the script uses gloo")
    cells = 0
    for step in steps:
        if step.kind == "cell":
            cells += 1
            part, note = _cell(step, cells, plan.n)
        else:
            part, note = _only_in_notebook(step)
        parts.append(part)
        if note:
            notes.append(note)
    parts.append(TAIL)
    path.write_text("\n\n".join(parts), encoding="utf-8")
    return Export(str(path), command, cells, tuple(dict.fromkeys(notes)))


def _head(plan: Plan, command: str) -> str:
    """What stands above the cells of a script: how to start it, and that it joins a group."""
    backend = "gloo"
    gpu = ""
    if plan.backend == "nccl":
        backend = "nccl"
        gpu = SET_GPU  # objects and barriers travel through the current GPU, which is 0 at first
    head = _template("script_head.txt")
    return head.format(n=plan.n, command=command, backend=backend, gpu=gpu)


def _check_path(path: Path, force: bool, has_batch_file: bool) -> None:
    """Raise ArgumentError if a script cannot be written there, or would replace a file.

    Args:
        path: of the script.
        force: whether files may be replaced.
        has_batch_file: whether a file for sbatch is written beside it.
    """
    files = [path]
    if has_batch_file:
        files.append(path.with_suffix(".sbatch"))
    existing = []
    if not force:
        existing = [file for file in files if file.exists()]
    may_be_script = path.suffix == ".py" and path.parent.is_dir() and not path.is_dir()
    if may_be_script and not existing:
        return
    replaced = existing[0].name if existing else "it"
    advice = f"Choose another name, or replace {replaced}: --force, or force=True."
    refuse("path", "the name of a new .py file in a directory that exists", str(path), advice)


def _cell(step: ScriptStep, number: int, n: int) -> tuple[str, str]:
    """A cell as a part of the script, and a note if no script can hold it.

    Args:
        step: the cell.
        number: its number among the cells.
        n: how many ranks there are.
    """
    heading = f"cell {number}"
    text = step.source.strip("\n") + "\n"
    why = _not_python(text)
    if why:
        comment = textwrap.indent(text, "# ", lambda _: True)
        note = f"left out: cell {number}, which no script can hold: {why}"
        return _part(heading, comment), note
    if len(step.ranks) < n:
        heading += f", on {rank_list(step.ranks)} only"
        text = f"if rank in {sorted(step.ranks)}:\n{indented(text)}"
    return _part(heading, text), ""


def _only_in_notebook(step: ScriptStep) -> tuple[str, str]:
    """A comment in the place of what only the notebook has, and a note that says to define it."""
    text = f"# define {step.source} here: only the notebook has it"
    note = f"define by hand, where the script says so: {step.source}"
    return _part(f"{step.kind} from the notebook", text), note


def _part(heading: str, text: str) -> str:
    """A part of the script under its heading."""
    return f"# --- {heading} ---\n{text}".rstrip() + "\n"


def _not_python(source: str) -> str:
    """Why this source cannot stand in the middle of a Python file, in words; "" if it can."""
    try:
        compile(f"pass\n{source}", "<cell>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return error.msg
    return ""


def indented(source: str) -> str:
    """The source indented by four columns, except for lines that begin inside a string.

    It may be comments only: then `pass` stands below them.
    """
    tree = ast.parse(source)
    lines = source.split("\n")
    if not tree.body:
        lines[-1:] = ["pass", ""]
    in_strings = _lines_in_strings(tree)
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip() and number not in in_strings:
            line = f"    {line}"
        found.append(line)
    return "\n".join(found)


def _lines_in_strings(tree: ast.Module) -> set[int]:
    """The numbers of the lines that begin inside a string."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Constant, ast.JoinedStr)):
            last = node.end_lineno or node.lineno
            found.update(range(node.lineno + 1, last + 1))
    return found


def _ranks_of_a_node(plan: Plan, nodes: int) -> int:
    """How many ranks each of several nodes has: equally many, so it may be more than are wanted."""
    return math.ceil(plan.n / nodes)


def _torchrun(path: Path, plan: Plan, nodes: int) -> str:
    """The command that starts a script with equally many ranks on each node."""
    meet = "--standalone"
    if nodes > 1:
        meet = f"--nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint FIRST_HOST:29500"
    ranks = _ranks_of_a_node(plan, nodes)
    command = f"torchrun {meet} --nproc-per-node {ranks} {shlex.quote(str(path))}"
    threads = plan.threads or 1
    if threads == 1:  # which is what torchrun gives each rank
        return command
    # with another number of threads, sums may differ in their last digits
    return f"OMP_NUM_THREADS={threads} {command}"


def _write_batch_file(path: Path, plan: Plan, nodes: int, job: Slurm) -> str:
    """Write the file for sbatch that runs a script, and return the command that submits it."""
    options = []
    for word in slurm_options(job):
        options.append(f"#SBATCH {shlex.quote(word)}\n")
    ranks = _ranks_of_a_node(plan, nodes)
    threads = plan.threads or 1
    text = _template("sbatch.txt").format(
        words="".join(options),
        nodes=nodes,
        ranks=ranks,
        cpus=ranks * threads,
        threads=threads,
        python=shlex.quote(sys.executable),
        script=shlex.quote(str(path.resolve())),
    )
    batch = path.with_suffix(".sbatch")
    batch.write_text(text, encoding="utf-8")
    return f"sbatch {shlex.quote(str(batch))}"
