"""A script that was written of cells prints under torchrun, rank by rank, what the cells printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import distlab
from distlab.export import export
from distlab.history import Step

from .conftest import processes_of, wait_until_gone
from .test_px import Notebook

CELLS = [
    "%%px\ntext = '''one\n  two'''\nprint(text)\nx = torch.ones(2) * (rank + 1)\ndist.all_reduce(x)\nx.sum()",
    "cluster.push({'steps': 3, 'name': 'adam'})",
    "%%px --targets 1\nprint(name, '''a\n b''')\n[i * steps for i in range(2)]",
    "%%px\nprint('before it fails')\nif rank == 1:\n    1 / 0",
    "%%px\n%time y = 1",
    "%%px --noblock --targets 0\ndist.send(torch.ones(1), 1)",
    "%%px --targets 1\ninbox = torch.zeros(1)\ndist.recv(inbox, 0)\ninbox.item()",
    "%px print('one line')",
    "SCALE = 2\ndef double(rank, world_size, tail):\n    print('called')\n    return SCALE * rank, tail",
    "%px SCALE = 9",
    "cluster.run(double, 'end', ranks=[1])",
    "cluster.push({'twice': double})",
    "%px twice(rank, 2, SCALE)",
]
EXPECTED = {
    0: [
        "rank 0: one",
        "rank 0:   two",
        "rank 0 -> tensor(6.)",
        "rank 0: one line",
        "rank 0: called",
        "rank 0 -> (0, 9)",
        "rank 0 -> {'sum': 1}",
    ],
    1: [
        "rank 1: one",
        "rank 1:   two",
        "rank 1 -> tensor(6.)",
        "rank 1: adam a",
        "rank 1:  b",
        "rank 1 -> [0, 3]",
        "rank 1 -> 1.0",
        "rank 1: one line",
        "rank 1: called",
        "rank 1 -> (2, 'end')",
        "rank 1: called",
        "rank 1 -> (2, 9)",
        "rank 1 -> {'sum': 1}",
    ],
}


@pytest.fixture(scope="module")
def notebook():
    """A kernel with a cluster of 2 ranks, on which the cells have run; afterwards nothing of it is left."""
    book = Notebook()
    book.run("%load_ext distlab\nimport distlab\ncluster = distlab.Cluster(2, timeout=20)")
    assert book.status == "ok"
    yield book
    book.client.stop_channels()
    book.manager.shutdown_kernel(now=True)
    assert wait_until_gone(lambda: processes_of(f"{book.pid}-")) == []


def run_script(path: Path, n: int = 2) -> dict[int, list[str]]:
    """What each rank printed under torchrun, by its own log."""
    logs = path.parent / "logs"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
    command += ["--log-dir", str(logs), "--redirects", "1", str(path)]
    environment = {k: v for k, v in os.environ.items() if k not in ("GLOO_SOCKET_IFNAME", "RANK", "WORLD_SIZE")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    return {rank: next(logs.rglob(f"{rank}/stdout.log")).read_text().splitlines() for rank in range(n)}


def test_a_script_of_the_cells_prints_what_they_printed(notebook, tmp_path):
    """Values, prints, pushes, cells of one rank, sent without waiting, calls with the notebook's values: as it was."""
    shown = []
    for source in CELLS:
        shown.append(notebook.text(source))
        assert notebook.status == ("error" if "1 / 0" in source else "ok"), shown[-1]
    path = tmp_path / "cells.py"
    last = notebook.run(f"%%px --export {path}\nt = torch.tensor(rank)\ndist.all_reduce(t)\n{{'sum': t.item()}}")
    report = last[-1]["data"]["text/plain"]
    assert report.splitlines() == [
        f"{path}: 10 cells",
        "  left out: cell 3 (it failed with RankError): print('before it fails')",
        "  left out: a line of cell 4 that only a notebook runs: %time y = 1",
        "Run it: torchrun --standalone --nproc-per-node 2 cells.py",
    ]
    assert run_script(path) == EXPECTED
    # the cells themselves: what the notebook showed, one line of it after the other, is what the script printed
    words = re.sub(r"\s+", " ", " ".join(shown))
    assert "ranks 0-1: one two ranks 0-1 -> tensor(6.)" in words
    assert "rank 1: adam a b rank 1 -> [0, 3]" in words
    assert "[(2, 'end')]" in words
    assert "rank 0 -> (0, 9) rank 1 -> (2, 9)" in words


def test_cells_use_any_name_without_touching_the_script(tmp_path):
    """Names of the script's own lines, of its modules and of Python itself are the cells' to define."""
    cells = [
        ("values = [torch.zeros(1), torch.zeros(1)]\ndist.all_gather(values, torch.ones(1))\nprint(values)", (0, 1)),
        ("print(len(values))\nvalues", (0, 1)),
        ("written = show = turn = sys = os = io = atexit = 'mine'\nfor rank in range(3): print(rank)", (0, 1)),
        ("dist = repr = range = end_of_cell = print_mine = None\nworld_size = 1", (0, 1)),
        ("print('here', rank, world_size)", (0,)),
        ("print(written, show, sys)", (1,)),
    ]
    path = tmp_path / "names.py"
    export([Step("cell", ranks, source) for source, ranks in cells], path, 2, "gloo", 1)
    both = ["[tensor([1.]), tensor([1.])]", "2", "0", "1", "2"]
    printed = run_script(path)
    assert [line for line in printed[0] if "->" not in line] == [f"rank 0: {x}" for x in [*both, "here 2 1"]]
    assert [line for line in printed[1] if "->" not in line] == [f"rank 1: {x}" for x in [*both, "mine mine mine"]]
    assert printed[1][2] == "rank 1 -> [tensor([1.]), tensor([1.])]"


def test_an_export_that_cannot_be_is_refused_before_its_cell_runs(notebook, tmp_path):
    """A file that is there is kept without --force, and the cell has not run."""
    path = tmp_path / "there.py"
    path.write_text("mine")
    notebook.run("%px touched = 0")
    assert "that is not there yet" in notebook.text(f"%%px --export {path}\ntouched = 1")
    assert "--export must be without --noblock" in notebook.text(f"%%px --noblock --export {path} --force\ntouched = 1")
    assert notebook.text("%px touched").endswith("-> 0")
    assert path.read_text() == "mine"
    notebook.run(f"%%px --export {path} --force\ntouched = 1")
    assert "touched = 1" in path.read_text()


def test_ranks_print_in_turn(tmp_path):
    """On one screen the lines of rank 0 come before those of rank 1, cell by cell, whoever is quicker."""

    def slow_to_quick(rank, world_size):
        import time

        for i in range(3):
            time.sleep(0.05 * (world_size - rank))
            print("line", i)

    with distlab.Cluster(2) as cluster:
        cluster.run(slow_to_quick)
        cluster.run(slow_to_quick)
        report = cluster.export(tmp_path / "turns.py")
    assert report.missing == ()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", report.path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [f"rank {rank}: line {i}" for _ in range(2) for rank in (0, 1) for i in range(3)]


def test_steps_begin_anew_with_new_ranks(tmp_path):
    """A restart loses variables and the cells that made them; a failed call and a pushed tensor are told."""
    with distlab.Cluster(1) as cluster:
        cluster.push({"old": 1})
        cluster.restart()
        cluster.push({"weights": torch.ones(2)})
        with pytest.raises(distlab.RankError):
            cluster.run(lambda rank, world_size: 1 / 0)
        report = cluster.export(tmp_path / "new.py")
    text = Path(report.path).read_text()
    assert "old = 1" not in text
    assert "weights (Tensor) is not here: no cell uses it" in text
    assert report.left_out == ("call 1 (it failed with RankError): cluster.run(<lambda>)",)


def test_a_script_says_how_it_is_started(tmp_path):
    """Run by python alone it ends with the command that starts it."""
    with distlab.Cluster(1) as cluster:
        report = cluster.export(tmp_path / "alone.py")
    environment = {k: v for k, v in os.environ.items() if k != "RANK"}
    done = subprocess.run([sys.executable, report.path], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"torchrun starts this script: {report.command}"
