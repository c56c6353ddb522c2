"""A script that was written of cells prints under torchrun what the cells printed."""

import os

from tests.processes import TORCHRUN, python

CELLS = [
    (
        "%%px\n"
        "text = '''one\n"
        "  two'''\n"
        "print(rank, text.split())\n"
        "x = torch.ones(2) * (rank + 1)\n"
        "dist.all_reduce(x)"
    ),
    "cluster.push({'steps': 3})",
    "%%px --targets 1\nprint(rank, x.sum(), [i * steps for i in range(2)], '''a\n b'''.split())",
    "%%px\nprint('before it fails')\nif rank == 1:\n    1 / 0",
    "%px import time; time.sleep(0.2 * (1 - rank)); print(rank, 'one line')",
]
EXPECTED = [
    *("0 ['one', 'two']", "0 one line", "0 sum 1", "1 ['one', 'two']", "1 one line", "1 sum 1"),
    "1 tensor(6.) [0, 3] ['a', 'b']",
]


def test_a_script_of_the_cells_prints_what_they_printed(notebook, tmp_path):
    """Prints, cells of one rank; not what failed; a pushed value when it is defined by hand."""
    for source in CELLS:
        shown = notebook.text(source)
        assert notebook.status == ("error" if "1 / 0" in source else "ok"), shown
    folder = tmp_path / "a folder"
    folder.mkdir()
    path = folder / "cells.py"
    notebook.run(f"import os\nos.chdir({str(folder)!r})")
    last = notebook.run(
        "%%px --export cells.py\n"
        "t = torch.tensor(rank)\n"
        "dist.all_reduce(t)\n"
        "print(rank, 'sum', t.item())"
    )
    assert last[-1]["data"]["text/plain"].splitlines() == [
        "cells.py: 4 cells",
        "  define by hand, where the script says so: steps",
        "Run it: torchrun --standalone --nproc-per-node 2 cells.py",
    ]
    path.write_text(
        path.read_text().replace("# define steps here: only the notebook has it", "steps = 3")
    )
    environment = {
        k: v for k, v in os.environ.items() if k not in ("GLOO_SOCKET_IFNAME", "RANK", "WORLD_SIZE")
    }
    done = python(*TORCHRUN, "--log-dir", folder, "--redirects", "1", path, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    printed = [
        line for log in folder.glob("*/*/*/stdout.log") for line in log.read_text().splitlines()
    ]
    assert sorted(printed) == sorted(EXPECTED)


def test_steps_begin_anew_with_new_ranks(notebook, tmp_path):
    """A restart loses the cells before it; --force replaces a file that is there."""
    path = tmp_path / "new.py"
    path.write_text("old = 1")
    notebook.run("%px old = 1\ncluster.restart()")
    notebook.run(f"%%px --export {path} --force\nnew = 2")
    assert "old = 1" not in path.read_text()
    assert "new = 2" in path.read_text()
