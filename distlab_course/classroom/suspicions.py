"""What in an answer a person has to look at.

With it a program could read the reference, or change the check. Runs in the judge's process, on the
text of an answer. An answer may use everything that its lab and our own answers use; for the rest
there are lists of what is harmless, since a list of all tricks is never whole. What the lists
cannot see, as an attribute that is reached by another way, the ranks may
(`distlab/checking/tampering.py`).
"""

import ast
from collections.abc import Sequence
from functools import cache

from distlab_course.classroom.cells import Cell
from distlab_course.classroom.statements import IMPORTS, imported_by, statements
from distlab_course.classroom.submission import without


def _words(text: str) -> set[str]:
    return set(text.split())


# modules
HARMLESS = _words(
    "torch numpy math cmath functools itertools collections dataclasses typing operator "
    "random time statistics enum abc contextlib copy re string json fractions decimal heapq "
    "bisect array struct textwrap datetime numbers pprint hashlib __future__ warnings "
    "typing_extensions graphlib zlib base64 uuid"
)
# modules of which some attributes are harmless; os._exit ends a rank, and changes nothing
PARTS_OF = {
    "os": _words("environ getenv getpid path cpu_count getcwd sep linesep urandom _exit"),
    "sys": _words(
        "getsizeof maxsize float_info version version_info byteorder platform stdout stderr "
        "getrecursionlimit setrecursionlimit"
    ),
}
# not harmless: built-in functions, modules, attributes of whatever it is
NAMES = _words(
    "exec eval compile __import__ globals locals vars open breakpoint input setattr delattr "
    "get_ipython memoryview"
)
MODULES = _words(
    "sys os builtins inspect gc ctypes importlib subprocess socket multiprocessing threading "
    "pathlib linecache pickle shutil tempfile traceback codecs distlab cpp_extension hub "
    "package f2py ctypeslib stride_tricks modules posix"
)
ATTRIBUTES = _words(
    "f_back f_globals f_locals f_builtins f_code tb_frame tb_next gi_frame gi_code cr_frame "
    "ag_frame co_consts attrgetter methodcaller get_field currentframe walk_stack load "
    "from_file fromfile loadtxt genfromtxt memmap fromregex tofile save savetxt read_text "
    "read_bytes write_text write_bytes open as_subclass outer Formatter ProcessGroupGloo "
    "ProcessGroup split_group TCPStore FileStore HashStore _C"
)
BY_NAME = {"getattr", "hasattr"}  # harmless with a name that is written out and is harmless itself
GROUP_MAKERS = {"new_group", "new_subgroups", "new_subgroups_by_enumeration", "init_device_mesh"}
# harmless names with two underscores at each end
DUNDERS = _words(
    "__name__ __init__ __class__ __doc__ __len__ __call__ __post_init__ __enter__ __exit__ "
    "__next__ __iter__ __getitem__ __setitem__ __contains__ __add__ __mul__ __sub__ __eq__ "
    "__lt__ __hash__ __repr__ __str__ __version__ __main__ __qualname__ __new__"
)
IN_TEXTS = ("distlab_course", "/proc/", "solutions/")


def suspicion(needed: Sequence[Cell], lab: Sequence[Cell], allowed: Sequence[Cell]) -> str:
    """What an answer uses that a person has to look at; "" for nothing.

    Args:
        needed: the answer with what it needs.
        lab: the lab's own cells, whose statements may use what they like.
        allowed: our answers to the lab; the student's may use what they use.
    """
    known = _used_by((*lab, *allowed))
    modules = _modules(needed)
    for cell in needed:
        for statement in without(lab, statements(cell)):
            if found := _uses(statement, modules) - known:
                return min(found, key=lambda use: (use.startswith("."), use))
    return ""


@cache
def _used_by(cells: tuple[Cell, ...]) -> set[str]:
    """What is not harmless in these cells."""
    modules = _modules(cells)
    used = set()
    for cell in cells:
        for statement in statements(cell):
            used |= _uses(statement, modules)
    return used


def _modules(cells: Sequence[Cell]) -> dict[str, str]:
    """The full names of modules and other imported things, by the names that cells give them."""
    found = {"torch": "torch", "dist": "torch.distributed"}
    for cell in cells:
        for statement in statements(cell):
            for node in ast.walk(statement):
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    found |= _names_given_by(node)
    return found


def _names_given_by(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """The full names of what a statement imports, by the names that it gives them."""
    before = ""
    if isinstance(node, ast.ImportFrom):
        before = f"{node.module}."
    names = {}
    for alias in node.names:
        if alias.asname:
            names[alias.asname] = before + alias.name
        else:
            first, _, _ = alias.name.partition(".")
            names[first] = before + first
    return names


def _uses(statement: ast.stmt, modules: dict[str, str]) -> set[str]:
    """Everything in a statement that is not harmless."""
    found: set[str] = set()
    harmless = _harmless_names(statement, modules)

    def needs_care(name: str) -> bool:
        """Whether a name is harmless in some places only: getattr, or a module such as os."""
        return name in BY_NAME or modules.get(name, "") in PARTS_OF

    for node in ast.walk(statement):
        if isinstance(node, IMPORTS):
            found |= _imports(node)
        elif isinstance(node, ast.Name):
            if _is_forbidden(node.id) or (node not in harmless and needs_care(node.id)):
                found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found |= _attribute(node, modules)
        elif isinstance(node, ast.Call) and _chooses_backend(node):
            found.add("a group of a backend of its own")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= _text(node.value)
    return found


def _text(text: str) -> set[str]:
    """What is not harmless in a text that a program holds."""
    found = {part for part in IN_TEXTS if part in text}
    if _is_odd_dunder(text):
        found.add(text)
    return found


def _harmless_names(statement: ast.stmt, modules: dict[str, str]) -> set[ast.AST]:
    """The nodes of names that are harmless where they stand.

    They are `os` in `os.environ`, and `getattr` in `getattr(value, "name")`.
    """
    harmless: set[ast.AST] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute) and _is_harmless_part(node, modules):
            harmless.add(node.value)
        elif isinstance(node, ast.Call) and _is_plain_lookup(node):
            harmless.add(node.func)
    return harmless


def _is_forbidden(name: str) -> bool:
    """Whether a name is not harmless, wherever it stands."""
    return _is_odd_dunder(name) or name in NAMES or name == "distlab"


def _imports(node: ast.AST) -> set[str]:
    """What a statement imports that is not harmless."""
    found = set()
    for name in imported_by(node):
        parts = name.split(".")
        first = parts[0]
        last = parts[-1]
        if first in PARTS_OF and (isinstance(node, ast.Import) or last in PARTS_OF[first]):
            continue  # its attributes are looked at where they are used
        private = [part for part in parts if part.startswith("_") and part != "__future__"]
        harmful = [part for part in parts[1:] if _is_harmful_part(part)]
        if first not in HARMLESS or private or harmful:
            found.add(name)
    return found


def _is_harmful_part(name: str) -> bool:
    """Whether a name after a dot is not harmless, whatever stands before the dot."""
    return name.strip("_") in MODULES or name in ATTRIBUTES


def _attribute(node: ast.Attribute, modules: dict[str, str]) -> set[str]:
    """What is not harmless in one `value.attribute`."""
    root = node.value
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        root = root.value
    of_module = isinstance(root, ast.Name) and root.id in modules
    if of_module and isinstance(node.ctx, (ast.Store, ast.Del)):
        return {f"an assignment to {ast.unparse(node)}"}
    if node.attr == "__class__" and not isinstance(node.ctx, ast.Load):
        return {"an assignment to .__class__"}
    if _is_harmless_part(node, modules):
        return set()
    private = of_module and node.attr.startswith("_") and not _is_dunder(node.attr)
    if _is_harmful_part(node.attr) or _is_odd_dunder(node.attr) or private:
        return {f".{node.attr}"}
    if isinstance(node.value, ast.Name) and modules.get(node.value.id) in PARTS_OF:
        return {f"{modules[node.value.id]}.{node.attr}"}
    return set()


def _is_harmless_part(node: ast.Attribute, modules: dict[str, str]) -> bool:
    """Whether this is a harmless attribute of a module that has others, such as `os.environ`."""
    if not isinstance(node.value, ast.Name):
        return False
    module = modules.get(node.value.id, "")
    return node.attr in PARTS_OF.get(module, set())


def _chooses_backend(call: ast.Call) -> bool:
    """Whether a call may make a group on another backend than a check's, which counts messages."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if name not in GROUP_MAKERS:
        return False
    by_name = any(keyword.arg in (None, "backend", "pg_options") for keyword in call.keywords)
    unpacked = any(isinstance(argument, ast.Starred) for argument in call.args)
    return by_name or unpacked or len(call.args) > 2


def _is_odd_dunder(name: str) -> bool:
    """Whether a name has two underscores at each end, and is none of those that are harmless."""
    return _is_dunder(name) and name not in DUNDERS


def _is_dunder(name: str) -> bool:
    return len(name) > 4 and name.startswith("__") and name.endswith("__") and name.isidentifier()


def _is_plain_lookup(call: ast.Call) -> bool:
    """Whether `getattr(value, "name")` is as harmless as `value.name`."""
    if not isinstance(call.func, ast.Name) or call.func.id not in BY_NAME or len(call.args) < 2:
        return False
    name = call.args[1]
    if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
        return False
    if name.value.startswith("_"):
        return False
    return name.value not in MODULES and name.value not in ATTRIBUTES
