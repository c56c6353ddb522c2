"""Whether the program of a command line is there, before any rank starts.

Runs in the launcher's process, called by options.py. Nothing of the program is executed here.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder


def why_not_found(program: str, is_module: bool) -> str:
    """Why a program cannot be run, in words; "" if it can.

    Args:
        program: the path of a script, or the name of a module.
        is_module: which of both.
    """
    if is_module:
        return _why_no_module(program)
    if os.path.isdir(program):
        return f"{program!r} is a folder: name the script in it, or a package with -m"
    if not os.path.exists(program):
        advice = ""
        if _spec_of(program) is not None:
            advice = f"; for the module write `-m {program}`"
        return f"there is no file {program!r} in {os.getcwd()}{advice}"
    if not os.access(program, os.R_OK):
        return f"{program!r} cannot be read"
    return ""


def _why_no_module(name: str) -> str:
    if name.endswith(".py"):
        return f"-m takes a module's name, but {name!r} is a file, so leave out -m"
    spec = _spec_of(name)
    if spec is None:
        return f"there is no module {name!r} in {os.getcwd()} or where Python looks for modules"
    if spec.submodule_search_locations is not None and _spec_of(f"{name}.__main__") is None:
        return f"{name!r} is a package without a __main__.py: name a module in it"
    return ""


def _spec_of(name: str) -> ModuleSpec | None:
    """Where a module is, found without importing the packages that it is in."""
    places: list[str] | None = [os.getcwd(), *filter(None, sys.path)]
    spec = None
    whole = ""
    for part in name.split("."):
        whole = f"{whole}.{part}" if whole else part
        if not part or places is None:
            return None
        spec = PathFinder.find_spec(whole, places)
        if spec is None:
            return None
        found = spec.submodule_search_locations
        places = None if found is None else list(found)
    return spec
