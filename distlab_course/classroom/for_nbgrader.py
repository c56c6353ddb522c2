"""Marks submitted assignments, and writes the points of each exercise.

Called by nbgrader, as nbgrader_config.py says. Nothing of a notebook runs in nbgrader's process:
`Mark` reads its cells, and judges mark them (`marking.py`). When nbgrader comes to the first
student of an assignment, those who follow are marked at the same time.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.plugins import ExportPlugin
from nbgrader.preprocessors import NbGraderPreprocessor, SaveAutoGrades
from traitlets import Integer

from distlab.checking import all_exercises
from distlab.machine import cores
from distlab_course.classroom.handed_in import checked_by, code_of, notes_of, write_files
from distlab_course.classroom.judge import Decision
from distlab_course.classroom.labs import our_cells
from distlab_course.classroom.marking import Marking
from distlab_course.lessons import SOURCE

NO_CHECK = 'This cell has no distlab.check("name", name), so a person has to mark it.'
# under which nbgrader's resources have the reasons why a person has to look, by a check's name
LOOKS = "distlab_look"
EVERYBODY = "*"
COLUMNS = ("assignment", "student", "exercise", "title", "points", "of", "to be looked at")


class Mark(NbGraderPreprocessor):
    """In place of nbgrader's Execute: each locked check shows the verdict, an error if not passed.

    No cell is run, so a student's cells have no outputs; but what %%writefile writes into the
    folder is there.
    """

    jobs = Integer(0, help="how many notebooks are marked at once; 0 for this machine's cores").tag(
        config=True
    )

    def preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        """Mark a notebook, and those of the students who follow."""
        chosen = self.config.get("CourseDirectory", {}).get("student_id", EVERYBODY)
        others: list[Path] = []
        if chosen == EVERYBODY:
            others = _not_marked_yet(resources)
        return _marked(nb, resources, self.jobs or cores(), others)


def mark(notebook: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, dict[str, Any]]:
    """As `Mark`, one notebook after the other; an older nbgrader_config.py names it."""
    return _marked(notebook, resources, 1, [])


class SaveGrades(SaveAutoGrades):
    """nbgrader's own, which also notes what a person has to look at, and why."""

    def _add_score(self, cell: NotebookNode, resources: dict[str, Any]) -> None:
        super()._add_score(cell, resources)
        check = notes_of(cell)["grade_id"]
        if check in resources.get(LOOKS, {}):
            grade = self.gradebook.find_grade(check, *self._submission)
            grade.needs_manual_grade = True
            self.gradebook.db.commit()

    def _add_comment(self, cell: NotebookNode, resources: dict[str, Any]) -> None:
        super()._add_comment(cell, resources)
        answer = notes_of(cell)["grade_id"]
        check = f"check-{answer.removeprefix('answer-')}"
        why = resources.get(LOOKS, {}).get(check)
        if why:
            comment = self.gradebook.find_comment(answer, *self._submission)
            comment.auto_comment = why
            self.gradebook.db.commit()

    @property
    def _submission(self) -> tuple[str, str, str]:
        return self.notebook_id, self.assignment_id, self.student_id


class ByExercise(ExportPlugin):
    """`nbgrader export`: a CSV with a line for each student and exercise.

    A teacher's marks replace ours.
    """

    def export(self, gradebook: Gradebook) -> None:
        """Write the file: --to NAME, or grades.csv."""
        students = self.student or [student.id for student in gradebook.students]
        assignments = self.assignment or [assignment.name for assignment in gradebook.assignments]
        with open(self.to or "grades.csv", "w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(COLUMNS)
            for assignment in assignments:
                for student in students:
                    for row in _rows_of_student(gradebook, assignment, student):
                        rows.writerow([assignment, student, *row])


def _rows_of_student(gradebook: Gradebook, assignment: str, student: str) -> list[list[Any]]:
    """The rows of the notebooks that a student has handed in; none where that is none."""
    rows = []
    with suppress(MissingEntry):
        for notebook in gradebook.find_submission(assignment, student).notebooks:
            rows += _rows_of(notebook)
    return rows


def _rows_of(notebook: Any) -> list[list[Any]]:
    """For each exercise of a submitted notebook: name, title, points, of how many, why to look."""
    known = all_exercises()
    comments = {comment.name: comment.comment for comment in notebook.comments}
    rows = []
    for grade in notebook.grades:
        exercise = grade.name.removeprefix("check-")
        look = ""
        if grade.needs_manual_grade:
            look = comments.get(f"answer-{exercise}") or NO_CHECK
        title = ""
        if exercise in known:
            title = known[exercise].title
        rows.append([exercise, title, grade.score, grade.max_score, look])
    return rows


# --- a notebook ---


def _marked(
    notebook: NotebookNode, resources: dict[str, Any], jobs: int, others: Sequence[Path]
) -> tuple[NotebookNode, dict[str, Any]]:
    """Put the verdict below each locked check, and begin to mark the others' notebooks."""
    lab = resources["nbgrader"]["notebook"]
    folder = Path(resources["metadata"]["path"])
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    checks = [cell for cell in code if notes_of(cell).get("grade")]
    for cell in code:
        cell.outputs = []
    write_files([cell.source for cell in code], folder)
    result = _begun(lab, notebook, folder, jobs)
    _begin_others(lab, others, jobs)
    decisions = result.result()
    looks = resources.setdefault(LOOKS, {})
    looks.clear()
    for cell in checks:
        decision = _decision_of(cell, decisions)
        if decision.look:
            looks[notes_of(cell)["grade_id"]] = decision.look
        cell.outputs = [_output(decision)]
    return notebook, resources


def _begin_others(lab: str, others: Sequence[Path], jobs: int) -> None:
    """Begin to mark the notebooks of other students."""
    for path in others:
        # where it is no notebook: its own turn says so
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            notebook = nbformat.read(path, as_version=4)
            _begun(lab, notebook, path.parent, jobs)


def _decision_of(check: NotebookNode, decisions: dict[str, Decision]) -> Decision:
    """What was decided about the exercise that a locked cell checks."""
    name = checked_by(check)
    if not name:
        return Decision(False, NO_CHECK, NO_CHECK)
    return decisions[name]


def _output(decision: Decision) -> NotebookNode:
    """What a check shows."""
    if decision.passed:
        return nbformat.v4.new_output("stream", name="stdout", text=f"{decision.words}\n")
    lines = decision.words.splitlines()
    return nbformat.v4.new_output("error", ename="NotPassed", evalue=lines[0], traceback=lines)


# --- notebooks side by side ---


@functools.cache
def _marking(jobs: int) -> Marking:
    """The judges of this process."""
    return Marking(jobs)


@functools.cache
def _results() -> dict[str, Future[dict[str, Decision]]]:
    """What is being marked in this process, and was, by what is marked."""
    return {}


def _begun(lab: str, notebook: NotebookNode, files: Path, jobs: int) -> Future[dict[str, Decision]]:
    """Begin to mark a notebook, unless the same one was begun already."""
    submitted = code_of(notebook.cells)
    asked = []
    for cell in notebook.cells:
        if notes_of(cell).get("grade") and checked_by(cell):
            asked.append(checked_by(cell))
    content = json.dumps([lab, asked, submitted, _digests(files)])
    key = hashlib.sha256(content.encode()).hexdigest()
    results = _results()
    if key not in results:
        original, ours = our_cells(SOURCE / "notebooks" / f"{lab}.ipynb")
        results[key] = _marking(jobs).begin(asked, submitted, original, ours, files)
    return results[key]


def _digests(files: Path) -> list[tuple[str, str]]:
    """The programs and data beside a notebook, by name and content."""
    digests = []
    for path in sorted(files.rglob("*")):
        if path.is_file() and path.suffix != ".ipynb":
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            digests.append((str(path.relative_to(files)), digest))
    return digests


def _not_marked_yet(resources: dict[str, Any]) -> list[Path]:
    """Other students' notebooks of this name, handed in and not marked yet."""
    marked = Path(resources["metadata"]["path"])  # autograded/STUDENT/ASSIGNMENT
    course = marked.parents[2]
    assignment = marked.name
    name = f"{resources['nbgrader']['notebook']}.ipynb"
    found = []
    for path in sorted((course / "submitted").glob(f"*/{assignment}/{name}")):
        student = path.parts[-3]
        if not (course / "autograded" / student / assignment).exists():
            found.append(path)
    return found
