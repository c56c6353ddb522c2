"""`progress`: which exercises have been passed, and the file that keeps them.

Runs on the notebook's kernel. check.py adds to the file what has been passed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from distlab.checking.exercises import all_exercises, title_of_lab
from distlab.compat.ipython import start_folder
from distlab.tables import Hyperlink, Table, format_seconds
from distlab.words import grouped

BAR = 10  # characters of a lab's bar in `progress`


def progress() -> Table:
    """The exercises that have been passed and the best times, by notebook.

    They are in the file `.distlab_progress.json` beside the notebooks, or in what DISTLAB_PROGRESS
    names; it is never sent anywhere. Delete it to start over. On Colab it is lost with the session.
    The title of a lab whose notebook is in this folder is a link in a notebook.

    Runs on: the notebook's kernel.
    """
    passed = read_file()
    known = all_exercises()
    by_notebook = grouped((one.notebook, name) for name, one in known.items())
    rows = []
    for notebook, names in sorted(by_notebook.items()):
        titles = {name: known[name].title for name in names}
        rows.append(_row(notebook, titles, passed))
    return Table("", ("notebook", "passed", "next", "lab", "", "best time"), tuple(rows), "lrllll")


def _row(notebook: str, titles: Mapping[str, str], passed: Passed) -> tuple[str, ...]:
    """The cells of a notebook, whose exercises have these titles by name."""
    left = [title for name, title in titles.items() if name not in passed.names]
    done = len(titles) - len(left)
    following = left[0] if left else ""
    full = round(BAR * done / len(titles))
    bar = "█" * full + "░" * (BAR - full)
    times = []
    for name, title in titles.items():
        if name in passed.best:
            best = format_seconds(passed.best[name]).strip()
            times.append(f"{title} {best}")
    of_all = f"{done} of {len(titles)}"
    return (notebook, of_all, following, _lab(notebook), bar, ", ".join(times))


def _lab(notebook: str) -> str:
    """The title of a lab, a link to it where its notebook is beside this one; "" if it has none."""
    for path in start_folder().glob(f"{notebook}_*.ipynb"):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            return Hyperlink(_title_in(path, notebook), path.name)
    return title_of_lab(notebook)


def _title_in(path: Path, notebook: str) -> str:
    """The title in the first line of a notebook, "# 05 · Ring all-reduce", without its number."""
    cells = json.loads(path.read_text())["cells"]
    first_cell = "".join(cells[0]["source"])
    first_line = first_cell.splitlines()[0]
    return first_line.lstrip("# ").removeprefix(notebook).lstrip(" ·")


# --- the file ---


@dataclass(frozen=True)
class Passed:
    """What the file keeps.

    Attributes:
        names: of the exercises that have been passed.
        best: the best times by exercise, in seconds.
    """

    names: list[str]
    best: dict[str, float]


def remember_passed(name: str, seconds: float | None = None) -> None:
    """Add an exercise to the file; nothing happens if that cannot be written.

    The file is replaced as a whole, so a kernel that is killed meanwhile leaves the old one.

    Args:
        name: of the exercise.
        seconds: how long the answer takes in the race of the exercise; None if it has none. The
            file keeps the best time.
    """
    file = _file().resolve()
    with contextlib.suppress(OSError), _alone_in(file.parent):
        passed = read_file()
        best = dict(passed.best)
        if seconds is not None:
            best[name] = min(seconds, best.get(name, math.inf))
        names = list(dict.fromkeys([*passed.names, name]))
        text = json.dumps({"passed": names, "best": best}, indent=1)
        _replace_file(file, text + "\n")


def read_file() -> Passed:
    """What the file keeps; nothing if it cannot be read."""
    try:
        kept = json.loads(_file().read_text())
        best = kept.get("best", {})
        best = {name: float(seconds) for name, seconds in best.items()}
        names = [name for name in kept["passed"] if isinstance(name, str)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Passed([], {})
    return Passed(names, best)


def _file() -> Path:
    """Beside the notebook, even if its kernel has changed its working folder."""
    chosen = os.environ.get("DISTLAB_PROGRESS")
    if chosen:
        return Path(chosen)
    return start_folder() / ".distlab_progress.json"


def _replace_file(file: Path, text: str) -> None:
    """Replace a file as a whole.

    What is no regular file stays what it is, such as os.devnull, which keeps nothing.
    """
    if file.exists() and not file.is_file():
        file.write_text(text)
        return
    unfinished = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        unfinished.write_text(text)
        os.replace(unfinished, file)
    finally:
        # the disk is full, or the file is none that can be replaced
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, so that two notebooks do not lose each other's exercises."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems lock no folders
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
