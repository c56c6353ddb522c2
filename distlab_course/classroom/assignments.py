"""`python -m distlab class`: a folder for nbgrader, and a bundle for students, built from the lessons and the answers.

Runs in a teacher's process. An assignment is a lab without outputs, in which each exercise has a cell for the answer
and a locked cell that checks it, worth as many points as the exercise takes minutes; optional ones are worth none.
"""

import argparse
import ast
import functools
import re
import shlex
import shutil
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from distlab_course.classroom.submission import WRITTEN, Cell, cell_of, only, reachable, statements, without
from distlab_course.lessons import SOURCE

FOLDER = Path("distlab-class")
CORE = tuple(f"0{number}" for number in range(9))
CHECK = re.compile(r'distlab\.check\("(\w+)", (\w+|\.\.\.)\)')
EXERCISE = re.compile(r"^\*\*Exercise [\d.]+: .*\((core|optional), (\d+) minutes?\)", re.MULTILINE)
FIGURE = re.compile(r"\.\./(figs/[\w.]+)")
CONFIGURATION = '''\
"""How nbgrader marks this course. Written once by `python -m distlab class`; yours to change."""

c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "distlab"
c.ClearSolutions.code_stub = {"python": ""}  # the stub of an exercise stands above its answer
c.ExportApp.plugin_class = "distlab_course.classroom.for_nbgrader.ByExercise"
c.Autograde.autograde_preprocessors = [
    "distlab_course.classroom.for_nbgrader.Mark",  # in place of nbgrader's Execute: it runs no cell
    "nbconvert.preprocessors.ClearMetadataPreprocessor",
    "nbgrader.preprocessors.LimitOutput",
    "distlab_course.classroom.for_nbgrader.SaveGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]
# c.Mark.jobs = 8  # notebooks that are marked at once; by default this machine's cores
'''
NOT_FOR_STUDENTS = ("](solutions/", "folder `solutions`", "outputs are folded", "is folded", "are folded")
OLD_CONFIGURATION = "for_nbgrader.mark"
OLDER = "   of an older distlab: it notes nothing that a person has to look at; delete it, and run this again"


def make_class(arguments: Sequence[str]) -> int:
    """`python -m distlab class [DIR] [LAB ...]`: build assignments for nbgrader. Returns the exit status."""
    parser = argparse.ArgumentParser(
        "python -m distlab class", description="Build nbgrader assignments, and a bundle for students without answers."
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="where; by default %(default)s")
    parser.add_argument("labs", nargs="*", metavar="LAB", help="numbers, such as 05; by default the core course")
    chosen = parser.parse_args(arguments)
    known = {path.name[:2]: path for path in sorted((SOURCE / "notebooks").glob("[0-9]*.ipynb"))}
    labs = chosen.labs or CORE
    if unknown := [lab for lab in labs if lab not in known]:
        print(f"distlab: LAB must be among {' '.join(known)}, got {' '.join(unknown)}", file=sys.stderr)
        return 2
    try:
        for line in build(chosen.folder, [known[lab] for lab in labs]):
            print(line)
    except OSError as error:
        print(f"distlab: {chosen.folder} cannot be written: {error.strerror} ({error.filename})", file=sys.stderr)
        return 1
    return 0


def build(folder: Path, labs: Sequence[Path]) -> Iterator[str]:
    """Build the assignments of these labs into a folder, and say what was built, line by line."""
    configuration = folder / "nbgrader_config.py"
    for lab in labs:
        source = folder / "source" / lab.stem
        shutil.rmtree(source, ignore_errors=True)
        notebook = assignment(lab, with_answers=True)
        source.mkdir(parents=True)
        nbformat.write(notebook, source / lab.name)
        for name, path in _files(lab).items():
            (source / name).parent.mkdir(exist_ok=True)
            shutil.copy(path, source / name)
        found = [cell.metadata.get("nbgrader", {}).get("points") for cell in notebook.cells]
        points = [one for one in found if one is not None]
        yield f"{source}   exercises: {len(points)}, points: {sum(points)}"
    if not configuration.exists():
        configuration.write_text(CONFIGURATION)
    old = OLD_CONFIGURATION in configuration.read_text()
    yield f"{configuration}{OLDER if old else ''}"
    bundle = folder / "students.zip"
    with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED) as archive:
        for lab in labs:
            archive.writestr(f"{lab.stem}/{lab.name}", nbformat.writes(assignment(lab, with_answers=False)))
            for name, path in _files(lab).items():
                archive.write(path, f"{lab.stem}/{name}")
        archive.write(SOURCE / "notebooks" / "cheat_sheet.md", "cheat_sheet.md")
    yield f"{bundle}   the same without answers"
    yield f"Next, hand out the first lab: cd {shlex.quote(str(folder))} && nbgrader generate_assignment {labs[0].stem}"


def assignment(lab: Path, with_answers: bool) -> NotebookNode:
    """A lab as an assignment: for students, or with each answer in a region that nbgrader takes out."""
    notebook, cells, points = nbformat.read(lab, as_version=4), [], 0
    right = answers(lab) if with_answers else {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _for_students(cell.source)
            for kind, minutes in EXERCISE.findall(cell.source):
                points = int(minutes) if kind == "core" else 0
        else:
            cell.outputs, cell.execution_count = [], None
            cell.metadata = NotebookNode({"tags": cell.metadata.tags} if "tags" in cell.metadata else {})
        if cell.cell_type == "code" and (match := CHECK.fullmatch(cell.source)):
            name, argument = match.groups()
            if argument == "...":
                cells.append(nbformat.v4.new_code_cell(f"{name} = ...", id=f"answer-{name}"))
                cell.source = f'distlab.check("{name}", {name})'
            answer = cells[-1]
            answer.metadata["nbgrader"] = _metadata(f"answer-{name}", solution=True)
            if with_answers:
                answer.source += f"\n### BEGIN SOLUTION\n{right[name]}\n### END SOLUTION"
            cell.metadata["nbgrader"] = {**_metadata(f"check-{name}", grade=True, locked=True), "points": points}
        cells.append(cell)
    notebook.cells = cells
    return notebook


def answers(lab: Path) -> dict[str, str]:
    """Our answers to a lab's exercises, by name: code that defines that name, with what it needs and the lab lacks."""
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
                lines += ["import pathlib", f"written = pathlib.Path({value}).write_text({program!r})"]
            own = cell._replace(answers=name, source="\n".join([*lines, f"{name} = {value}" if value != name else ""]))
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
                yield call.args[0].value, ast.get_source_segment(cell.source, call.args[1]), statement.lineno - 1


def _sources(notebook: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]


def _metadata(name: str, solution: bool = False, grade: bool = False, locked: bool = False) -> NotebookNode:
    """What nbgrader wants to know of a cell."""
    kinds = {"solution": solution, "grade": grade, "locked": locked, "task": False}
    return NotebookNode({"schema_version": 3, "grade_id": name, "cell_type": "code", **kinds})


def _for_students(text: str) -> str:
    """Markdown of a lab whose diagrams lie beside it, with no link to answers or to other labs.

    It promises no answers, speaks of no outputs, which an assignment has not, and a value has a cell of its own.
    """
    lines = [line for line in text.splitlines() if not any(words in line for words in NOT_FOR_STUDENTS)]
    text = "\n".join(lines).replace("put the value in place of `...` in its check", "put it in place of `...`")
    lines = text.splitlines()
    text = FIGURE.sub(r"\1", "\n".join(lines))
    return re.sub(r"(?<!!)\[([^\]]+)\]\((?![a-z]+:|#)[^)]+\)", r"\1", text)


def _files(lab: Path) -> dict[str, Path]:
    """The diagrams and the programs that a lab needs, by their paths beside the assignment."""
    text = lab.read_text()
    figures = {name: SOURCE / name for name in FIGURE.findall(text)}
    return figures | {path.name: path for path in lab.parent.glob("*.py") if path.name in text}
