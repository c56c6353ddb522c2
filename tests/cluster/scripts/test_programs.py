"""Small programs for torchrun run under `distlab run`, and mistakes in them are named.

Runs in pytest's process; each program in a process of its own, with its two ranks.
"""

import re
import subprocess
import sys

import pytest

from tests.tool import ROOT, load

PROGRAMS = ROOT / "tests/cluster/scripts/programs"
TOOL = load("beside_torchrun")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
DISTLAB = [sys.executable, "-m", "distlab", "run"]

WRITTEN = {
    "accumulate.py 2 4": ["as in one process"] * 2,
    "sharded.py": [r"loss 0\.\d{5} norm 0\.\d{5}"] * 2,
    "tensors.py": ["rank 0 of 2: as in one process", "rank 1 of 2: as in one process"],
    "stages.py": [r"loss 0\.\d{5}, as in one process"],
    "remote.py": [r"\[2.0, 2.0\]"],
}
# a program, what is changed in it, and what is said then, with the line
MISTAKES = {
    "a barrier on one rank": (
        "accumulate.py 2 4",
        ("    dist.barrier()", "    if rank == 0: dist.barrier()"),
        "rank 0 in barrier for rank 1, rank 1 in DistributedDataParallel.forward for rank 0",
        "accumulate.py:37  if rank == 0: dist.barrier()",
    ),
    "a rank that clips no gradients": (
        "sharded.py",
        ("        norm =", "        if dist.get_rank(): continue\n        norm ="),
        "The ranks do not call the same collective: rank 0 calls all_reduce",
        "sharded.py:28 in main  norm = ",
    ),
    "a stage with fewer micro-batches": (
        "stages.py",
        ("n_microbatches=4", "n_microbatches=4 - 2 * rank"),
        "Rank 1 raised RuntimeError: The size of tensor a (2) must match",
        "at stages.py:23.",
    ),
    "a rank that leaves": (
        "accumulate.py 2 4",
        ("    dist.barrier()", "    if rank == 1: sys.exit(3)\n    dist.barrier()"),
        "Rank 1 ended with exit status 3 at accumulate.py:37",
        "Rank 0 waited",
    ),
}


@pytest.fixture
def folder(tmp_path, nothing_left, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for path in PROGRAMS.glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text())
    return tmp_path


def run(words, launcher=DISTLAB):
    command = [*launcher, "--nproc-per-node", "2", *words.split()]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("words", WRITTEN)
def test_a_program_runs_as_it_is(words, folder):
    ended = run(words)
    assert (ended.returncode, ended.stderr.count("Error")) == (0, 0), ended.stderr
    lines = sorted(ended.stdout.splitlines())
    for line, expected in zip(lines, sorted(WRITTEN[words]), strict=True):
        assert re.fullmatch(expected, line)


def test_a_program_prints_what_it_prints_under_torchrun(folder):
    """To the last digit; a second run goes on from the snapshot of the first one."""
    torchrun = [*TORCHRUN, "--redirects", "3", "--log-dir", "{logs}"]
    words = ["--nproc-per-node", "2", "snapshots.py", "--epochs", "2"]
    there = TOOL.launch([*torchrun, *words], 100, in_copy=True)
    here = TOOL.launch([*DISTLAB, *words], 100, in_copy=False)
    assert (there.status, here.status) == (0, 0)
    assert sorted(here.stdout) == sorted(there.stdout)
    assert len(here.stdout) == 4
    again = run("snapshots.py --epochs 3")
    assert again.stdout.count("goes on at epoch 2") == 2


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_line(mistake, folder):
    words, (right, wrong), *said = MISTAKES[mistake]
    path = folder / words.split()[0]
    program = path.read_text()
    assert program.count(right) == 1
    path.write_text(program.replace(right, wrong))
    ended = run(words)
    assert ended.returncode == (3 if "leaves" in mistake else 1)
    assert [one for one in said if one not in ended.stderr] == [], ended.stderr
