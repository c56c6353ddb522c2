"""`progress`: which exercises have been passed, and the file that keeps them.

Runs on the notebook's kernel. check.py adds to the file what has been passed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from distlab.checking.exercises import Exercise, Question, all_exercises, title_of_lab
from distlab.compat.ipython import start_folder
from distlab.tables import Link, Table, format_seconds
from distlab.words import grouped

if TYPE_CHECKING:
    from distlab.checking.check import Verdict

BAR = 10  # characters of a lab's bar in `progress`


def progress() -> Table:
    """The exercises that have been passed and the best times, by notebook, from the file beside the
    notebooks.

    The file is `.distlab_progress.json`, or what DISTLAB_PROGRESS names; it is never sent anywhere.
    Delete it to start over. On Colab it is lost with the session. The title of a lab whose notebook
    is in this folder is a link in a notebook. Runs on: the notebook's kernel.
    """
    passed, best = _kept()
    known = all_exercises()
    rows = []
    for notebook, names in sorted(
        grouped((one.notebook, name) for name, one in known.items()).items()
    ):
        left = [known[name].title for name in names if name not in passed]
        done = len(names) - len(left)
        bar = f"{'█' * round(BAR * done / len(names)):░<{BAR}}"
        times = [
            f"{known[name].title} {format_seconds(best[name]).strip()}"
            for name in names
            if name in best
        ]
        following = left[0] if left else ""
        rows.append(
            (notebook, f"{done} of {len(names)}", following, _lab(notebook), bar, ", ".join(times))
        )
    return Table("", ("notebook", "passed", "next", "lab", "", "best time"), tuple(rows), "lrllll")


def _lab(notebook: str) -> str:
    """The title of a lab, a link to it where its notebook is beside this one; "" if it has none."""
    for path in start_folder().glob(f"{notebook}_*.ipynb"):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            first = "".join(json.loads(path.read_text())["cells"][0]["source"]).splitlines()[0]
            return Link(first.lstrip("# ").removeprefix(notebook).lstrip(" ·"), path.name)
    return title_of_lab(notebook)


# --- what has been passed ---


def _file() -> Path:
    """Beside the notebook, even if its kernel has changed its working folder."""
    return Path(os.environ.get("DISTLAB_PROGRESS") or start_folder() / ".distlab_progress.json")


def _kept() -> tuple[list[str], dict[str, float]]:
    """The names and the best times in the file; none if it cannot be read."""
    try:
        kept = json.loads(_file().read_text())
        best = {name: float(seconds) for name, seconds in kept.get("best", {}).items()}
        return [name for name in kept["passed"] if isinstance(name, str)], best
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [], {}


def remember(exercise: Exercise | Question, verdict: Verdict) -> None:
    """Add an exercise to the file, and its time if it is the best; nothing if that cannot be
    written.

    The file is replaced as a whole, so a kernel that is killed meanwhile leaves the old one.
    """
    file = _file().resolve()
    with contextlib.suppress(OSError), _alone_in(file.parent):
        passed, best = _kept()
        if verdict.run and exercise.race:
            best[verdict.name] = min(verdict.run.seconds, best.get(verdict.name, math.inf))
        kept = {"passed": list(dict.fromkeys([*passed, verdict.name])), "best": best}
        _write(file, json.dumps(kept, indent=1) + "\n")


def _write(file: Path, text: str) -> None:
    """Replace a file as a whole. What is no regular file stays what it is, such as os.devnull,
    which keeps nothing.
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
