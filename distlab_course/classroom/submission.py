"""What an answer in a submitted notebook needs, chosen by the text of its cells.

Called by the process that marks, by the judge's, and by a teacher's that builds assignments. It
only reads: none of the text is run. A check in a notebook sees what stands above it. So does an
answer here: of the cells above its check it gets what its names need, each statement in its order,
and of its own cell everything but bare calls. Nothing below the check counts. What an answer must
not use before a person has read it is in `suspicions.py`.
"""

import ast
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import NamedTuple

from distlab_course.classroom.cells import Cell
from distlab_course.classroom.statements import (
    DEFINITIONS,
    IMPORTS,
    binds,
    imported_by,
    is_definition,
    is_for_its_own_sake,
    names_in,
    only,
    statements,
    touches,
)

STUB = "NotImplementedError"
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Refused(Exception):
    """The answer cannot be run; says why."""


def seen_by_check(name: str, cells: Sequence[Cell]) -> Sequence[Cell]:
    """The cells that a notebook has run when it checks an exercise.

    They are all cells where it has neither the answer nor the check of the exercise.
    """
    end = len(cells)
    for place, cell in enumerate(cells):
        if name in (cell.answers, cell.checks):
            end = place + 1
    return cells[:end]


def needed_for(name: str, submitted: Sequence[Cell], lab: Sequence[Cell]) -> list[Cell]:
    """The parts of submitted cells that the answer to an exercise needs, each line where it was.

    Raises:
        Refused: it is no Python, or it defines no such name.
    """
    above = seen_by_check(name, submitted)
    chosen = reachable(name, above, lab)
    if not any(name in binds(node) for node in chain.from_iterable(chosen)):
        raise Refused(f"No cell defines {name}.")
    needed = []
    for cell, nodes in zip(above, chosen, strict=True):
        needed.append(cell._replace(source=only(cell.source, nodes)))
    return needed


def defined_only_below(name: str, submitted: Sequence[Cell], needed: Sequence[Cell]) -> str:
    """A name that an answer uses and that only a cell below its check defines; "" for none.

    Such an answer has worked for a student who ran the cells in another order than the notebook's.
    """
    known: set[str] = set()
    used: set[str] = set()
    for cell in needed:
        for node in statements(cell):
            known |= binds(node)
            used |= names_in(node)
    wanted = used - known
    above = seen_by_check(name, submitted)
    below = submitted[len(above) :]
    for cell in below:
        for node in statements(cell):
            if isinstance(node, DEFINITIONS) and node.name in wanted:
                return node.name
    return ""


def reachable(
    name: str, cells: Sequence[Cell], lab: Sequence[Cell] | None = None
) -> list[list[ast.stmt]]:
    """For each cell, the statements on which the answer to an exercise may depend, by their names.

    Of the cell that answers it, all but bare calls. Of others, imports, definitions, and names of
    plain values; with `lab`, also whatever else a student wrote there that only gives a name its
    value.
    """
    in_lab = None
    if lab is not None:
        in_lab = _in_lab(tuple(lab)).statements
    names = {name}
    chosen: set[ast.stmt] = set()
    offered: list[list[ast.stmt]] = []  # by cell
    for cell in cells:
        if cell.answers == name:
            nodes = _own(cell)
            for node in nodes:
                chosen.add(node)
                names |= names_in(node)
        else:
            nodes = _of_other(cell, in_lab)
        offered.append(nodes)
    rest = [node for node in chain.from_iterable(offered) if node not in chosen]
    while more := [node for node in rest if touches(node) & names]:
        for node in more:
            chosen.add(node)
            names |= names_in(node)
        rest = [node for node in rest if node not in chosen]
    needed = []
    for nodes in offered:
        needed.append([node for node in nodes if node in chosen])
    return needed


def without(lab: Sequence[Cell], nodes: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements that a lab does not have: neither the same one, nor an import of the same."""
    found = []
    known = _in_lab(tuple(lab))
    for node in nodes:
        is_known_import = isinstance(node, IMPORTS) and imported_by(node) <= known.imported
        if ast.unparse(node) not in known.statements and not is_known_import:
            found.append(node)
    return found


class _InLab(NamedTuple):
    """A lab's statements, as Python writes them, and the full names of what it imports."""

    statements: set[str]
    imported: set[str]


@cache
def _in_lab(cells: tuple[Cell, ...]) -> _InLab:
    """What a lab has. It is cached, because it is asked for with each cell of each answer."""
    found = _InLab(set(), set())
    for cell in cells:
        for node in statements(cell):
            found.statements.add(ast.unparse(node))
            found.imported.update(imported_by(node))
    return found


def is_stub(name: str, cells: Sequence[Cell]) -> bool:
    """Whether the last thing of that name only raises NotImplementedError, or is `...`."""
    in_notebook: list[ast.stmt] = []
    on_ranks: list[ast.stmt] = []
    for cell in cells:
        defined = [node for node in statements(cell) if name in binds(node)]
        if cell.on_ranks:
            on_ranks += defined
        else:
            in_notebook += defined
    # as in `define`, a name of the notebook's stands before one of a %%px cell
    last = (in_notebook or on_ranks)[-1]
    if isinstance(last, DEFINITIONS):
        return _only_raises(last)
    return isinstance(last, ast.Assign) and ast.unparse(last.value) in ("...", "None")


def _only_raises(definition: Definition) -> bool:
    """Whether a function does nothing but raise NotImplementedError."""
    body = [node for node in definition.body if not isinstance(node, ast.Expr)]
    if len(body) != 1:
        return False
    return isinstance(body[0], ast.Raise) and STUB in ast.unparse(body[0])


def _own(cell: Cell) -> list[ast.stmt]:
    """Of the cell with the answer: all but bare calls, and what it does with a cluster."""
    try:
        found = ast.parse(cell.source).body
    except SyntaxError as error:
        raise Refused(f"SyntaxError in line {error.lineno} of the answer: {error.msg}.") from None
    return [node for node in found if not is_for_its_own_sake(node)]


def _of_other(cell: Cell, lab: set[str] | None) -> list[ast.stmt]:
    """Of another cell: definitions, and what else a student wrote that only gives names values."""
    found = []
    for node in statements(cell):
        by_student = lab is not None and ast.unparse(node) not in lab
        if is_definition(node) or (by_student and not is_for_its_own_sake(node)):
            found.append(node)
    return found
