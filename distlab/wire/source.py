"""Lines of source as the notebook shows them, and which files are the learner's.

Runs on both sides, and in the diagnosis. The other files belong to Python, or to an installed
package.
"""

from __future__ import annotations

import functools
import linecache
import os
import re
import traceback
from dataclasses import dataclass, field, replace
from types import FrameType

PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
LIBRARY = os.path.dirname(os.path.realpath(os.__file__)) + os.sep
# these packages stand side by side
NOT_LEARNERS = (
    PACKAGE + os.sep,
    PACKAGE + "_course" + os.sep,
    PACKAGE + "_predict" + os.sep,
    LIBRARY,
)
# what code is named that a person types, and no file holds
AT_A_PROMPT = ("<ipython-input", "<stdin>", "<console>")
# the folder in which ipykernel compiles the cells of a process
FOLDER_OF_CELLS = re.compile(r"ipykernel_(\d+)")
MOST_FRAMES = 200  # of one exception: a recursion may have a million


@dataclass(frozen=True)
class Line:
    """One line of the learner's own code in a traceback.

    Attributes:
        number: counted from 1 as the notebook shows it, `%%px` line included.
        text: the source, stripped; empty if it is not available.
        function: the name of the function that it is in, or "" at the top of a cell.
        file: the source file; "" for a `%%px` cell.
    """

    number: int
    text: str
    function: str = ""
    file: str = field(default="", compare=False, repr=False)

    @property
    def is_in_cell(self) -> bool:
        """Whether it is of a cell, or was typed: then it has no file that a person knows."""
        if not self.file or self.file.startswith("<"):
            return True
        return process_of_cell(self.file) is not None

    @property
    def position(self) -> str:
        """Where it is, as reports have it: "line 3" of a cell, "train.py:3" of a file."""
        if self.is_in_cell:
            return f"line {self.number}"
        return f"{os.path.basename(self.file)}:{self.number}"


@functools.lru_cache(maxsize=4096)  # it is asked for the same few files again and again
def is_learners(filename: str | None) -> bool:
    """Whether a source file is the learner's: a cell, a script, a module beside the notebook.

    A program given with -c, like the one that starts a rank, is not, nor is code that a library has
    generated: "<eval_with_key>.3" where torch traces a model, and the files of its cache where it
    compiles one.

    Runs on: anywhere.
    """
    if not filename:
        return False
    if filename.startswith("<"):  # code that no file holds
        return filename.startswith(AT_A_PROMPT)
    path = os.path.realpath(filename)
    if path.startswith(NOT_LEARNERS):
        return False
    *folders, _ = path.split(os.sep)
    if "site-packages" in folders or "dist-packages" in folders:  # also of another environment
        return False
    return not _is_inductor_output(path, folders)


def runs_learners_code(frame: FrameType) -> bool:
    """Whether the code that a frame runs is the learner's. Runs on: anywhere."""
    return is_learners(frame.f_code.co_filename)


def _is_inductor_output(path: str, folders: list[str]) -> bool:
    """Whether torch.compile has written a file.

    It writes into the cache that it has now, or into one with its default name.
    """
    # torch sets it before it writes the first file
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if cache and path.startswith(os.path.realpath(cache) + os.sep):
        return True
    return any(folder.startswith("torchinductor_") for folder in folders)


def process_of_cell(filename: str) -> int | None:
    """The number of the process in which a cell was compiled, or None if the file is no cell's.

    ipykernel names the file of a cell /tmp/ipykernel_1234/567.py, after its process.

    Runs on: anywhere.
    """
    folder = os.path.basename(os.path.dirname(filename))
    found = FOLDER_OF_CELLS.fullmatch(folder)
    return None if found is None else int(found[1])


def line_of(filename: str, number: int, function: str) -> Line:
    """A line of source as the notebook shows it, without its text if only the notebook has that.

    A rank compiles a cell with a comment in the place of its line with %%px (see magics.py), so
    Python also counts as the notebook does. The file of a cell differs on each rank: it is left
    out.

    Runs on: a rank.

    Args:
        filename: the file.
        number: the line's number in it.
        function: the function that the line is in; "<module>" and the like stand for none.
    """
    text = linecache.getline(filename, number).strip()
    file = filename
    is_of_cell = process_of_cell(filename) == os.getpid()
    if is_of_cell or filename.startswith("<ipython-input"):
        file = ""
    return Line(number, text, name_of_function(function), file)


def name_of_function(function: str) -> str:
    """The name of a function as lines have it: "" for "<module>" and others that Python makes up.

    Runs on: anywhere.
    """
    return "" if function.startswith("<") else function


def message_and_lines(error: BaseException) -> tuple[str, tuple[Line, ...]]:
    """The message of an exception, and the learner's own lines that led to it, outermost first.

    A syntax error has a place of its own, which no frame has: it is the last line.

    Runs on: the process that caught it.
    """
    lines = []
    for frame in frames_of(error):
        if is_learners(frame.filename):
            lines.append(line_of(frame.filename, frame.lineno or 0, frame.name))
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        place = line_of(error.filename, error.lineno, "<module>")
        text = error.text or ""
        lines.append(replace(place, text=text.strip()))
    return _text_of_error(error), tuple(lines)


def frames_of(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames through which an exception has passed, outermost first.

    Of a recursion with more than MOST_FRAMES, those in the middle are left out: the outermost ones
    say what was called, and the innermost ones what raised.

    Runs on: the process that caught it.
    """
    stack = error.__traceback__
    number = sum(1 for _ in traceback.walk_tb(stack))
    if number <= MOST_FRAMES:
        return list(traceback.extract_tb(stack))
    outermost = traceback.extract_tb(stack, limit=MOST_FRAMES // 2)
    innermost = traceback.extract_tb(stack, limit=-MOST_FRAMES // 2)
    return [*outermost, *innermost]


def _text_of_error(error: BaseException) -> str:
    """The text of an exception, whatever a learner has made of it; never an error of its own."""
    # of Python's own syntax errors: their str() ends with the name of a file that nobody knows
    if isinstance(error, SyntaxError) and isinstance(error.msg, str):
        return error.msg
    try:
        return str(error)
    except Exception as failed:
        return f"(its text cannot be made: {type(failed).__name__})"
