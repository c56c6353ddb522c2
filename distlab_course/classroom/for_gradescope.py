"""A lab as an autograder of Gradescope.

`python -m distlab class FOLDER 05 --gradescope` has `build` write the zip that a teacher uploads:
`setup.sh`, `run_autograder`, this course's packages, and the lab. On Gradescope, `main` runs in a
container for each student: it marks the one notebook in `submission/` with the judges of
`marking.py`, and writes `results/results.json`.
https://gradescope-autograders.readthedocs.io/en/latest/specs/
"""

import json
import shlex
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

import distlab
from distlab_course.classroom.handed_in import (
    checked_by,
    code_without_notes,
    notes_of,
    write_files,
)
from distlab_course.classroom.judge import Decision
from distlab_course.classroom.labs import assignment, our_cells
from distlab_course.classroom.marking import Marking
from distlab_course.lessons import PACKAGE, SOURCE

HOME = Path("/autograder")
# in the zip, and so in /autograder/source: the lab and the points of its exercises
ASSIGNMENT = "assignment.json"
LESSONS = "packages/distlab_course/lessons"
INDEX = "https://download.pytorch.org/whl/cpu"  # of torch without CUDA
SETUP = """\
#!/usr/bin/env bash
# Gradescope runs this once, as root, when it builds the image.
set -e
apt-get update && apt-get install -y python3-venv
python3 -m venv /autograder/python
/autograder/python/bin/pip install --extra-index-url {index} nbformat {requirements}
"""
RUN = """\
#!/usr/bin/env bash
# Gradescope runs this for each submission.
cd /autograder/source
export PYTHONPATH=/autograder/source/packages
exec /autograder/python/bin/python -m distlab_course.classroom.for_gradescope /autograder
"""
NO_NOTEBOOK = "Hand in one notebook (.ipynb): {} were found."


def build(folder: Path, lab: Path) -> Iterator[str]:
    """Write the autograder of a lab into a folder, and say so."""
    points = _points(assignment(lab, with_answers=False))
    requirements = shlex.join(_requirements())
    path = folder / "gradescope" / f"{lab.stem}.zip"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        _add_program(archive, "setup.sh", SETUP.format(index=INDEX, requirements=requirements))
        _add_program(archive, "run_autograder", RUN)
        archive.writestr(ASSIGNMENT, json.dumps({"lab": lab.stem, "points": points}))
        for package in (Path(distlab.__file__).parent, PACKAGE):
            _add_package(archive, package)
        for name in ("METADATA", "entry_points.txt"):
            text = distribution("distlab").read_text(name) or ""
            archive.writestr(f"packages/distlab-{distlab.__version__}.dist-info/{name}", text)
        archive.write(lab, f"{LESSONS}/notebooks/{lab.name}")
        solutions = lab.parent / "solutions" / lab.name
        archive.write(solutions, f"{LESSONS}/notebooks/solutions/{lab.name}")
    yield f"{path}   upload it to Gradescope as the autograder"


def _add_package(archive: zipfile.ZipFile, package: Path) -> None:
    """Add a package without the lessons in it."""
    for file in sorted(package.rglob("*.*")):
        inner = file.relative_to(package)
        if file.suffix in (".py", ".txt") and "lessons" not in inner.parts:
            archive.write(file, f"packages/{package.name}/{inner}")


def main(home: Path = HOME) -> None:
    """Mark what a student has handed in, and write the results."""
    given = json.loads((home / "source" / ASSIGNMENT).read_text())
    notebooks = sorted((home / "submission").rglob("*.ipynb"))
    if len(notebooks) == 1:
        decisions = _decisions(given["lab"], list(given["points"]), notebooks[0])
        results = _results(given["points"], decisions)
    else:
        found = len(notebooks) or "none"
        results = {"score": 0.0, "output": NO_NOTEBOOK.format(found)}
    folder = home / "results"
    folder.mkdir(exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results, indent=1))


def _decisions(lab: str, asked: list[str], path: Path) -> dict[str, Decision]:
    """What was decided about each exercise of a notebook."""
    try:
        cells = nbformat.read(path, as_version=4).cells
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return {name: Decision(False, f"{name}: this is no notebook: {error}") for name in asked}
    code = code_without_notes(cells, asked)
    write_files([cell.source for cell in cells if cell.cell_type == "code"], path.parent)
    original, ours = our_cells(SOURCE / "notebooks" / f"{lab}.ipynb")
    marking = Marking(jobs=1)
    try:
        return marking.begin(asked, code, original, ours, path.parent).result()
    finally:
        marking.end()


def _results(points: dict[str, float], decisions: dict[str, Decision]) -> dict[str, Any]:
    """What Gradescope reads: a test for each exercise."""
    tests = []
    score = 0.0
    lines = []
    looks = {}
    for name, most in points.items():
        decision = decisions[name]
        test = _test(name, float(most), decision)
        tests.append(test)
        score += test["score"]
        if decision.look:
            looks[name] = decision.look
            lines.append(f"To be looked at: {name}. {decision.look}")
    return {
        "score": score,
        "output": "\n".join(lines),
        "tests": tests,
        "extra_data": {"to be looked at": looks},
    }


def _test(name: str, most: float, decision: Decision) -> dict[str, Any]:
    """What Gradescope reads of one exercise, which is worth `most` points."""
    score = 0.0
    status = "failed"
    if decision.passed:
        score = most
        status = "passed"
    return {
        "name": name,
        "score": score,
        "max_score": most,
        "status": status,
        "output": decision.words,
        "visibility": "visible",
    }


def _points(notebook: NotebookNode) -> dict[str, float]:
    """The points of each exercise of an assignment, by name."""
    points = {}
    for cell in notebook.cells:
        notes = notes_of(cell)
        if notes.get("grade"):
            points[checked_by(cell)] = notes["points"]
    return points


def _requirements() -> list[str]:
    """What pip has to install for distlab and its course, with the torch of this machine."""
    version, _, _ = distribution("torch").version.partition("+")
    found = [f"torch=={version}", "ipykernel>=6.29,<8"]
    for line in distribution("distlab").requires or []:
        requirement, _, condition = line.partition(";")
        for_course = "extra" not in condition or "course" in condition
        if for_course and not requirement.startswith("torch"):
            found.append(requirement.strip())
    return found


def _add_program(archive: zipfile.ZipFile, name: str, text: str) -> None:
    """Add a file that can be run."""
    info = zipfile.ZipInfo(name, (2024, 1, 1, 0, 0, 0))
    info.external_attr = 0o755 << 16
    archive.writestr(info, text)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
