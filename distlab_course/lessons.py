"""The lessons in a learner's folder, and JupyterLab there.

They are `python -m distlab course` and `python -m distlab lab`, a person's own process. A wheel
carries the lessons in this package; in a clone they are the clone's.
"""

import argparse
import functools
import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
IN_WHEEL = PACKAGE / "lessons"
SOURCE = IN_WHEEL if IN_WHEEL.is_dir() else PACKAGE.parent
FILES = (
    "notebooks/*.ipynb",
    "notebooks/*.py",
    "notebooks/*.md",
    "notebooks/solutions/*.ipynb",
    "figs/*.svg",
    "figs/*.png",
)
FIRST = "notebooks/00_start_here.ipynb"
NOTE = ".distlab_lessons.json"  # in the folder: the digest of what was last written there, by path
FOLDER = Path("distlab-course")


@dataclass
class Written:
    """What became of the lessons in a folder, as paths in it."""

    new: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)  # as they were written, or the person agreed
    kept: list[str] = field(default_factory=list)  # the learner changed them
    beside: list[str] = field(default_factory=list)  # the newer form of one that was kept
    older: list[str] = field(default_factory=list)  # unchanged, and distlab has a newer one


def course(arguments: Sequence[str]) -> int:
    """`python -m distlab course [DIR]`: write the lessons into a folder.

    Returns the exit status.
    """
    parser = argparse.ArgumentParser(
        "python -m distlab course", description="Write the lessons into a folder."
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, default=FOLDER, help="where; by default %(default)s"
    )
    parser.add_argument(
        "--update", action="store_true", help="bring newer lessons; what you changed is kept"
    )
    chosen = parser.parse_args(arguments)
    try:
        ask = _agreed if sys.stdin.isatty() else None
        done = write(chosen.folder, chosen.update, agreed=ask)
    except OSError as error:
        return _refuse(chosen.folder, error)
    print(_words(done, chosen.folder))
    print(f"Open them: python -m distlab lab {chosen.folder}")
    return 0


def lab(arguments: Sequence[str]) -> int:
    """`python -m distlab lab [DIR] [OPTIONS]`: write missing lessons, and open JupyterLab on them.

    Becomes JupyterLab, which gets the options; returns an exit status only if that cannot be.
    """
    folders, options = _sorted_out(arguments)
    parser = argparse.ArgumentParser(
        "python -m distlab lab",
        usage="%(prog)s [-h] [folder] [options of JupyterLab]",
        description="Write the lessons that are missing into a folder, and open JupyterLab there. "
        "All options but -h are JupyterLab's, such as --no-browser or --port=9000; "
        "`jupyter lab --help` lists them.",
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, default=FOLDER, help="where; by default %(default)s"
    )
    folder = parser.parse_args(folders).folder
    if find_spec("jupyterlab") is None:
        message = 'JupyterLab is not installed here: pip install "distlab[lab,course]"'
        print(f"distlab: {message}", file=sys.stderr)
        return 1
    try:
        done = write(folder)
    except OSError as error:
        return _refuse(folder, error)
    if done.new:
        print(_words(done, folder), flush=True)
    command = [sys.executable, "-m", "distlab_course.jupyter", *_own_options(folder), *options]
    os.execv(command[0], command)


def _own_options(folder: Path) -> list[str]:
    """The options that JupyterLab gets before the person's."""
    options = [
        f"--ServerApp.root_dir={folder.resolve()}",
        f"--LabApp.default_url=/lab/tree/{FIRST}",
        "--log-level=WARN",
        # or JupyterLab asks at its first start whether it may look for news
        "--LabApp.news_url=None",
    ]
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if is_root:  # root may run Jupyter only when told so
        options.append("--allow-root")
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.platform == "linux" and not has_display:
        options.append("--no-browser")
        advice = "open the address that is printed below. Ctrl-C stops it."
        print(f"No display here: {advice}", flush=True)
    return options


def _sorted_out(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that name a folder or ask for help, and JupyterLab's options with their values."""
    folders: list[str] = []
    options: list[str] = []
    takes_value = False  # whether the word before is an option that the next word may belong to
    for word in arguments:
        if word in ("-h", "--help"):
            folders.append(word)
        elif word.startswith("-"):
            options.append(word)
            takes_value = "=" not in word and word.lstrip("-") not in _flags()
            continue
        elif takes_value:
            options.append(word)
        else:
            folders.append(word)
        takes_value = False
    return folders, options


@functools.cache
def _flags() -> frozenset[str]:
    """The names of JupyterLab's options that take no value."""
    try:
        from jupyterlab.labapp import LabApp
    except ImportError:  # then nothing is started
        return frozenset()
    return frozenset(LabApp.flags)


def write(
    folder: Path, update: bool = False, agreed: Callable[[list[str]], bool] | None = None
) -> Written:
    """Write the lessons into a folder; what was changed there stays, unless the person agrees.

    Args:
        update: whether to bring newer lessons: in place of unchanged ones, and beside changed ones
            as NAME.newer.ipynb.
        agreed: asked whether to overwrite the files that were changed; not with `update`. None for
            a person who does not agree.

    Raises:
        OSError: the folder cannot be written.
    """
    if folder.resolve() == SOURCE:
        return Written()
    shipped = _shipped()
    writing = _Writing(folder, update)
    for name, content in sorted(shipped.items()):
        writing.choose(name, content)
    changed = writing.done.kept
    if changed and not update and agreed is not None and agreed(changed):
        writing.replace_kept(shipped)
    writing.finish()
    return writing.done


class _Writing:
    """Lessons on their way into a folder: all is chosen first, and written at the end.

    Attributes:
        done: what becomes of them.
    """

    def __init__(self, folder: Path, update: bool):
        self.done = Written()
        self._folder = folder
        self._update = update
        self._note_before = _note(folder)
        self._note = dict(self._note_before)
        self._contents: dict[str, bytes] = {}  # what is to be written, by path

    def choose(self, name: str, content: bytes) -> None:
        """Choose what becomes of one file, by what lies there and what was last written there."""
        there = self._folder / name
        newest = _digest(content)
        last_written = self._note.get(name)
        if not there.exists():
            self.done.new.append(name)
            self._contents[name] = content
            return
        held = _digest(there.read_bytes())
        if held == newest:
            self._note[name] = newest
        elif held != last_written:
            self.done.kept.append(name)
            if self._update and last_written != newest:
                self._put_beside(name, content)
        elif self._update:
            self.done.replaced.append(name)
            self._contents[name] = content
        else:
            self.done.older.append(name)

    def _put_beside(self, name: str, content: bytes) -> None:
        """Bring the newer form of a file that was changed, beside it and only once."""
        path = Path(name)
        beside = str(path.with_suffix(f".newer{path.suffix}"))
        self.done.beside.append(beside)
        self._contents[beside] = content
        self._note[name] = _digest(content)

    def replace_kept(self, shipped: dict[str, bytes]) -> None:
        """Overwrite the files that were changed, as the person has agreed."""
        for name in self.done.kept:
            self._contents[name] = shipped[name]
        self.done.replaced = self.done.kept
        self.done.kept = []

    def finish(self) -> None:
        """Write what was chosen, and note it."""
        for name, content in self._contents.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            self._note[name] = _digest(content)
        if self._note != self._note_before:
            (self._folder / NOTE).write_text(json.dumps(self._note, indent=1) + "\n")


def _shipped() -> dict[str, bytes]:
    """The files of the lessons, by their paths."""
    files = {}
    for pattern in FILES:
        for path in SOURCE.glob(pattern):
            files[path.relative_to(SOURCE).as_posix()] = path.read_bytes()
    return files


def _note(folder: Path) -> dict[str, str]:
    """What was last written into the folder; nothing if that is not known."""
    try:
        note = json.loads((folder / NOTE).read_text())
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _agreed(changed: list[str]) -> bool:
    """Ask at the terminal."""
    print("These were changed since they were written here:", *changed, sep="\n  ")
    answer = input("Overwrite them? What you wrote there is lost. [y/N] ")
    return answer.strip().lower() in ("y", "yes")


def _words(done: Written, folder: Path) -> str:
    """What was done, for a person."""
    lines = [f"{folder}: no lesson was missing"]
    if done.new:
        lines = [f"{folder}: files written: {len(done.new)}"]
    if done.replaced:
        lines.append(f"replaced by this distlab's: {len(done.replaced)}")
    if done.kept:
        advice = "to begin one again, delete it and repeat this"
        lines.append(f"kept, because you changed them: {len(done.kept)}; {advice}")
    if done.beside:
        lines += ["newer than yours, and put beside them:", *(f"  {name}" for name in done.beside)]
    if done.older:
        advice = "to bring the newer ones, add --update"
        lines.append(f"older than this distlab's: {len(done.older)}; {advice}")
    return "\n".join(lines)


def _refuse(folder: Path, error: OSError) -> int:
    """Say why the lessons cannot be written, and return the exit status."""
    why = f"{error.strerror} ({error.filename})"
    print(f"distlab: the lessons cannot be written into {folder}: {why}", file=sys.stderr)
    return 1
