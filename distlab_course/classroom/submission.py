"""What a student wrote, as the judge runs it: on ranks, and never in the process that decides.

The cells of a notebook are not run. What a function may need of them is taken out of their text: definitions, imports,
names of plain values; from the cell that holds the answer, everything but bare calls. `Answer` runs on the ranks.
"""

import ast
import json
import linecache
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)
STUB = "NotImplementedError"
WRITTEN = re.compile(r"%%writefile ([\w.]+)\n(.*)", re.DOTALL)
# With these a program can read the reference, or change what compares; a lab's own statements may use them.
MODULES = {"distlab", "distlab_course", "sys", "importlib", "inspect", "gc", "ctypes", "builtins", "linecache"}
NAMES = {"exec", "eval", "compile", "__import__", "globals", "vars"}
ATTRIBUTES = {"f_back", "__globals__", "__subclasses__", "__closure__", "__code__", "__builtins__", "__dict__"}


class Refused(Exception):
    """The answer cannot be run, or a person has to read it; says why."""


class Cell(NamedTuple):
    """A code cell: what reports call it, the name of the exercise that it answers ("" for none), and its Python."""

    label: str
    answers: str
    source: str


class Answer:
    """What a student wrote under a name: only a text here, and on a rank, where it arrives, the function itself."""

    def __init__(self, cells: Sequence[Cell], name: str):
        self._cells, self._name = cells, name

    def __reduce__(self) -> tuple[Any, ...]:
        return define, (self._cells, self._name)

    def __call__(self) -> None:
        """It looks like a function, as `check` asks for one."""
        raise NotImplementedError("a student's function runs on ranks only")


def define(cells: Sequence[Cell], name: str) -> Any:
    """What a name stands for after its cells have run among names of their own. Runs on: a rank."""
    names: dict[str, Any] = {"__name__": "__main__", "torch": torch, "dist": dist}
    names |= {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    for cell in cells:
        linecache.cache[cell.label] = (len(cell.source), None, cell.source.splitlines(keepends=True), cell.label)
        exec(compile(cell.source, cell.label, "exec"), names)
    return names[name]


def value_on_rank(rank: int, world_size: int, cells: Sequence[Cell], name: str) -> str:
    """A value that a student found, as JSON, so that nothing of theirs comes along. Runs on: a rank."""
    return json.dumps(define(cells, name), default=lambda value: value.tolist())


def import_all(rank: int, world_size: int, cells: Sequence[Cell]) -> None:
    """Import what the cells import, which may take longer than a call of an answer may. Runs on: every rank."""
    for node in (node for cell in cells for node in statements(cell) if isinstance(node, IMPORTS)):
        exec(compile(ast.Module([node], []), "<imports>", "exec"), {"__name__": "__main__"})


def cell_of(label: str, answers: str, source: str) -> Cell:
    """A cell of a notebook: magics and shell commands become empty lines, other languages an empty cell."""
    lines = source.splitlines()
    if lines and lines[0].startswith("%%") and not lines[0].startswith("%%px"):
        lines = []
    return Cell(label, answers, "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in lines))


def needed_for(name: str, submitted: Sequence[Cell], lab: Sequence[Cell]) -> list[Cell]:
    """The parts of the submitted cells that the answer to an exercise needs, each line where it was.

    Raises:
        Refused: it is no Python, it defines no such name, or it uses what only a person should judge.
    """
    chosen = reachable(name, submitted)
    if not any(name in binds(node) for nodes in chosen for node in nodes):
        raise Refused(f"No cell defines {name}.")
    new = [node for nodes in chosen for node in without(lab, nodes)]
    if found := next(filter(None, map(_suspect, new)), ""):
        words = f"It uses {found}, by which a program can read the answer or change the check"
        raise Refused(f"{words}, so a person has to mark it.")
    return [cell._replace(source=only(cell.source, nodes)) for cell, nodes in zip(submitted, chosen, strict=True)]


def reachable(name: str, cells: Sequence[Cell]) -> list[list[ast.stmt]]:
    """For each cell, the statements on which the answer to an exercise may depend, by the names in them.

    Of the cell that answers it, all but bare calls; of others, imports, definitions, and names of plain values.
    """
    offered = [_own(cell) if cell.answers == name else list(filter(_is_definition, statements(cell))) for cell in cells]
    chosen: list[ast.stmt] = [
        node for cell, nodes in zip(cells, offered, strict=True) for node in nodes if cell.answers == name
    ]
    names, more = {name}, chosen
    while more:
        names |= {part.id for node in more for part in ast.walk(node) if isinstance(part, ast.Name)}
        more = [node for nodes in offered for node in nodes if node not in chosen and binds(node) & names]
        chosen = chosen + more
    return [[node for node in nodes if node in chosen] for nodes in offered]


def without(lab: Sequence[Cell], nodes: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements that a lab has not: neither the same one, nor an import of the same."""
    known, imported = _in_lab(tuple(lab))
    return [
        node
        for node in nodes
        if ast.unparse(node) not in known and not (isinstance(node, IMPORTS) and _imported(node) <= imported)
    ]


@cache
def _in_lab(cells: tuple[Cell, ...]) -> tuple[set[str], set[str]]:
    """A lab's statements, as Python writes them, and what it imports; a lab is asked for each cell of each answer."""
    there = [node for cell in cells for node in statements(cell)]
    return {ast.unparse(node) for node in there}, {name for node in there for name in _imported(node)}


def is_stub(name: str, cells: Sequence[Cell]) -> bool:
    """Whether the last thing of that name only raises NotImplementedError, or is `...`."""
    last = [node for cell in cells for node in statements(cell) if name in binds(node)][-1]
    if isinstance(last, DEFINITIONS):
        body = [node for node in last.body if not isinstance(node, ast.Expr)]
        return len(body) == 1 and isinstance(body[0], ast.Raise) and STUB in ast.unparse(body[0])
    return isinstance(last, ast.Assign) and ast.unparse(last.value) in ("...", "None")


def statements(cell: Cell) -> list[ast.stmt]:
    """The statements of a cell; none if it is no Python."""
    try:
        return ast.parse(cell.source).body
    except SyntaxError:
        return []


def _own(cell: Cell) -> list[ast.stmt]:
    try:
        return [node for node in ast.parse(cell.source).body if not isinstance(node, ast.Expr)]
    except SyntaxError as error:
        raise Refused(f"SyntaxError in line {error.lineno} of the answer: {error.msg}.") from None


def _is_definition(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Assign):
        return isinstance(node, (*DEFINITIONS, *IMPORTS))
    try:
        ast.literal_eval(node.value)
    except (ValueError, TypeError):
        return False
    return True


def binds(node: ast.stmt) -> set[str]:
    """The names that a statement defines, at the top of it."""
    if isinstance(node, DEFINITIONS):
        return {node.name}
    if isinstance(node, IMPORTS):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def _imported(node: ast.AST) -> set[str]:
    """The full names of what a statement imports."""
    before = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    return {before + alias.name for alias in node.names} if isinstance(node, IMPORTS) else set()


def only(source: str, nodes: Sequence[ast.stmt]) -> str:
    """The source with the lines of these statements alone."""
    wanted: set[int] = set()
    for node in nodes:
        first = min(part.lineno for part in [node, *getattr(node, "decorator_list", [])])
        wanted.update(range(first, (node.end_lineno or first) + 1))
    return "\n".join(line if number in wanted else "" for number, line in enumerate(source.splitlines(), 1))


def _suspect(statement: ast.stmt) -> str:
    """What in a statement is for a person to look at; "" for nothing."""
    for node in ast.walk(statement):
        if found := [name for name in _imported(node) if name.split(".")[0] in MODULES]:
            return min(found)
        if isinstance(node, ast.Name) and node.id in NAMES:
            return node.id
        if isinstance(node, ast.Attribute):
            of_distlab = isinstance(node.value, ast.Name) and node.value.id == "distlab" and node.attr.islower()
            if of_distlab or node.attr in ATTRIBUTES:
                return f"{'distlab' if of_distlab else ''}.{node.attr}"
    return ""
