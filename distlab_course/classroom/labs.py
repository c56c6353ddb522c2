"""A lab as an assignment, and our answers to it, from the text of its notebook and of its answers'.

Runs in a teacher's process, or in one that marks. An assignment is a lab without outputs, in which
each exercise has a cell for the answer and a locked cell that checks it, worth as many points as
the exercise takes minutes; optional ones are worth none.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from distlab_course.classroom.submission import (
    WRITTEN,
    Cell,
    cell_of,
    only,
    reachable,
    statements,
    without,
)

CHECK = re.compile(r'distlab\.check\("(\w+)", (\w+|\.\.\.)\)')
EXERCISE = re.compile(r"^\*\*Exercise [\d.]+: .*\((core|optional), (\d+) minutes?\)", re.MULTILINE)
FIGURE = re.compile(r"\.\./(figs/[\w.]+)")
NOT_FOR_STUDENTS = (
    "](solutions/",
    "folder `solutions`",
    "outputs are folded",
    "is folded",
    "are folded",
)


def assignment(lab: Path, with_answers: bool) -> NotebookNode:
    """A lab as an assignment: for students, or with each answer in a region that nbgrader takes
    out.
    """
    notebook, cells, points = nbformat.read(lab, as_version=4), [], 0
    right = answers(lab) if with_answers else {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _for_students(cell.source)
            for kind, minutes in EXERCISE.findall(cell.source):
                points = int(minutes) if kind == "core" else 0
        else:
            cell.outputs, cell.execution_count = [], None
            cell.metadata = NotebookNode(
                {"tags": cell.metadata.tags} if "tags" in cell.metadata else {}
            )
        if cell.cell_type == "code" and (match := CHECK.fullmatch(cell.source)):
            name, argument = match.groups()
            if argument == "...":
                cells.append(nbformat.v4.new_code_cell(f"{name} = ...", id=f"answer-{name}"))
                cell.source = f'distlab.check("{name}", {name})'
            answer = cells[-1]
            answer.metadata["nbgrader"] = _metadata(f"answer-{name}", solution=True)
            if with_answers:
                answer.source += f"\n### BEGIN SOLUTION\n{right[name]}\n### END SOLUTION"
            cell.metadata["nbgrader"] = {
                **_metadata(f"check-{name}", grade=True, locked=True),
                "points": points,
            }
        cells.append(cell)
    notebook.cells = cells
    return notebook


def answers(lab: Path) -> dict[str, str]:
    """Our answers to a lab's exercises, by name: code that defines that name, with what it needs
    and the lab lacks.
    """
    found: dict[str, str] = {}
    theirs = [cell_of("", "", source) for source in _sources(lab)]
    sources = _sources(lab.parent / "solutions" / lab.name)
    files = dict(match.groups() for match in map(WRITTEN.fullmatch, sources) if match)
    cells = [cell_of("", "", source) for source in sources]
    for place, cell in enumerate(cells):
        for name, value, before in _checks(cell):
            if name in found:  # what follows are wrong ones
                continue
            lines = cell.source.splitlines()[:before]
            if program := files.get(value.strip('"')):
                lines += [
                    "import pathlib",
                    f"written = pathlib.Path({value}).write_text({program!r})",
                ]
            own = cell._replace(
                answers=name,
                source="\n".join([*lines, f"{name} = {value}" if value != name else ""]),
            )
            offered = [*cells[:place], own]
            parts = [
                only(one.source, nodes if one is own else without(theirs, nodes)).strip()
                for one, nodes in zip(offered, reachable(name, offered), strict=True)
            ]
            found[name] = "\n\n\n".join(part for part in parts if part)
    return found


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
                yield (
                    call.args[0].value,
                    ast.get_source_segment(cell.source, call.args[1]),
                    statement.lineno - 1,
                )


def _sources(notebook: Path) -> list[str]:
    return [
        cell.source
        for cell in nbformat.read(notebook, as_version=4).cells
        if cell.cell_type == "code"
    ]


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
    lines = [
        line for line in text.splitlines() if not any(words in line for words in NOT_FOR_STUDENTS)
    ]
    text = "\n".join(lines).replace(
        "put the value in place of `...` in its check", "put it in place of `...`"
    )
    lines = text.splitlines()
    text = FIGURE.sub(r"\1", "\n".join(lines))
    return re.sub(r"(?<!!)\[([^\]]+)\]\((?![a-z]+:|#)[^)]+\)", r"\1", text)
