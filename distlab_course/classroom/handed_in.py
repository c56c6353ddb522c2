"""What was handed in: which cell answers an exercise, which checks it, and the files beside.

Runs in the process that marks, nbgrader's or Gradescope's; nothing of a notebook runs here.
"""

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from distlab_course.classroom.cells import WRITTEN, Cell, cell_of
from distlab_course.classroom.labs import CHECK


def notes_of(cell: NotebookNode) -> dict[str, Any]:
    """What nbgrader keeps about a cell."""
    return cell.metadata.get("nbgrader", {})


def checked_by(cell: NotebookNode) -> str:
    """The exercise that a cell checks; "" for none."""
    match = CHECK.search(cell.source)
    if match is None:
        return ""
    return match[1]


def code_of(cells: Sequence[NotebookNode]) -> list[Cell]:
    """The code cells, as nbgrader's notes say.

    A cell with an answer, or with a check, knows its exercise.
    """
    found = []
    for number, cell in enumerate(_code_cells(cells), 1):
        notes = notes_of(cell)
        answers = ""
        if notes.get("solution"):
            answers = notes.get("grade_id", "").removeprefix("answer-")
        checks = ""
        if notes.get("grade"):
            checks = checked_by(cell)
        found.append(cell_of(f"code cell {number}", answers, cell.source, checks))
    return found


def code_without_notes(cells: Sequence[NotebookNode], asked: Sequence[str]) -> list[Cell]:
    """The code cells of a notebook as a student has handed it in, with no locked cell restored.

    The last cell with the check of an exercise is its check. Its answer is the cell that nbgrader's
    notes name, if they are still there, or else the code cell above the check.
    """
    code = _code_cells(cells)
    places_of_checks: dict[str, int] = {}  # by exercise
    for place, cell in enumerate(code):
        name = checked_by(cell)
        if name in asked:
            places_of_checks[name] = place
    answers: dict[int, str] = {}  # exercises, by the place of the answer
    checks: dict[int, str] = {}  # by the place of the check
    for name, place in places_of_checks.items():
        answers[_place_of_answer(name, code, place)] = name
        checks[place] = name
    found = []
    for place, cell in enumerate(code):
        label = f"code cell {place + 1}"
        answered = answers.get(place, "")
        checked = checks.get(place, "")
        found.append(cell_of(label, answered, cell.source, checked))
    return found


def _place_of_answer(name: str, code: Sequence[NotebookNode], check: int) -> int:
    """The place of the answer to an exercise, of whose check the place is known."""
    for place, cell in enumerate(code):
        if notes_of(cell).get("grade_id") == f"answer-{name}":
            return place
    return max(0, check - 1)


def _code_cells(cells: Sequence[NotebookNode]) -> list[NotebookNode]:
    return [cell for cell in cells if cell.cell_type == "code"]


# --- files ---


def copy_files(files: Path, folder: Path) -> None:
    """Copy what was handed in, as plain files, into a folder of its own."""
    folder.mkdir(parents=True)
    for path in files.rglob("*"):
        if path.is_file() and not path.is_symlink():
            target = folder / path.relative_to(files)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


def write_files(sources: Sequence[str], folder: Path) -> None:
    """Write what the %%writefile cells of a notebook write.

    A file that cannot be written is left out, as it could not be written in the notebook either.
    """
    for source in sources:
        match = WRITTEN.fullmatch(source)
        if match:
            with contextlib.suppress(OSError, UnicodeEncodeError):
                (folder / match[1]).write_text(match[2])
