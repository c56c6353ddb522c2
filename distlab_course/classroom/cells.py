"""A code cell of a notebook as plain Python, without IPython's own notation.

Called by the process that marks, and by a teacher's that builds assignments; nothing runs here.
"""

import ast
import re
from typing import NamedTuple

from IPython.core.inputtransformer2 import TransformerManager

WRITTEN = re.compile(r"%%writefile ([\w.]+)\n(.*)", re.DOTALL)
RUNS_HERE = ("%%px", "%%time", "%%capture")  # cell magics after which a cell's names are there


class Cell(NamedTuple):
    """A code cell.

    Attributes:
        label: what reports call it.
        answers: the name of the exercise that it answers; "" for none.
        source: its Python.
        on_ranks: whether it is a %%px cell, whose names the notebook does not have.
        checks: the name of the exercise that it checks; "" for none.
    """

    label: str
    answers: str
    source: str
    on_ranks: bool = False
    checks: str = ""


def cell_of(label: str, answers: str, source: str, checks: str = "") -> Cell:
    """A cell of a notebook as Python.

    The line of a cell magic becomes empty, and so does a cell in another language.
    """
    lines = source.splitlines()
    magic = _magic_of(lines)
    if magic in RUNS_HERE:
        lines[0] = ""
    elif magic:
        lines = []
    python = _python("\n".join(lines))
    return Cell(label, answers, python, on_ranks=magic == "%%px", checks=checks)


def _magic_of(lines: list[str]) -> str:
    """The cell magic with which a cell begins, also after spaces; "" for none."""
    if not lines or not lines[0].lstrip().startswith("%%"):
        return ""
    return lines[0].split()[0]


def _python(source: str) -> str:
    """A cell's text without IPython's own notation, each line where it was."""
    try:
        ast.parse(source)
        return source
    except SyntaxError:
        pass
    python = TransformerManager().transform_cell(source)
    empty = len(source) - len(source.lstrip("\n"))  # which IPython takes away
    return "\n" * empty + python.removesuffix("\n")
