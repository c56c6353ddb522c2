"""Cells become a script, word for word: what is written, left out, asked for and reported."""

import json
import os
import re
import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest

from distlab.notebook import export
from distlab.notebook.start_methods import Slurm
from tests.refused import refused
from tests.tool import ROOT


def cell(source, ranks=(0, 1)):
    return export.ScriptStep("cell", ranks, source)


def script(folder, steps, n=2, backend="gloo", threads=1, hosts=(), job=None):
    """The script of some steps, which is Python, and what was reported."""
    where = SimpleNamespace(job=job) if job else None
    plan = SimpleNamespace(n=n, backend=backend, threads=threads, hosts=where)
    report = export.write(steps, folder / "made.py", False, plan, hosts, False)
    text = (folder / "made.py").read_text(encoding="utf-8")
    compile(text, "made.py", "exec")
    (folder / "made.py").unlink()
    return text, report


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("await thing()\n\nx = 1", "'await' outside function"),
        (
            "from __future__ import annotations",
            "from __future__ imports must occur at the beginning of the file",
        ),
        ("%time y = 1", "invalid syntax"),
    ],
)
def test_a_cell_that_no_script_can_hold_is_a_comment(tmp_path, source, why):
    """What does not run in the middle of a file; the report says why."""
    text, report = script(tmp_path, [cell(source), cell("y = 2", (0,))])
    assert report.notes == (f"left out: cell 1, which no script can hold: {why}",)
    assert f"# --- cell 1 ---\n# {source.splitlines()[0]}\n" in text


def test_a_cell_of_some_ranks_runs_on_these_only(tmp_path):
    """It is in an if, and a text of several lines in it stays as it is."""
    steps = [
        cell("x = '''1\n2'''", (1,)),
        cell("# no", (1,)),
        cell("y = 1", (2, 0)),
        cell("z = 1", (0, 1, 2)),
    ]
    text, _ = script(tmp_path, steps, 3)
    assert "# --- cell 1, on rank 1 only ---\nif rank in [1]:\n    x = '''1\n2'''\n" in text
    assert "if rank in [1]:\n    # no\n    pass\n" in text
    assert "on ranks 0 and 2 only ---\nif rank in [0, 2]:\n    y = 1\n" in text
    assert "# --- cell 4 ---\nz = 1\n" in text


def test_what_only_the_notebook_has_is_asked_for(tmp_path):
    """Pushed values, and functions that were run, are comments, and in the report."""
    steps = [
        export.ScriptStep("pushed", (0, 1), "w, b"),
        export.ScriptStep("called", (0,), "double(rank, ...)"),
    ]
    text, report = script(tmp_path, steps)
    assert (
        "# --- pushed from the notebook ---\n# define w, b here: only the notebook has it\n" in text
    )
    by_hand = ("w, b", "double(rank, ...)")
    assert report.notes == tuple(
        f"define by hand, where the script says so: {name}" for name in by_hand
    )


def test_a_path_that_cannot_be_a_script_is_refused(tmp_path):
    """It ends in .py, in a folder that is there, and replaces nothing by itself."""
    path, batch, plan = (
        tmp_path / "there.py",
        tmp_path / "other.sbatch",
        SimpleNamespace(n=2, hosts=None),
    )
    path.write_text("mine")
    batch.write_text("mine")
    paths = {path: path, tmp_path / "other.py": batch}
    paths |= dict.fromkeys([tmp_path / "not_there" / "a.py", tmp_path / "a.txt"])
    for given, there in paths.items():
        words = str(refused(export.write, [], given, False, plan, [], True))
        rule = (
            "path must be the name of a new .py file in a directory that exists, "
            f"got {str(given)!r}. "
        )
        assert words.startswith(
            f"{rule}Choose another name, or replace {there.name if there else 'it'}: --force"
        )
    assert path.read_text() == batch.read_text() == "mine"


def test_the_command(tmp_path):
    """Ranks and threads; where hosts meet; a backend that torchrun can start."""
    assert (
        script(tmp_path, [], 4)[1].command
        == f"torchrun --standalone --nproc-per-node 4 {tmp_path}/made.py"
    )
    assert script(tmp_path, [], threads=2)[1].command.startswith("OMP_NUM_THREADS=2 torchrun ")
    report = script(tmp_path, [], 4, hosts=["nodeA", "nodeA", "nodeB", "nodeB"])[1]
    assert (
        " --nnodes 2 --rdzv-backend c10d --rdzv-endpoint FIRST_HOST:29500 --nproc-per-node 2 "
        in report.command
    )
    text, report = script(tmp_path, [], backend="distlab_course.mpi_backend")
    assert 'dist.init_process_group("gloo")' in text
    assert report.notes == (
        "left out: the backend distlab_course.mpi_backend; the script uses gloo",
    )
    assert (
        f'\n{export.SET_GPU}\ndist.init_process_group("nccl")'
        in script(tmp_path, [], backend="nccl")[0]
    )


def test_a_file_for_sbatch_in_a_folder_with_a_space(tmp_path):
    """Nodes, CPUs, what Slurm was asked for; each path is one word in bash."""
    folder = tmp_path / "my folder"
    folder.mkdir()
    job = Slurm(nodes=2, partition="debug", time="10:00", options=["--account=me"])
    report = script(
        folder, [cell("x = 1")], 4, threads=3, hosts=["nodeA", "nodeA", "nodeB", "nodeB"], job=job
    )[1]
    assert (report.command, report.notes) == (f"sbatch '{folder}/made.sbatch'", ())
    text = (folder / "made.sbatch").read_text()
    for line in ("--nodes=2", "--cpus-per-task=6", "--partition=debug", "--account=me"):
        assert f"#SBATCH {line}\n" in text
    shown = in_bash(folder / "made.sbatch", 'srun() { echo "${@: -1}"; }')
    assert shown == f"{folder}/made.py\n"


def in_bash(batch, commands):
    """What a file for sbatch prints in a bash with these functions."""
    script = f"scontrol() {{ echo nodeA; }}; {commands}; source {shlex.quote(str(batch))}"
    environment = {**os.environ, "SLURM_CPUS_PER_TASK": "6"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment)
    assert done.stderr == ""
    return done.stdout


def test_the_agents_of_a_batch_job_have_its_cpus_and_an_empty_store(tmp_path):
    """srun may forget the CPUs, and torchrun's store keeps what an attempt wrote."""
    script(tmp_path, [cell("x = 1")], 4, threads=3, job=Slurm(nodes=2))
    seen = 'srun() { echo "$1" "$2" "$TORCH_DISABLE_SHARE_RDZV_TCP_STORE" "$OMP_NUM_THREADS"; }'
    assert in_bash(tmp_path / "made.sbatch", seen) == "--cpus-per-task=6 --kill-on-bad-exit=1 1 3\n"


def test_lab_60_shows_this_file_for_sbatch(tmp_path):
    """Lab 60 adds lines for GPUs, time and workers, and a requeue; the rest is the same."""
    script(tmp_path, [cell("x = 1")], 16, hosts=["nodeA", "nodeB"], job=Slurm(nodes=2))
    text = (tmp_path / "made.sbatch").read_text()
    text = text.replace(shlex.quote(sys.executable), "python").replace(
        f"{tmp_path}/made.py", "train.py --resume"
    )
    text = text.replace("--cpus-per-task=8\n", "--cpus-per-task=64\n").replace(
        "##SBATCH", "#SBATCH"
    )
    lab = (ROOT / "notebooks" / "60_several_hosts.ipynb").read_text(encoding="utf-8")
    cells = ["".join(one["source"]) for one in json.loads(lab)["cells"]]
    (shown,) = [
        block
        for source in cells
        for block in re.findall(r"```bash\n(.*?)```", source, re.DOTALL)
        if "SBATCH" in block
    ]
    added = [line for line in shown.splitlines() if line not in text.splitlines()]
    assert [line for line in text.splitlines() if line not in shown.splitlines()] == []
    assert [re.split(r"[ =]", line)[1] for line in added] == [
        "--gpus-per-node",
        "--time",
        "NCCL_SOCKET_IFNAME",
    ]
