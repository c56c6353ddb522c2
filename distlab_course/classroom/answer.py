"""An answer as ranks run it: its cells, among names of their own, and the thing they define.

A runner makes an `Answer`, and has `prepare` and `value_on_rank` called; the rest of this file runs
on the ranks, and nowhere else.
"""

import __future__

import ast
import json
import linecache
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from distlab.checking import tampering
from distlab_course.classroom.cells import Cell
from distlab_course.classroom.statements import IMPORTS, statements


class Answer:
    """What a student wrote under a name: a text here, and on a rank the function itself."""

    def __init__(self, cells: Sequence[Cell], name: str):
        self._cells = cells
        self._name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return define, (self._cells, self._name)

    def __call__(self) -> None:
        """It looks like a function, as `check` asks for one."""
        raise NotImplementedError("a student's function runs on ranks only")


def define(cells: Sequence[Cell], name: str) -> Any:
    """What a name stands for after its cells have run among names of their own. Runs on: a rank.

    As in a notebook, a statement that raises ends its cell, and the next cell runs. A name of a
    %%px cell counts where the notebook itself does not have that name.
    """
    given = {
        "__name__": "__main__",
        "torch": torch,
        "dist": dist,
        "rank": dist.get_rank(),
        "world_size": dist.get_world_size(),
    }
    of_ranks: dict[str, Any] = dict(given)
    of_notebook: dict[str, Any] = dict(given)
    first_error: Exception | None = None
    flags = 0
    for cell in cells:
        # where tracebacks, and inspect.getsource, find the lines of the cell
        lines = cell.source.splitlines(keepends=True)
        linecache.cache[cell.label] = (len(cell.source), None, lines, cell.label)
        flags |= _future_flags(cell)
        names = of_notebook
        if cell.on_ranks:
            names = of_ranks
        try:
            for statement in ast.parse(cell.source).body:
                module = ast.Module([statement], [])
                code = compile(module, cell.label, "exec", flags, dont_inherit=True)
                exec(code, names)
        except Exception as error:
            first_error = first_error or error
    for known, value in of_ranks.items():
        of_notebook.setdefault(known, value)
    if name not in of_notebook and first_error is not None:
        raise first_error
    return of_notebook[name]


def _future_flags(cell: Cell) -> int:
    """The compiler flags of `from __future__ import` in a cell; they hold in later cells, too."""
    flags = 0
    for node in statements(cell):
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for alias in node.names:
                flags |= getattr(__future__, alias.name).compiler_flag
    return flags


def value_on_rank(rank: int, world_size: int, cells: Sequence[Cell], name: str) -> str:
    """A value that a student found, as JSON, so that nothing of theirs comes along.

    Runs on: a rank.
    """
    return json.dumps(define(cells, name), default=lambda value: value.tolist())


def prepare(rank: int, world_size: int, cells: Sequence[Cell]) -> None:
    """Remember what torch, Python and distlab are like; import what the cells import.

    It is called before anything of a student's runs; imports may take longer than a call of an
    answer may. Runs on: every rank.
    """
    tampering.remember_functions()
    for cell in cells:
        for node in statements(cell):
            is_future = getattr(node, "module", "") == "__future__"
            if isinstance(node, IMPORTS) and not is_future:
                code = compile(ast.Module([node], []), "<imports>", "exec")
                exec(code, {"__name__": "__main__"})
