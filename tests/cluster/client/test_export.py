"""A script that was written of cells prints under torchrun, rank by rank, what the cells printed."""

import os
import re

from tests.processes import TORCHRUN, python

CELLS = [
    "%%px\ntext = '''one\n  two'''\nprint(text)\nx = torch.ones(2) * (rank + 1)\ndist.all_reduce(x)\nx.sum()",
    "cluster.push({'steps': 3, 'name': 'adam'})",
    "%%px --targets 1\nprint(name, '''a\n b''', f'''c\n{\n1}\n  d''')\n[i * steps for i in range(2)]",
    "%%px\nprint('before it fails')\nif rank == 1:\n    1 / 0",
    "%%px --noblock --targets 0\ndist.send(torch.ones(1), 1)",
    "%%px --targets 1\ninbox = torch.zeros(1)\ndist.recv(inbox, 0)\ninbox.item()",
    "%px import time; time.sleep(0.2 * (1 - rank)); print('one line')",
    "def double(rank, world_size, tail):\n    print('called')\n    return 2 * rank, tail",
    "cluster.run(double, 'end', ranks=[1])",
    "cluster.push({'twice': double})",
    "%px twice(rank, 2, 9)",
    # names of the script's own lines, of its modules and of Python itself are the cells' to define
    "%%px\nvalues = written = show = turn = sys = os = io = atexit = 'mine'\nrepr = range = end_of_cell = None",
    "%%px\nmy_rank, dist, rank, world_size, print_mine = rank, None, 7, 8, 9\nvalues, rank",
]
EXPECTED = [  # the lines of rank 0 come before those of rank 1, cell by cell, whoever is quicker
    *("rank 0: one", "rank 0:   two", "rank 0 -> tensor(6.)"),
    *("rank 1: one", "rank 1:   two", "rank 1 -> tensor(6.)"),
    *("rank 1: adam a", "rank 1:  b c", "rank 1: 1", "rank 1:   d", "rank 1 -> [0, 3]"),
    "rank 1 -> 1.0",
    *("rank 0: one line", "rank 1: one line"),
    *("rank 1: called", "rank 1 -> (2, 'end')"),
    *("rank 0: called", "rank 0 -> (0, 9)", "rank 1: called", "rank 1 -> (2, 9)"),
    *("rank 0 -> ('mine', 7)", "rank 1 -> ('mine', 7)"),
    *("rank 0 -> {'sum': 1}", "rank 1 -> {'sum': 1}"),
]


def test_a_script_of_the_cells_prints_what_they_printed(notebook, tmp_path):
    """Values, prints, pushes, cells of one rank, cells sent without waiting, calls: as it was, in turn."""
    shown = []
    for source in CELLS:
        shown.append(notebook.text(source))
        assert notebook.status == ("error" if "1 / 0" in source else "ok"), shown[-1]
    path = tmp_path / "cells.py"
    sum_of_ranks = "t = torch.tensor(my_rank)\ntorch.distributed.all_reduce(t)\n{'sum': t.item()}"
    last = notebook.run(f"%%px --export {path}\n{sum_of_ranks}")
    report = last[-1]["data"]["text/plain"]
    assert report.splitlines() == [
        f"{path}: 10 cells",
        "  left out: cell 3 (it failed with RankError): print('before it fails')",
        "Run it: torchrun --standalone --nproc-per-node 2 cells.py",
    ]
    environment = {k: v for k, v in os.environ.items() if k not in ("GLOO_SOCKET_IFNAME", "RANK", "WORLD_SIZE")}
    done = python(*TORCHRUN, path, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == EXPECTED
    # the cells themselves: what the notebook showed, one line of it after the other, is what the script printed
    words = re.sub(r"\s+", " ", " ".join(shown))
    assert "ranks 0-1: one two ranks 0-1 -> tensor(6.)" in words
    assert "rank 1: adam a b c 1 d rank 1 -> [0, 3]" in words
    assert "[(2, 'end')]" in words
    assert "rank 0 -> (0, 9) rank 1 -> (2, 9)" in words


def test_an_export_that_cannot_be_is_refused_before_its_cell_runs(notebook, tmp_path):
    """A file that is there is kept without --force, and the cell has not run."""
    path = tmp_path / "there.py"
    path.write_text("mine")
    notebook.run("%px touched = 0")
    assert notebook.text(f"%%px --export {path}\ntouched = 1") == (
        f"ArgumentError: path must be the name of a file that is not there yet, got {str(path)!r}. "
        "Choose another name, or replace the file: --force, in a call force=True."
    )
    assert "--export must be without --noblock" in notebook.text(f"%%px --noblock --export {path} --force\ntouched = 1")
    assert notebook.text("%px touched").endswith("-> 0")
    assert path.read_text() == "mine"
    notebook.run(f"%%px --export {path} --force\ntouched = 1")
    assert "touched = 1" in path.read_text()


def test_steps_begin_anew_with_new_ranks(notebook, tmp_path):
    """A restart loses variables and the cells that made them; what failed since is told, and not run."""
    notebook.run("%px old = 1\ncluster.restart()")
    notebook.run("cluster.run(lambda rank, world_size: 1 / 0)")
    path = tmp_path / "new.py"
    told = notebook.run(f"cluster.export({str(path)!r})")[-1]["data"]["text/plain"]
    assert told.splitlines()[1] == "  left out: call 1 (it failed with RankError): cluster.run(<lambda>)"
    assert "old = 1" not in path.read_text()
