"""Which versions of other libraries are here: the newest torch that was tested, and private parts that one may lack.

Runs on the notebook's kernel, called by cluster.py, and in the doctor's process. It imports no other library.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import pkgutil
import re
import warnings
from importlib import metadata
from types import ModuleType

NEWEST_TORCH = "2.15.0"  # the matrix takes it from here; the oldest stands in pyproject.toml


@functools.cache
def warn_of_newer_torch() -> None:
    """Warn, once a process, where the installed torch is of a newer release than the newest tested one.

    Runs on: the notebook's kernel, called by the constructor of `Cluster`.
    """
    here = metadata.version("torch")
    if release(here) > release(NEWEST_TORCH):
        newer = f"torch {here} is newer than torch {NEWEST_TORCH}, the newest that this distlab was tested with."
        advice = f'If ranks behave strangely, install that one: pip install "torch=={NEWEST_TORCH}"'
        warnings.warn(f"{newer} {advice}", stacklevel=3)


def release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version: (2, 15) for "2.15.1+cpu"."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def missing(*modules: ModuleType) -> list[str]:
    """A sentence for each name of torch in the source of these modules that the installed one does not have.

    What is found out while a program runs, as an attribute of a group, is not among them.
    """
    names = {}
    for module in modules:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            first, _, rest = ast.unparse(node).partition(".") if isinstance(node, ast.Attribute) else ("", "", "")
            owner = getattr(module, first, None)
            if inspect.ismodule(owner) and re.fullmatch(r"[\w.]+", rest):
                names[f"{owner.__name__}:{rest}"] = module.__name__
    return [
        f"torch {metadata.version('torch')} has no {name.replace(':', '.')}, which {user} uses."
        for name, user in names.items()
        if not _exists(name)
    ]


def _exists(name: str) -> bool:
    with contextlib.suppress(ImportError, AttributeError):
        pkgutil.resolve_name(name)
        return True
    return False
