"""Marks submitted assignments, and writes the points of each exercise. Called by nbgrader, as nbgrader_config.py says.

Nothing of a notebook runs in nbgrader's process: `mark` reads its cells, and starts a judge.
"""

import csv
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.plugins import ExportPlugin

from distlab_course.classroom.assignments import CHECK
from distlab_course.classroom.submission import WRITTEN, Cell, cell_of
from distlab_course.lessons import SOURCE

JUDGE = str(Path(__file__).with_name("judge.py"))
SECONDS = 300.0  # for one exercise; a check gives up earlier, unless its process is harmed
END_SECONDS = 30.0  # for a judge that has said everything
NO_CHECK = 'This cell has no distlab.check("name", name), so a person has to mark it.'
NO_VERDICT = "{}: the process that checks it ended, or gave no verdict for {:.0f} s."


def mark(notebook: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, dict[str, Any]]:
    """In place of nbgrader's Execute: the output of each locked check is the judge's verdict, an error if not passed.

    No cell is run, so a student's cells have no outputs; but what %%writefile writes into the folder is there.
    """
    lab = SOURCE / "notebooks" / f"{resources['nbgrader']['notebook']}.ipynb"
    original = nbformat.read(lab, as_version=4).cells if lab.is_file() else []
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    checks = [(cell, CHECK.search(cell.source)) for cell in code if _of(cell).get("grade")]
    folder = Path(resources["metadata"]["path"])
    for cell in code:
        cell.outputs = []
        if match := WRITTEN.fullmatch(cell.source):
            (folder / match[1]).write_text(match[2])
    asked = [match[1] for _, match in checks if match]
    verdicts = judged(asked, code_of(notebook.cells), code_of(original), folder)
    for cell, match in checks:
        passed, words = verdicts[match[1]] if match else (False, NO_CHECK)
        if passed:
            output = nbformat.v4.new_output("stream", name="stdout", text=f"{words}\n")
        else:
            first, *_ = lines = words.splitlines()
            output = nbformat.v4.new_output("error", ename="NotPassed", evalue=first, traceback=lines)
        cell.outputs = [output]
    return notebook, resources


def code_of(cells: list[NotebookNode]) -> list[Cell]:
    """The code cells; one for an answer knows its exercise."""
    found = []
    for number, cell in enumerate((one for one in cells if one.cell_type == "code"), 1):
        name = _of(cell).get("grade_id", "").removeprefix("answer-") if _of(cell).get("solution") else ""
        found.append(cell_of(f"code cell {number}", name, cell.source))
    return found


def judged(asked: list[str], submitted: list[Cell], lab: list[Cell], folder: Path) -> dict[str, tuple[bool, str]]:
    """(passed, words) for each exercise. A judge that says nothing for too long is ended, and another one goes on."""
    found: dict[str, tuple[bool, str]] = {}
    while left := [name for name in asked if name not in found]:
        given = {"asked": left, "submitted": submitted, "lab": lab}
        command = [sys.executable, JUDGE]  # by its path, so that no file of a student's folder is imported
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=folder, start_new_session=True, **pipes) as process:
            process.stdin.write(json.dumps(given))
            process.stdin.close()
            for name in left:
                limit = Timer(SECONDS, _end, [process])
                limit.start()
                line = process.stdout.readline()
                limit.cancel()
                if not line:
                    found[name] = (False, NO_VERDICT.format(name, SECONDS))
                    break
                found[name] = json.loads(line)
            else:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(END_SECONDS)  # it ends its ranks first
            _end(process)
    return found


class ByExercise(ExportPlugin):
    """`nbgrader export`: a CSV with a line for each student and exercise, where a teacher's marks replace ours."""

    def export(self, gradebook: Gradebook) -> None:
        """Write the file: --to NAME, or grades.csv."""
        students = self.student or [student.id for student in gradebook.students]
        assignments = self.assignment or [assignment.name for assignment in gradebook.assignments]
        with open(self.to or "grades.csv", "w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["assignment", "student", "exercise", "points", "of"])
            for assignment in assignments:
                for student in students:
                    with suppress(MissingEntry):  # not handed in
                        for notebook in gradebook.find_submission(assignment, student).notebooks:
                            for grade in notebook.grades:
                                exercise = grade.name.removeprefix("check-")
                                rows.writerow([assignment, student, exercise, grade.score, grade.max_score])


def _of(cell: NotebookNode) -> dict[str, Any]:
    """What nbgrader keeps about a cell."""
    return cell.metadata.get("nbgrader", {})


def _end(process: subprocess.Popen) -> None:
    """End a judge; its ranks end when it is gone."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
