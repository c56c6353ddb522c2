"""What a cell starts and IPython would only show ends the cell: %run, modules, reprs."""

import pytest

import distlab
from tests.cluster.conftest import px
from tests.refused import raised

CLUSTER = {"n": 2, "timeout": 20}
pytestmark = pytest.mark.usefixtures("quick_watch")

RAISES = 'data = "x"\nraise ValueError(data)\n'
ONE_RAISES = """
import torch.distributed as dist
if dist.get_rank() == 1:
    raise ValueError("no data")
dist.barrier()
"""
FAILING = {  # options of %run, the script, its line that the report shows
    "an exception": ("", RAISES, "raised ValueError: x", "script.py:2   raise ValueError(data)"),
    "in the names of cells": (
        "-i",
        RAISES,
        "raised ValueError: x",
        "script.py:2   raise ValueError(data)",
    ),
    "timed": ("-t", RAISES, "raised ValueError: x", "script.py:2   raise ValueError(data)"),
    "words of an exit": (
        "",
        'import sys\nsys.exit("no such file")\n',
        "raised SystemExit: no such file",
        "script.py:2   sys.exit(",
    ),
    "an exit status": (
        "",
        "import sys\nsys.exit(3)\n",
        "raised SystemExit: 3",
        "script.py:2   sys.exit(3)",
    ),
    "a syntax error": (
        "",
        "x = 1\nif x\n",
        "raised SyntaxError: expected ':'",
        "script.py:2   if x",
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_what_a_script_raises_ends_the_cell(usable, tmp_path, name, capsys):
    """With the script's line; the cell does not go on."""
    options, script, words, line = FAILING[name]
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    error = raised(
        distlab.RankError, px, usable, f"%run {options} {tmp_path}/script.py\nprint('went on')"
    )
    assert str(error).startswith(f"ranks 0-1 {words}\n")
    assert line in str(error)
    assert capsys.readouterr() == ("", "")


def test_a_script_that_raises_on_one_rank_is_the_culprit(usable, tmp_path):
    """The other one waits for it in a barrier."""
    (tmp_path / "script.py").write_text(ONE_RAISES, encoding="utf-8")
    error = raised(distlab.RankError, px, usable, f"%run {tmp_path}/script.py")
    magic = f"get_ipython().run_line_magic('run', '{tmp_path}/script.py')"
    assert str(error) == (
        "rank 1 raised ValueError: no data\n"
        f"  rank 1   line 2   {magic}\n"
        '           script.py:4   raise ValueError("no data")\n'
        "rank 0 waited in communication and could not go on:\n"
        f"  rank 0   line 2   {magic}\n"
        "           script.py:5   dist.barrier()\n"
        "The process group is rebuilt and variables are kept: change the cell and run it again."
    )


RIGHT = {
    "no exit": ("", "print('ran')\n"),
    "sys.exit()": ("", "import sys\nprint('ran')\nsys.exit()\n"),
    "sys.exit(0)": ("", "import sys\nprint('ran')\nsys.exit(0)\n"),
    "a status that is ignored": ("-e", "import sys\nprint('ran')\nsys.exit(3)\n"),
    "an exception of the past": (
        "",
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    print('ran')\n",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_script_that_ends_well_ends_no_cell(usable, tmp_path, name, capsys):
    """Also by sys.exit without a status; then the cell goes on."""
    options, script = RIGHT[name]
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    px(usable, f"%run {options} {tmp_path}/script.py\nprint('went on')")
    assert capsys.readouterr().out == "ranks 0-1: ran\n           went on\n"


def test_a_module_ends_the_cell_too(usable, tmp_path):
    """%run -m."""
    (tmp_path / "a_module.py").write_text(RAISES, encoding="utf-8")
    px(usable, f"import sys\nsys.path.insert(0, {str(tmp_path)!r})")
    error = raised(distlab.RankError, px, usable, "%run -m a_module")
    px(usable, "del sys.path[0]")
    assert str(error).startswith("ranks 0-1 raised ValueError: x\n")


def test_a_value_without_a_repr_ends_the_cell(usable):
    """IPython shows why, and calls the cell a success."""
    code = "class Odd:\n    def __repr__(self):\n        raise KeyError('no words')\nOdd()"
    error = raised(distlab.RankError, px, usable, code)
    assert str(error).startswith("ranks 0-1 raised KeyError: 'no words'\n")
    assert "line 4 in __repr__   raise KeyError('no words')" in str(error)


def test_an_old_exception_that_is_shown_again_is_none(usable):
    """%tb shows the last one."""
    raised(distlab.RankError, px, usable, "1 / 0")
    px(usable, "%tb")
    px(usable, "1 + 1")


def write_by_descriptor(rank, world_size):
    with open(1, "w", closefd=False) as stdout:
        return stdout.fileno()


def test_a_function_by_value_has_pythons_open(usable):
    """IPython's, which cells have, refuses the descriptors 0 to 2."""
    assert usable.run(write_by_descriptor) == [1, 1]
    px(usable, "def open(name, *_): return f'own {name}'")
    by_value = {"__name__": "nowhere", "__builtins__": __builtins__}
    exec("def opened(rank, world_size): return open('file')", by_value)
    found = usable.run(by_value["opened"])
    px(usable, "del open")
    assert found == ["own file"] * 2
