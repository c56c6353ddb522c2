"""`python -m distlab class`: builds a folder for nbgrader, and a bundle for students.

Both are made from the lessons and the answers. Runs in a teacher's process.
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
CORE = tuple(f"0{number}" for number in range(9))
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
OLD_CONFIGURATION = "for_nbgrader.mark"
OLDER = (
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
    known = {path.name[:2]: path for path in sorted((SOURCE / "notebooks").glob("[0-9]*.ipynb"))}
    labs = chosen.labs or CORE
    if unknown := [lab for lab in labs if lab not in known]:
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
        notes = [cell.metadata.get("nbgrader", {}) for cell in notebook.cells]
        points = [note["points"] for note in notes if note.get("points") is not None]
        yield f"{source}   exercises: {len(points)}, points: {sum(points)}"
    if not configuration.exists():
        configuration.write_text(CONFIGURATION)
    old = OLD_CONFIGURATION in configuration.read_text()
    yield f"{configuration}{OLDER if old else ''}"
    bundle = folder / "students.zip"
    with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED) as archive:
        for lab in labs:
            text = nbformat.writes(assignment(lab, with_answers=False))
            archive.writestr(f"{lab.stem}/{lab.name}", text)
            for name, path in _files(lab).items():
                archive.write(path, f"{lab.stem}/{name}")
        archive.write(SOURCE / "notebooks" / "cheat_sheet.md", "cheat_sheet.md")
    yield f"{bundle}   the same without answers"
    command = f"cd {shlex.quote(str(folder))} && nbgrader generate_assignment {labs[0].stem}"
    yield f"Next, hand out the first lab: {command}"


def _files(lab: Path) -> dict[str, Path]:
    """The diagrams and the programs that a lab needs, by their paths beside the assignment."""
    text = lab.read_text()
    figures = {name: SOURCE / name for name in FIGURE.findall(text)}
    return figures | {path.name: path for path in lab.parent.glob("*.py") if path.name in text}
