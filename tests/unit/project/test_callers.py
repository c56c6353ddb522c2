"""What the first docstring of a file says of its callers is so."""

import ast
import functools
import re
from pathlib import Path

import pytest

PACKAGES = ("distlab", "distlab_predict", "distlab_course")
# rooms whose files are called by those that import them, and not through a table of plug-ins
ROOMS = ("distlab/wire", "distlab/diagnosis")


@functools.cache
def imported_by(path):
    """The names of modules that a file imports, and of what it imports from them."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{one.name}" for one in node.names)
    return names


def named_callers(path):
    """The files that a docstring names in sentences such as "called by a.py and b.py"."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    names = []
    for sentence in re.findall(r"called by ((?:[^.]|\.py)*)", " ".join(docstring.split())):
        names += re.findall(r"\w+\.py", sentence)
    return names


@pytest.mark.parametrize("room", ROOMS)
def test_a_file_is_imported_by_those_that_it_names_as_its_callers(room):
    """A sentence about callers outlives their moves and new names unnoticed."""
    files = [path for package in PACKAGES for path in Path(package).rglob("*.py")]
    wrong = []
    tried = 0
    for path in sorted(Path(room).glob("*.py")):
        module = ".".join(path.with_suffix("").parts)
        for name in named_callers(path):
            tried += 1
            callers = [one for one in files if one.name == name]
            if not any(module in imported_by(one) for one in callers):
                wrong.append(f"{path} says that {name} calls it")
    assert wrong == []
    assert tried > 5
