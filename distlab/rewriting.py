"""A cell's source as a part of a script: its value shown, a notebook's own lines commented, and what names it uses.

Runs on the notebook's kernel, called by history.py, export.py and drafting.py. Text is changed only where it must be:
comments and layout stay.
"""

from __future__ import annotations

import ast
import functools
import io
import linecache
import symtable
import sys
import token
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distlab.history import Value

AWAITS = "it awaits at its top level, which a script cannot"


@dataclass(frozen=True)
class Rewritten:
    """A cell as a part of a script.

    Args:
        text: Python that ends with a line break.
        defines: names that it binds for the ranks, each with the statement that does, "" where several do.
        own_lines: lines that only a notebook runs, which are comments in the text.
        futures: imports from __future__, which belong at the top of a script.
        refused: why it cannot be part of a script; "" when it can.
    """

    text: str = ""
    defines: Mapping[str, str] = field(default_factory=dict)
    own_lines: tuple[str, ...] = ()
    futures: tuple[str, ...] = ()
    refused: str = ""


def cell(source: str) -> Rewritten:
    """A %%px cell, whose last value is shown as the notebook shows it."""
    plain = as_python(source)
    try:
        tree = ast.parse(plain)
    except SyntaxError as error:
        return Rewritten(refused=f"it is not Python ({error.msg})")
    edits, own, futures = [], [], []
    for statement in _simple_statements(tree):
        if any(isinstance(node, ast.Name) and node.id == "get_ipython" for node in ast.walk(statement)):
            line = _segment(_original(source, plain), statement)
            own.append(line.splitlines()[0])
            edits.append((statement, _pass(plain, statement, f"only a notebook runs this line: {own[-1]}")))
        elif isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            futures.append(_segment(plain, statement))
            why = "its import from __future__ is at the top of this script"
            edits.append((statement, _pass(plain, statement, why)))
        elif statement is tree.body[-1] and _has_value(statement) and not _semicolon_follows(plain, statement):
            edits.append((statement, f"_show_value({_as_argument(_segment(plain, statement))})"))
    text = _edited(plain, edits).rstrip() + "\n"
    try:
        compile(text, "<cell>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return Rewritten(refused=AWAITS if "await" in error.msg or "async" in error.msg else f"of {error.msg}")
    return Rewritten(text, _bindings(text), tuple(own), tuple(futures))


def as_python(source: str) -> str:
    """The source with a notebook's own lines, such as %time and !ls, as calls of get_ipython()."""
    from IPython.core.inputtransformer2 import TransformerManager

    return TransformerManager().transform_cell(source)


def names_used(sources: Sequence[str]) -> set[str]:
    """Every name that the cells read."""
    found = set()
    for source in sources:
        try:
            tree = ast.parse(as_python(source))
        except SyntaxError:
            continue
        found |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return found


def global_names(source: str) -> set[str]:
    """The names that the source of a function, class or lambda takes from around it."""
    try:
        pending = [symtable.symtable(source, "<source>", "exec")]
    except SyntaxError:
        return set()
    found = set()
    while pending:
        table = pending.pop()
        pending += table.get_children()
        top = table.get_type() == "module"
        found |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global())}
    return found


def is_same(name: str, one: str, other: str) -> bool:
    """Whether two pieces of code define a name alike: but for comments and layout, or as imports of one thing."""
    if ast.dump(ast.parse(one)) == ast.dump(ast.parse(other)):
        return True
    imported = _imported(name, one)
    return imported is not None and imported is _imported(name, other)


def source_of(value: Value) -> str:
    """The source of a function, lambda or class that a person wrote, without indentation.

    It is "" when it is not found, or does not stand alone, as with the variables of a function around it (nonlocal).
    """
    code = value.code
    if code is None:
        return ""
    text = "".join(linecache.getlines(code.co_filename))
    found = [node for node in _definitions(text) if _is_source(node, value)]
    if len(found) > 1:  # several lambdas on a line
        same = (code.co_code, code.co_consts[1:], code.co_names, code.co_varnames)
        found = [node for node in found if _compiled(node) == same]
    if len(found) != 1:
        return ""
    if isinstance(found[0], ast.Lambda):
        segment = _segment(text, found[0])
        source = f"({segment})" if "\n" in segment else segment
    else:
        source = _dedented(_lines_of(text, found[0]))
    return source if _stands_alone(source) else ""


@functools.lru_cache(maxsize=16)  # each call looks for several functions in the same few files
def _definitions(text: str) -> tuple[ast.AST, ...]:
    """The functions, lambdas and classes of a file."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return ()
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    return tuple(node for node in ast.walk(tree) if isinstance(node, kinds))


def indented(source: str) -> str:
    """The source four columns to the right, but for lines that begin inside of a string."""
    inside = _inside_strings(source)
    lines = source.splitlines(keepends=True)
    return "".join(line if i in inside or not line.strip() else f"    {line}" for i, line in enumerate(lines, 1))


def _dedented(source: str) -> str:
    """The source of a definition without the margin of its first line, but for lines that begin inside of a string."""
    margin = source[: len(source) - len(source.lstrip())]
    inside = _inside_strings(source)
    lines = source.splitlines(keepends=True)
    return "".join(line if i in inside else line.removeprefix(margin) for i, line in enumerate(lines, 1))


def _inside_strings(source: str) -> set[int]:
    """The numbers, from 1, of the lines that begin inside of a string."""
    inside: set[int] = set()
    starts: list[int] = []
    for piece in tokenize.generate_tokens(io.StringIO(source).readline):
        name = token.tok_name[piece.type]
        if name == "STRING":
            inside.update(range(piece.start[0] + 1, piece.end[0] + 1))
        elif name.endswith("STRING_START"):
            starts.append(piece.start[0])
        elif name.endswith("STRING_END"):
            inside.update(range(starts.pop() + 1, piece.end[0] + 1))
    return inside


def _stands_alone(source: str) -> bool:
    """Whether it is Python at the top of a file."""
    try:
        symtable.symtable(source, "<source>", "exec")
    except SyntaxError:
        return False
    return True


def commented(source: str) -> str:
    """The source as a comment."""
    return "".join(f"# {line}".rstrip() + "\n" for line in source.strip("\n").splitlines())


def _simple_statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements that hold no others, from the top down."""
    simple = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and not getattr(node, "body", None)]
    return iter(sorted(simple, key=lambda node: (node.lineno, node.col_offset)))


def _original(source: str, plain: str) -> str:
    """The cell as it was typed, where its lines are those of the Python that it became."""
    return source if len(source.splitlines()) == len(plain.splitlines()) else plain


def _segment(text: str, node: ast.AST) -> str:
    """A node's source, also in a text whose lines are shorter than those that were parsed."""
    return ast.get_source_segment(text, node) or ""


def _lines_of(text: str, node: ast.AST) -> str:
    """The lines of a statement that holds others, with its decorators."""
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])


def _has_value(statement: ast.stmt) -> bool:
    """Whether a statement is an expression that may have a value to show; print has none."""
    if not isinstance(statement, ast.Expr):
        return False
    function = getattr(statement.value, "func", None)
    return not (isinstance(function, ast.Name) and function.id in ("print", "display"))


def _as_argument(expression: str) -> str:
    """An expression as the only argument of a call: a tuple that has no parentheses gets them."""
    call = ast.parse(f"f({expression})", mode="eval").body
    bare = len(call.args) != 1 or isinstance(call.args[0], ast.Starred) or expression.rstrip().endswith(",")
    return f"({expression})" if bare else expression


def _pass(text: str, node: ast.AST, why: str) -> str:
    """What stands in place of a statement; the reason only where it would not hide another statement of the line."""
    return "pass" if _semicolon_follows(text, node) else f"pass  # {why}"


def _semicolon_follows(text: str, node: ast.AST) -> bool:
    """Whether a semicolon comes after a statement; after the last value it keeps a notebook from showing it."""
    lines = text.encode().splitlines()[node.end_lineno - 1 :]
    return b"\n".join([lines[0][node.end_col_offset :], *lines[1:]]).lstrip().startswith(b";")


def _edited(text: str, edits: list[tuple[ast.stmt, str]]) -> str:
    """The text with some statements replaced."""
    whole = text.encode()
    starts = [0]
    for line in whole.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, new in sorted(edits, key=lambda edit: -edit[0].lineno * 10_000 - edit[0].col_offset):
        begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        whole = whole[:begin] + new.encode() + whole[end:]
    return whole.decode()


def _bindings(text: str) -> dict[str, str]:
    """The names that code binds at its top level or as global, each with its statement, "" where several bind it."""
    found: dict[str, str] = {}
    for node in ast.parse(text).body:
        statement = _lines_of(text, node) if hasattr(node, "body") else _segment(text, node)
        found |= {name: "" if name in found else statement for name in _bound(statement)}
    return found


def _bound(text: str) -> set[str]:
    top = symtable.symtable(text, "<cell>", "exec")
    found = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    pending = top.get_children()
    while pending:
        table = pending.pop()
        pending += table.get_children()
        found |= {s.get_name() for s in table.get_symbols() if s.is_declared_global() and s.is_assigned()}
    return found


def _imported(name: str, statement: str) -> Any:
    """What an import binds to a name, as far as this process has imported it; None where it is no import of it."""
    node = ast.parse(statement).body[:1]
    if not node or not isinstance(node[0], (ast.Import, ast.ImportFrom)):
        return None
    home = getattr(node[0], "module", None)
    for alias in node[0].names:
        if (alias.asname or alias.name.partition(".")[0]) != name:
            continue
        if home is None:
            return sys.modules.get(alias.name if alias.asname else name)
        return getattr(sys.modules.get(home), alias.name, None)
    return None


def _is_source(node: ast.AST, value: Value) -> bool:
    """Whether a node of a file may be where the value comes from."""
    if value.owner:
        inside = isinstance(node, ast.ClassDef) and node.lineno <= value.code.co_firstlineno <= node.end_lineno
        return inside and node.name == value.owner
    if value.text == "<lambda>":
        return isinstance(node, ast.Lambda) and node.lineno == value.code.co_firstlineno
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.name != value.code.co_name:
        return False
    return value.code.co_firstlineno in [node.lineno, *(decorator.lineno for decorator in node.decorator_list)]


def _compiled(node: ast.Lambda) -> tuple:
    code = compile(ast.Expression(node), "<lambda>", "eval").co_consts[0]
    return code.co_code, code.co_consts[1:], code.co_names, code.co_varnames
