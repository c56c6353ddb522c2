"""Which source files are the learner's own, and which belong to Python, torch or other installed packages.

Used on the ranks (whose lines a traceback shows) and in the notebook's kernel (what travels by value).
"""

from __future__ import annotations

import functools
import linecache
import os
import sysconfig

from distlab.wire.messages import Line

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


@functools.lru_cache(maxsize=4096)
def is_shown(filename: str) -> bool:
    """Whether a report shows lines of this source: the learner's, and no program given with -c, as what starts a rank.

    Runs on: anywhere.
    """
    return filename != "<string>" and is_learners(filename)


def line_of(filename: str, number: int, function: str) -> Line:
    """A line of source as the notebook shows it; without its text where only the notebook has that.

    Runs on: a rank.

    Args:
        function: its name; "<module>" and the like stand for none.
    """
    place = "" if function.startswith("<") else function
    text = linecache.getline(filename, number).strip()
    if f"ipykernel_{os.getpid()}" in filename or filename.startswith("<ipython-input"):
        return Line(number + 1, text, place)  # of a cell, whose %%px line is not compiled
    return Line(number, text, place, filename)


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {os.path.realpath(folder) for folder in folders} | {_PACKAGE}
    beside = f"{_PACKAGE}_"  # packages that belong to distlab have names that begin so
    return (beside, *(folder + os.sep for folder in folders))
