"""A cell as the ranks compile it: its lines are numbered as the notebook shows them."""

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from distlab.notebook.magics import with_first_line

FIRST = "%%px --timeout 60"
CELLS = {  # below the first line; `here` stands on the line that is looked for
    "x = 1\nhere()\n": 3,
    "\n\nhere()": 4,
    "  x = 1\n  if x:\n      here()": 4,
    "    \n  x = 1\n  here()": 4,
    "from __future__ import annotations\nhere()": 3,
    "!ls\nhere()": 3,
    "%%time\nhere()": 2,
    "\n%%bash --out x\nhere()": 3,
}


def compiled(cell):
    """What IPython compiles, and its lines."""
    code = TransformerManager().transform_cell(with_first_line(FIRST, cell))
    compile(code, "cell", "exec")
    return code, code.splitlines()


@pytest.mark.parametrize(("cell", "line"), CELLS.items())
def test_lines_have_the_notebooks_numbers(cell, line):
    _, lines = compiled(cell)
    assert lines[0] == f"# {FIRST}"
    assert ["here()" in text for text in lines].index(True) == line - 1


def test_what_another_magic_runs_as_a_cell_has_them_too():
    """It gets comments in the places of both magics; what is no Python stays as it is."""
    code, _ = compiled("\n%%capture out\nx = 1\nhere()\n")
    assert repr(f"# {FIRST}\n\n# %%capture out\nx = 1\nhere()\n") in code
    code, _ = compiled("%%writefile work.py\nx = 1\n")
    assert code.endswith("get_ipython().run_cell_magic('writefile', 'work.py', 'x = 1\\n')\n")


def test_a_question_about_a_magic_stays_one():
    assert "pinfo" in compiled("%%timeit?")[0]
