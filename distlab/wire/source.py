"""Which source files are the learner's own, and which belong to Python, torch or other installed packages.

Used on the ranks (whose lines a traceback shows) and in the notebook's kernel (what travels by value).
"""

from __future__ import annotations

import functools
import linecache
import os
import sysconfig

from distlab.wire.messages import SourceLine

_PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


@functools.lru_cache(maxsize=4096)  # it is asked for the same few files again and again
def is_learners(filename: str | None) -> bool:
    """Whether a source file is the learner's: a cell, a script, a module beside the notebook.

    Runs on: anywhere.
    """
    if not filename or filename.startswith("<frozen"):
        return False
    path = os.path.realpath(filename)
    installed = {"site-packages", "dist-packages"} & set(path.split(os.sep))  # also of another environment
    return not installed and not path.startswith(_library_folders())


def line_of(filename: str, number: int, function: str) -> SourceLine:
    """A line of source that another process can show.

    Runs on: a rank.

    Args:
        function: its name; "<module>" and the like stand for none.
    """
    place = "" if function.startswith("<") else function
    is_cell = f"ipykernel_{os.getpid()}" in filename or filename.startswith("<ipython-input")
    return SourceLine(filename, number, linecache.getline(filename, number).strip(), place, is_cell)


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {os.path.realpath(folder) for folder in folders} | {_PACKAGE}
    return tuple(folder + os.sep for folder in folders)
