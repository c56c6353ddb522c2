"""`python -m distlab class`: builds a folder for nbgrader, and a bundle for students.

Both are made from the lessons; the folder has the answers, too. Runs in a teacher's process.
"""

import argparse
import shlex
import shutil
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat

from distlab_course.classroom import for_gradescope
from distlab_course.classroom.labs import FIGURE, answers, assignment
from distlab_course.lessons import SOURCE

__all__ = ["answers", "assignment", "build", "make_class"]

FOLDER = Path("distlab-class")
CORE = tuple(f"0{number}" for number in range(10))
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
# in the configuration of an older distlab, and what to say of that
IN_OLD_CONFIGURATION = "for_nbgrader.mark"
ABOUT_OLD_CONFIGURATION = (
    "   of an older distlab: it notes nothing that a person has to look at; "
    "delete it, and run this again"
)


def make_class(arguments: Sequence[str]) -> int:
    """`python -m distlab class [DIR] [LAB ...]`: build assignments for nbgrader.

    Returns the exit status.
    """
    parser = argparse.ArgumentParser(
        "python -m distlab class",
        description="Build nbgrader assignments, and a bundle for students without answers.",
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, default=FOLDER, help="where; by default %(default)s"
    )
    parser.add_argument(
        "labs", nargs="*", metavar="LAB", help="numbers, such as 05; by default the core course"
    )
    parser.add_argument(
        "--gradescope", action="store_true", help="also an autograder of Gradescope for each lab"
    )
    chosen = parser.parse_args(arguments)
    known = _labs_by_number()
    labs = chosen.labs or CORE
    unknown = [lab for lab in labs if lab not in known]
    if unknown:
        message = f"LAB must be among {' '.join(known)}, got {' '.join(unknown)}"
        print(f"distlab: {message}", file=sys.stderr)
        return 2
    try:
        for line in build(chosen.folder, [known[lab] for lab in labs]):
            print(line)
        if chosen.gradescope:
            for lab in labs:
                print(*for_gradescope.build(chosen.folder, known[lab]))
    except OSError as error:
        message = f"{chosen.folder} cannot be written: {error.strerror} ({error.filename})"
        print(f"distlab: {message}", file=sys.stderr)
        return 1
    return 0


def _labs_by_number() -> dict[str, Path]:
    """The notebooks of all labs by their numbers, such as "05"."""
    labs = {}
    for path in sorted((SOURCE / "notebooks").glob("[0-9]*.ipynb")):
        labs[path.name[:2]] = path
    return labs


def build(folder: Path, labs: Sequence[Path]) -> Iterator[str]:
    """Build the assignments of these labs into a folder, and say what was built, line by line."""
    for lab in labs:
        yield _build_source(folder / "source" / lab.stem, lab)
    yield _write_configuration(folder / "nbgrader_config.py")
    bundle = folder / "students.zip"
    _write_bundle(bundle, labs)
    yield f"{bundle}   the same without answers"
    command = f"cd {shlex.quote(str(folder))} && nbgrader generate_assignment {labs[0].stem}"
    yield f"Next, hand out the first lab: {command}"


def _build_source(source: Path, lab: Path) -> str:
    """Write what nbgrader makes an assignment of into a new folder; returns what to say of it."""
    shutil.rmtree(source, ignore_errors=True)
    notebook = assignment(lab, with_answers=True)
    source.mkdir(parents=True)
    nbformat.write(notebook, source / lab.name)
    for name, path in _files(lab).items():
        (source / name).parent.mkdir(exist_ok=True)
        shutil.copy(path, source / name)
    points = []
    for cell in notebook.cells:
        notes = cell.metadata.get("nbgrader", {})
        if notes.get("points") is not None:
            points.append(notes["points"])
    return f"{source}   exercises: {len(points)}, points: {sum(points)}"


def _write_configuration(path: Path) -> str:
    """Write nbgrader's configuration where there is none; returns what to say of it."""
    if not path.exists():
        path.write_text(CONFIGURATION)
    if IN_OLD_CONFIGURATION in path.read_text():
        return f"{path}{ABOUT_OLD_CONFIGURATION}"
    return str(path)


def _write_bundle(path: Path, labs: Sequence[Path]) -> None:
    """Write a zip of the labs without answers, with what they need."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for lab in labs:
            text = nbformat.writes(assignment(lab, with_answers=False))
            archive.writestr(f"{lab.stem}/{lab.name}", text)
            for name, file in _files(lab).items():
                archive.write(file, f"{lab.stem}/{name}")
        archive.write(SOURCE / "notebooks" / "cheat_sheet.md", "cheat_sheet.md")


def _files(lab: Path) -> dict[str, Path]:
    """The diagrams and the programs that a lab needs, by their paths beside the assignment."""
    text = lab.read_text()
    files = {name: SOURCE / name for name in FIGURE.findall(text)}
    for program in lab.parent.glob("*.py"):
        if program.name in text:
            files[program.name] = program
    return files
