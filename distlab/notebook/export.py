"""What has run on the ranks of a cluster, as a script for torchrun: the cells, word for word.

Runs on the notebook's kernel: cluster.py and magics.py note each cell, call and push;
`Cluster.export` and `%%px --export` write. Before the cells stands script_head.txt, and sbatch.txt
is for a file for sbatch. The script is plain PyTorch and does not need distlab. What only the
notebook has, such as a value that was pushed, becomes a comment that says what to define. A step
keeps no value alive.
"""

import ast
import shlex
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distlab.arguments import refuse
from distlab.notebook.hosts import slurm_options
from distlab.notebook.start_methods import Slurm
from distlab.words import rank_list

SET_GPU = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
TAIL = "if dist.is_initialized():\n    dist.destroy_process_group()\n"


@dataclass(frozen=True)
class Step:
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
        head = f"{self.path}: {self.cells} {'cell' if self.cells == 1 else 'cells'}"
        return "\n".join([head, *(f"  {note}" for note in self.notes), f"Run it: {self.command}"])


def _template(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def write(
    steps: Sequence[Step], path: Path, force: bool, plan: Any, hosts: Sequence[str], slurm: bool
) -> Export:
    """Write the steps into a script at `path`, in the order in which they ran, and a file for
    sbatch if wanted.

    Args:
        force: whether to replace an existing file; otherwise an existing file is an ArgumentError.
        plan: the cluster's Plan.
        hosts: name of each rank's host; none where all are here.
        slurm: whether to write a file for sbatch; for a cluster that Slurm started, one is always
            written.
    """
    job = plan.hosts.job if plan.hosts else None
    if job is None and slurm:
        job = Slurm()
    there = [
        file
        for file in (path, *[path.with_suffix(".sbatch")] * bool(job))
        if file.exists() and not force
    ]
    if path.suffix != ".py" or not path.parent.is_dir() or path.is_dir() or there:
        advice = f"Choose another name, or replace {there[0].name if there else 'it'}: --force, or force=True."
        refuse("path", "the name of a new .py file in a directory that exists", str(path), advice)
    command = _command_and_batch_file(path, plan, len({*hosts}) or 1, job)
    # with nccl, objects and barriers travel through the current GPU, which is 0 at first
    backend, gpu = ("nccl", SET_GPU) if plan.backend == "nccl" else ("gloo", "")
    notes = (
        [f"left out: the backend {plan.backend}; the script uses gloo"]
        if backend != plan.backend
        else []
    )
    parts, cells = [], 0
    for step in steps:
        if step.kind != "cell":
            notes.append(f"define by hand, where the script says so: {step.source}")
            heading, text = (
                f"{step.kind} from the notebook",
                f"# define {step.source} here: only the notebook has it",
            )
        else:
            cells += 1
            heading, text = f"cell {cells}", step.source.strip("\n") + "\n"
            if why := _not_python(text):
                notes.append(f"left out: cell {cells}, which no script can hold: {why}")
                text = textwrap.indent(text, "# ", lambda _: True)
            elif len(step.ranks) < plan.n:
                heading += f", on {rank_list(step.ranks)} only"
                text = f"if rank in {sorted(step.ranks)}:\n{indented(text)}"
        parts.append(f"# --- {heading} ---\n{text}".rstrip() + "\n")
    head = _template("script_head.txt").format(n=plan.n, command=command, backend=backend, gpu=gpu)
    path.write_text("\n\n".join([head, *parts, TAIL]), encoding="utf-8")
    return Export(str(path), command, cells, tuple(dict.fromkeys(notes)))


def _not_python(source: str) -> str:
    """Why this source cannot stand in the middle of a Python file, in words; "" if it can."""
    try:
        compile(f"pass\n{source}", "<cell>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return error.msg
    return ""


def indented(source: str) -> str:
    """The source indented by four columns, except for lines that begin inside a string; it may be
    comments only.
    """
    tree = ast.parse(source)
    strings = [node for node in ast.walk(tree) if isinstance(node, (ast.Constant, ast.JoinedStr))]
    inside = {line for node in strings for line in range(node.lineno + 1, node.end_lineno + 1)}
    lines = source.split("\n") if tree.body else [*source.split("\n")[:-1], "pass", ""]
    return "\n".join(
        f"    {line}" if line.strip() and i not in inside else line
        for i, line in enumerate(lines, 1)
    )


def _command_and_batch_file(path: Path, plan: Any, nodes: int, job: Any) -> str:
    """The command that starts a script with equally many ranks on each node; for Slurm, also write
    its batch file.
    """
    ranks, threads, meet = -(-plan.n // nodes), plan.threads or 1, "--standalone"
    if job is None:
        if nodes > 1:
            meet = f"--nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint FIRST_HOST:29500"
        # by default torchrun gives each rank one thread, and then sums may differ in their last
        # digits
        several = f"OMP_NUM_THREADS={threads} " if threads > 1 else ""
        return f"{several}torchrun {meet} --nproc-per-node {ranks} {shlex.quote(str(path))}"
    batch = path.with_suffix(".sbatch")
    words = "".join(f"#SBATCH {shlex.quote(word)}\n" for word in slurm_options(job))
    numbers = {"nodes": nodes, "ranks": ranks, "cpus": ranks * threads, "threads": threads}
    paths = {"python": shlex.quote(sys.executable), "script": shlex.quote(str(path.resolve()))}
    batch.write_text(
        _template("sbatch.txt").format(words=words, **numbers, **paths), encoding="utf-8"
    )
    return f"sbatch {shlex.quote(str(batch))}"
