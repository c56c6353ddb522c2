"""A lab as an assignment, and our answers to it, from the text of its notebook and of its answers'.

Runs in a teacher's process, or in one that marks. An assignment is a lab without outputs, in which
each exercise has a cell for the answer and a locked cell that checks it, worth as many points as
the exercise takes minutes; optional ones are worth none.
"""

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

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
    right: dict[str, str] = {}
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
            if argument == "...":
                cells.append(nbformat.v4.new_code_cell(f"{name} = ...", id=f"answer-{name}"))
                cell.source = f'distlab.check("{name}", {name})'
            answer = cells[-1]
            answer.metadata["nbgrader"] = _metadata(f"answer-{name}", solution=True)
            if with_answers:
                answer.source += f"\n### BEGIN SOLUTION\n{right[name]}\n### END SOLUTION"
            check = _metadata(f"check-{name}", grade=True, locked=True)
            cell.metadata["nbgrader"] = {**check, "points": points}
        cells.append(cell)
    notebook.cells = cells
    return notebook


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
    in_lab = [cell_of("", "", source) for source in _sources(lab)]
    sources = _sources(lab.parent / "solutions" / lab.name)
    programs = _programs(sources)
    cells = [cell_of("", "", source) for source in sources]
    for place, cell in enumerate(cells):
        for name, value, before in _checks(cell):
            if name in found:  # the checks that follow are of wrong answers
                continue
            lines = cell.source.splitlines()[:before]
            program = programs.get(value.strip('"'))
            if program:
                lines.append("import pathlib")
                lines.append(f"written = pathlib.Path({value}).write_text({program!r})")
            if value == name:
                lines.append("")
            else:
                lines.append(f"{name} = {value}")
            own = cell._replace(answers=name, source="\n".join(lines))
            found[name] = _with_what_it_needs(name, own, cells[:place], in_lab)
    return found


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
    theirs = [cell_of("", "", source) for source in _sources(lab)]
    ours = [cell_of("", name, source) for name, source in answers(lab).items()]
    return theirs, ours


def _checks(cell: Cell) -> Iterator[tuple[str, str, int]]:
    """(name, what is checked, lines before) of each check in a cell."""
    for statement in statements(cell):
        for call in ast.walk(statement):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "distlab.check":
                name, checked, *_ = call.args
                source = ast.get_source_segment(cell.source, checked) or ""
                yield ast.literal_eval(name), source, statement.lineno - 1


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
