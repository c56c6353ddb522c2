"""What a student wrote, taken out of the text of a notebook, and run on ranks.

The marking process calls `cell_of` and `needed_for`, which read and run nothing; `Answer` runs on
the ranks. A check in a notebook sees what stands above it. So does an answer here: of the cells
above its check it gets what its names need, each statement in its order, and of its own cell
everything but bare calls. Nothing below the check counts. What an answer must not use before a
person has read it is in `suspicions.py`.
"""

import __future__

import ast
import json
import linecache
import re
import symtable
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from IPython.core.inputtransformer2 import TransformerManager

from distlab.checking import patches

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)
STUB = "NotImplementedError"
WRITTEN = re.compile(r"%%writefile ([\w.]+)\n(.*)", re.DOTALL)
RUNS_HERE = ("%%px", "%%time", "%%capture")  # cell magics after which a cell's names are there
# what a cell calls at once for its own sake: an answer calls them later
NOT_FOR_AN_ANSWER = {"cluster", "dist"}


class Refused(Exception):
    """The answer cannot be run; says why."""


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


# --- on a rank ---


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

    As in a notebook, a statement that raises ends its cell, and the next cell runs; names of %%px
    cells are those that the notebook itself has not.
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
        try:
            for statement in ast.parse(cell.source).body:
                module = ast.Module([statement], [])
                code = compile(module, cell.label, "exec", flags, dont_inherit=True)
                exec(code, of_ranks if cell.on_ranks else of_notebook)
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
    """Remember what torch and Python are like, and import what the cells import.

    It is called before anything of a student's runs; imports may take longer than a call of an
    answer may. Runs on: every rank.
    """
    patches.remember()
    for cell in cells:
        for node in statements(cell):
            if isinstance(node, IMPORTS) and getattr(node, "module", "") != "__future__":
                code = compile(ast.Module([node], []), "<imports>", "exec")
                exec(code, {"__name__": "__main__"})


# --- cells of a notebook ---


def cell_of(label: str, answers: str, source: str, checks: str = "") -> Cell:
    """A cell of a notebook as Python.

    The line of a cell magic becomes empty, and so does a cell in another language.
    """
    lines = source.splitlines()
    first_word = ""
    if lines and lines[0].strip():
        first_word = lines[0].split()[0]
    if first_word.startswith("%%"):
        lines = ["", *lines[1:]] if first_word in RUNS_HERE else []
    python = _python("\n".join(lines))
    return Cell(label, answers, python, on_ranks=first_word == "%%px", checks=checks)


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


def seen_by_check(name: str, cells: Sequence[Cell]) -> Sequence[Cell]:
    """The cells that a notebook has run when it checks an exercise.

    They are all cells where it has neither the answer nor the check of the exercise.
    """
    places = [place for place, cell in enumerate(cells) if name in (cell.answers, cell.checks)]
    return cells[: places[-1] + 1] if places else cells


def needed_for(name: str, submitted: Sequence[Cell], lab: Sequence[Cell]) -> list[Cell]:
    """The parts of submitted cells that the answer to an exercise needs, each line where it was.

    Raises:
        Refused: it is no Python, or it defines no such name.
    """
    above = seen_by_check(name, submitted)
    chosen = reachable(name, above, lab)
    if not any(name in binds(node) for node in chain.from_iterable(chosen)):
        raise Refused(f"No cell defines {name}.")
    return [
        cell._replace(source=only(cell.source, nodes))
        for cell, nodes in zip(above, chosen, strict=True)
    ]


def defined_only_below(name: str, submitted: Sequence[Cell], needed: Sequence[Cell]) -> str:
    """A name that an answer uses and that only a cell below its check defines; "" for none.

    Whoever ran the cells in another order than the notebook's has an answer that worked.
    """
    known: set[str] = set()
    used: set[str] = set()
    for cell in needed:
        for node in statements(cell):
            known |= binds(node)
            used |= names_in(node)
    wanted = used - known
    above = seen_by_check(name, submitted)
    for cell in submitted[len(above) :]:
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
    in_lab = None if lab is None else _in_lab(tuple(lab)).statements
    offered = []
    chosen: set[ast.stmt] = set()
    for cell in cells:
        if cell.answers == name:
            nodes = _own(cell)
            chosen.update(nodes)
        else:
            nodes = _of_other(cell, in_lab)
        offered.append(nodes)
    names = {name}.union(*map(names_in, chosen))
    while True:
        left = [node for node in chain.from_iterable(offered) if node not in chosen]
        more = [node for node in left if touches(node) & names]
        if not more:
            break
        chosen.update(more)
        names.update(*map(names_in, more))
    return [[node for node in nodes if node in chosen] for nodes in offered]


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
        found = on_ranks if cell.on_ranks else in_notebook
        found += [node for node in statements(cell) if name in binds(node)]
    # as in `define`, a name of the notebook's stands before one of a %%px cell
    last = in_notebook[-1] if in_notebook else on_ranks[-1]
    if isinstance(last, DEFINITIONS):
        body = [node for node in last.body if not isinstance(node, ast.Expr)]
        return len(body) == 1 and isinstance(body[0], ast.Raise) and STUB in ast.unparse(body[0])
    return isinstance(last, ast.Assign) and ast.unparse(last.value) in ("...", "None")


# --- statements ---


def statements(cell: Cell) -> list[ast.stmt]:
    """The statements of a cell; none if it is no Python."""
    try:
        return ast.parse(cell.source).body
    except SyntaxError:
        return []


def _own(cell: Cell) -> list[ast.stmt]:
    """Of the cell with the answer: all but bare calls, and what it does with a cluster."""
    try:
        found = ast.parse(cell.source).body
    except SyntaxError as error:
        raise Refused(f"SyntaxError in line {error.lineno} of the answer: {error.msg}.") from None
    return [node for node in found if not _is_for_its_own_sake(node)]


def _of_other(cell: Cell, lab: set[str] | None) -> list[ast.stmt]:
    """Of another cell: definitions, and what else a student wrote that only gives names values."""
    found = []
    for node in statements(cell):
        by_student = lab is not None and ast.unparse(node) not in lab
        if _is_definition(node) or (by_student and not _is_for_its_own_sake(node)):
            found.append(node)
    return found


def _is_definition(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Assign):
        return isinstance(node, (*DEFINITIONS, *IMPORTS))
    try:
        ast.literal_eval(node.value)
    except (ValueError, TypeError):
        return False
    return True


def _is_for_its_own_sake(node: ast.stmt) -> bool:
    """Whether a statement is there for what it does or shows, and not for the names it defines."""
    if isinstance(node, (*DEFINITIONS, *IMPORTS)):
        return False
    if isinstance(node, ast.Expr) and not _changed_by_call(node):
        return True
    calls = [part for part in _at_once(node) if isinstance(part, ast.Call)]
    return any(_root(call.func) in NOT_FOR_AN_ANSWER for call in calls)


def _at_once(node: ast.AST) -> list[ast.AST]:
    """The parts of a statement that run when it runs: not the bodies of functions in it."""
    found = [node]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        inner: list[ast.AST] = [*node.decorator_list, node.args]
    elif isinstance(node, ast.Lambda):
        inner = [node.args]
    else:
        inner = list(ast.iter_child_nodes(node))
    for part in inner:
        found += _at_once(part)
    return found


def _root(node: ast.AST) -> str:
    """The name with which `name.a[0].b` begins; "" if it begins with none."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _changed_by_call(node: ast.AST) -> str:
    """The name whose value a bare call of a method may change, as in `found.append(3)`.

    It is "" for another statement.
    """
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return ""
    if not isinstance(node.value.func, ast.Attribute):
        return ""
    root = _root(node.value.func)
    return "" if root in NOT_FOR_AN_ANSWER else root


def binds(node: ast.stmt) -> set[str]:
    """The names that a statement defines, at the top of it."""
    if isinstance(node, DEFINITIONS):
        return {node.name}
    if isinstance(node, IMPORTS):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    found = set()
    for part in _at_once(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            found.add(part.id)
        elif isinstance(part, (*DEFINITIONS, *IMPORTS)):  # under an `if` or a `try`
            found |= binds(part)
    return found


def touches(node: ast.stmt) -> set[str]:
    """The names that a statement defines, and those whose value it may change."""
    found = binds(node)
    if isinstance(node, (*DEFINITIONS, *IMPORTS)):
        return found
    for part in _at_once(node):
        if isinstance(part, (ast.Attribute, ast.Subscript)) and isinstance(part.ctx, ast.Store):
            found.add(_root(part))
        if changed := _changed_by_call(part):
            found.add(changed)
    return found - {""}


def names_in(node: ast.stmt) -> set[str]:
    """The global names that a statement, or a function in it, uses.

    Parameters and variables of functions are not among them.
    """
    try:
        table = symtable.symtable(ast.unparse(node), "<statement>", "exec")
    except SyntaxError:  # as a `return` outside of a function
        return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    found = {symbol.get_name() for symbol in table.get_symbols()}
    tables = table.get_children()
    while tables:
        inner = tables.pop()
        found |= {symbol.get_name() for symbol in inner.get_symbols() if symbol.is_global()}
        tables += inner.get_children()
    return found


def imported_by(node: ast.AST) -> set[str]:
    """The full names of what a statement imports."""
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        return set()
    before = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    return {before + alias.name for alias in node.names}


def only(source: str, nodes: Sequence[ast.stmt]) -> str:
    """The source with the lines of these statements alone."""
    wanted: set[int] = set()
    for node in nodes:
        first = min(part.lineno for part in [node, *getattr(node, "decorator_list", [])])
        wanted.update(range(first, (node.end_lineno or first) + 1))
    lines = enumerate(source.splitlines(), 1)
    return "\n".join(line if number in wanted else "" for number, line in lines)
