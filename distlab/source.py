"""Which source files are the learner's own, and which belong to Python, torch or other installed packages.

Used on the ranks (whose lines a traceback shows) and in the notebook's kernel (what travels by value).
"""

from __future__ import annotations

import functools
import os
import sysconfig


def is_learners(filename: str | None) -> bool:
    """Whether a source file is the learner's: a cell, a script, a module beside the notebook.

    Runs on: anywhere.
    """
    if not filename or filename.startswith("<frozen"):
        return False
    return not os.path.realpath(filename).startswith(_library_folders())


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {os.path.realpath(folder) for folder in folders} | {os.path.realpath(os.path.dirname(__file__))}
    return tuple(folder + os.sep for folder in folders)
