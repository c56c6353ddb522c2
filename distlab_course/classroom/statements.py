"""What one statement defines, changes and uses, by its text.

Called where answers are chosen and judged, and on the ranks that run one. It only reads: none of
the text is run.
"""

import ast
import symtable
from collections.abc import Sequence

from distlab_course.classroom.cells import Cell

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)
# what a cell calls at once for its own sake: an answer calls them later
NOT_FOR_AN_ANSWER = {"cluster", "dist"}


def statements(cell: Cell) -> list[ast.stmt]:
    """The statements of a cell; none if it is no Python."""
    try:
        return ast.parse(cell.source).body
    except SyntaxError:
        return []


def is_definition(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Assign):
        return isinstance(node, (*DEFINITIONS, *IMPORTS))
    try:
        ast.literal_eval(node.value)
    except (ValueError, TypeError):
        return False
    return True


def is_for_its_own_sake(node: ast.stmt) -> bool:
    """Whether a statement is there for what it does or shows, and not for the names it defines."""
    if isinstance(node, (*DEFINITIONS, *IMPORTS)):
        return False
    if isinstance(node, ast.Expr) and not _changed_by_call(node):
        return True
    for part in _at_once(node):
        if isinstance(part, ast.Call) and _root(part.func) in NOT_FOR_AN_ANSWER:
            return True
    return False


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
    if isinstance(node, ast.Name):
        return node.id
    return ""


def _changed_by_call(node: ast.AST) -> str:
    """The name whose value a bare call of a method may change, as in `found.append(3)`.

    It is "" for another statement.
    """
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return ""
    if not isinstance(node.value.func, ast.Attribute):
        return ""
    root = _root(node.value.func)
    if root in NOT_FOR_AN_ANSWER:
        return ""
    return root


def binds(node: ast.stmt) -> set[str]:
    """The names that a statement defines, at the top of it."""
    if isinstance(node, DEFINITIONS):
        return {node.name}
    if isinstance(node, IMPORTS):
        return _bound_by_import(node)
    found = set()
    for part in _at_once(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            found.add(part.id)
        elif isinstance(part, (*DEFINITIONS, *IMPORTS)):  # under an `if` or a `try`
            found |= binds(part)
    return found


def _bound_by_import(node: ast.Import | ast.ImportFrom) -> set[str]:
    """The names that an import defines: of `import a.b`, it is `a`."""
    found = set()
    for alias in node.names:
        name = alias.asname or alias.name
        first, _, _ = name.partition(".")
        found.add(first)
    return found


def touches(node: ast.stmt) -> set[str]:
    """The names that a statement defines, and those whose value it may change."""
    found = binds(node)
    if isinstance(node, (*DEFINITIONS, *IMPORTS)):
        return found
    for part in _at_once(node):
        if isinstance(part, (ast.Attribute, ast.Subscript)) and isinstance(part.ctx, ast.Store):
            found.add(_root(part))
        found.add(_changed_by_call(part))
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
    inner_tables = table.get_children()
    while inner_tables:
        inner = inner_tables.pop()
        for symbol in inner.get_symbols():
            if symbol.is_global():
                found.add(symbol.get_name())
        inner_tables += inner.get_children()
    return found


def imported_by(node: ast.AST) -> set[str]:
    """The full names of what a statement imports."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {f"{node.module}.{alias.name}" for alias in node.names}
    return set()


def only(source: str, nodes: Sequence[ast.stmt]) -> str:
    """The source with the lines of these statements alone."""
    wanted: set[int] = set()  # numbers of lines
    for node in nodes:
        first = node.lineno
        for decorator in getattr(node, "decorator_list", []):
            first = min(first, decorator.lineno)
        last = node.end_lineno or first
        wanted.update(range(first, last + 1))
    lines = source.splitlines()
    for number in range(1, len(lines) + 1):
        if number not in wanted:
            lines[number - 1] = ""
    return "\n".join(lines)
