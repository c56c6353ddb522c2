"""A lab as an assignment, and our answers to it, from the text of its notebook and of its answers'.

Runs in a teacher's process, or in one that marks. An assignment is a lab without outputs, in which
each exercise has a cell for the answer and a locked cell that checks it, worth as many points as
the exercise takes minutes; optional ones are worth none.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbformat import NotebookNode

from distlab_course.classroom.cells import WRITTEN, Cell, cell_of
from distlab_course.classroom.statements import only, statements
from distlab_course.classroom.submission import reachable, without

CHECK = re.compile(r'distlab\.check\("(\w+)", (\w+|\.\.\.)\)')
EXERCISE = re.compile(r"^\*\*Exercise [\d.]+: .*\((core|optional), (\d+) minutes?\)", re.MULTILINE)
FIGURE = re.compile(r"\.\./(figs/[\w.]+)")
# a line with one of them is left out of an assignment
NOT_FOR_STUDENTS = ("](solutions/", "folder `solutions`", "is folded", "are folded")


def assignment(lab: Path, with_answers: bool) -> NotebookNode:
    """A lab as an assignment, for students, or with answers in regions that nbgrader takes out."""
    notebook = nbformat.read(lab, as_version=4)
    right: dict[str, str] = {}  # by exercise
    if with_answers:
        right = answers(lab)
    cells: list[NotebookNode] = []
    points = 0  # of the exercise whose text came last
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _for_students(cell.source)
            points = _points_in(cell.source, points)
            cells.append(cell)
            continue
        _clear(cell)
        match = CHECK.fullmatch(cell.source)
        if cell.cell_type == "code" and match:
            name, argument = match.groups()
            if argument == "...":  # a value, which has no cell for its answer in a lab
                cells.append(nbformat.v4.new_code_cell(f"{name} = ...", id=f"answer-{name}"))
                cell.source = f'distlab.check("{name}", {name})'
            answer = right[name] if with_answers else None
            _make_answer(cells[-1], name, answer)
            _make_check(cell, name, points)
        cells.append(cell)
    notebook.cells = cells
    return notebook


def _make_answer(cell: NotebookNode, name: str, right: str | None) -> None:
    """Let a cell be the one for an answer, and hold the right one, if it is given."""
    cell.metadata["nbgrader"] = _metadata(f"answer-{name}", solution=True)
    if right is not None:
        cell.source += f"\n### BEGIN SOLUTION\n{right}\n### END SOLUTION"


def _make_check(cell: NotebookNode, name: str, points: int) -> None:
    """Let a cell be the locked one that checks an exercise."""
    notes = _metadata(f"check-{name}", grade=True, locked=True)
    cell.metadata["nbgrader"] = {**notes, "points": points}


def _points_in(text: str, before: int) -> int:
    """The points of the last exercise that a text asks; those before where it asks none."""
    points = before
    for kind, minutes in EXERCISE.findall(text):
        points = 0
        if kind == "core":
            points = int(minutes)
    return points


def _clear(cell: NotebookNode) -> None:
    """Take away what a run has left in a cell, and notes other than its tags."""
    cell.outputs = []
    cell.execution_count = None
    kept = NotebookNode()
    if "tags" in cell.metadata:
        kept.tags = cell.metadata.tags
    cell.metadata = kept


def answers(lab: Path) -> dict[str, str]:
    """Our answers to a lab's exercises, by name.

    Each is code that defines the name, with what it needs and the lab lacks.
    """
    found: dict[str, str] = {}
    in_lab = _cells(_sources(lab))
    sources = _sources(lab.parent / "solutions" / lab.name)
    programs = _programs(sources)
    cells = _cells(sources)
    for place, cell in enumerate(cells):
        for check in _checks(cell):
            if check.name in found:  # the checks that follow are of wrong answers
                continue
            own = _answer_of(check, cell, programs)
            found[check.name] = _with_what_it_needs(check.name, own, cells[:place], in_lab)
    return found


def _answer_of(check: _Check, cell: Cell, programs: dict[str, str]) -> Cell:
    """The cell with our answer, up to its check, as one that gives the answer its name."""
    lines = cell.source.splitlines()[: check.lines_before]
    program = programs.get(check.value.strip('"'))
    if program:
        lines.append("import pathlib")
        lines.append(f"written = pathlib.Path({check.value}).write_text({program!r})")
    if check.value == check.name:
        lines.append("")
    else:
        lines.append(f"{check.name} = {check.value}")
    return cell._replace(answers=check.name, source="\n".join(lines))


def _programs(sources: Sequence[str]) -> dict[str, str]:
    """The files that %%writefile cells write, by name."""
    programs = {}
    for source in sources:
        match = WRITTEN.fullmatch(source)
        if match:
            name, text = match.groups()
            programs[name] = text
    return programs


def _with_what_it_needs(name: str, own: Cell, above: Sequence[Cell], in_lab: Sequence[Cell]) -> str:
    """The source of an answer's cell, below what it needs of the cells above it."""
    offered = [*above, own]
    parts = []
    for cell, nodes in zip(offered, reachable(name, offered), strict=True):
        if cell is not own:
            nodes = without(in_lab, nodes)
        part = only(cell.source, nodes).strip()
        if part:
            parts.append(part)
    return "\n\n\n".join(parts)


@functools.cache
def our_cells(lab: Path) -> tuple[list[Cell], list[Cell]]:
    """The cells of a lab, and our answers to it as cells; none for an assignment that is no lab."""
    if not lab.is_file():
        return [], []
    in_lab = _cells(_sources(lab))
    ours = [cell_of("", name, source) for name, source in answers(lab).items()]
    return in_lab, ours


class _Check(NamedTuple):
    """A call of `distlab.check` in a cell."""

    name: str  # of the exercise
    value: str  # the source of what is checked
    lines_before: int  # of the cell, before the statement with the check


def _checks(cell: Cell) -> Iterator[_Check]:
    """The checks in a cell."""
    for statement in statements(cell):
        for call in ast.walk(statement):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "distlab.check":
                name, checked, *_ = call.args
                source = ast.get_source_segment(cell.source, checked) or ""
                yield _Check(ast.literal_eval(name), source, statement.lineno - 1)


def _cells(sources: Sequence[str]) -> list[Cell]:
    """Code cells of ours, which answer and check nothing."""
    return [cell_of("", "", source) for source in sources]


def _sources(notebook: Path) -> list[str]:
    """The code cells of a notebook."""
    cells = nbformat.read(notebook, as_version=4).cells
    return [cell.source for cell in cells if cell.cell_type == "code"]


def _metadata(
    name: str, solution: bool = False, grade: bool = False, locked: bool = False
) -> NotebookNode:
    """What nbgrader wants to know of a cell."""
    kinds = {"solution": solution, "grade": grade, "locked": locked, "task": False}
    return NotebookNode({"schema_version": 3, "grade_id": name, "cell_type": "code", **kinds})


def _for_students(text: str) -> str:
    """Markdown of a lab whose diagrams lie beside it, with no link to answers or to other labs.

    It promises no answers, speaks of no outputs, which an assignment has not, and a value has a
    cell of its own.
    """
    lines = []
    for line in text.splitlines():
        if not any(words in line for words in NOT_FOR_STUDENTS):
            lines.append(line)
    # where the last line is left out, the line above it is often empty
    text = "\n".join(lines).removesuffix("\n")
    place = "put the value in place of `...` in its check"
    text = text.replace(place, "put it in place of `...`")
    text = FIGURE.sub(r"\1", text)
    return re.sub(r"(?<!!)\[([^\]]+)\]\((?![a-z]+:|#)[^)]+\)", r"\1", text)
