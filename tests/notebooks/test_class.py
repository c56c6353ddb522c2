"""A class, with nbgrader itself: assignments are built, handed out, submitted and marked.

They are built from a lab and its answers, and the marks are exported.

nbgrader lies in a folder of its own beside the environment's packages, so that JupyterLab does not
find its extensions.
"""

import csv
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest

from distlab.checking import all_exercises
from distlab_course.classroom import assignments
from tests.processes import marked, wait_until_gone
from tests.tool import ROOT

NBGRADER = Path(sys.prefix) / "nbgrader"
LAB = ROOT / "notebooks" / "05_ring_all_reduce.ipynb"
LABS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
REDEFINED = """\
import distlab
distlab.check = lambda *anything: distlab.checking.check.Verdict("all", True)"""

# What each student writes under an exercise; what nobody writes stays a stub. `before` comes first
# in the notebook.
SUBMISSIONS = {
    "right": assignments.answers(LAB),
    "wrong": {
        "through_rank_0": "through_rank_0 = 15 * 100e6",
        "ring_all_reduce": "def ring_all_reduce(tensor):\n    tensor *= world_size",
        "chunks_pay_off": "def chunks_pay_off(n, alpha, beta):\n    return alpha / beta",
        "sum_passed_on": "sum_passed_on = 3310 +",
        "least_seconds": "least_seconds = seconds_of_the_least",
    },
    "cheating": {
        "before": REDEFINED,
        "through_rank_0": REDEFINED,
        "sum_passed_on": (
            "class Any:\n    def __eq__(self, other):\n        return True\n\nsum_passed_on = Any()"
        ),
        "ring_all_reduce": "from distlab_course.exercises.ring_all_reduce import ring_all_reduce",
        "ring_reduce_scatter": "ring_reduce_scatter = __import__('distlab').checking.all_exercises",
        "least_seconds": "import sys\nleast_seconds = sys.modules['distlab.checking']",
        "chunks_pay_off": (
            "def chunks_pay_off(n, alpha, beta):\n    print('chunks_pay_off: passed')\n    return 0"
        ),
    },
    "hanging": {
        "before": "while True:\n    pass",
        "through_rank_0": "while True:\n    pass\nthrough_rank_0 = 3e9",
        "ring_all_reduce": (
            "def ring_all_reduce(tensor):\n    if rank > 0:\n        dist.recv(tensor, src=0)"
        ),
        "ring_reduce_scatter": "import os\ndef ring_reduce_scatter(tensor):\n    os._exit(0)",
        "least_seconds": "import os\nleast_seconds = os._exit(0)",
        "chunks_pay_off": "def chunks_pay_off(n, alpha, beta):\n    while True:\n        pass",
        "which_chunk": "which_chunk = [[2, 1, 0], [1, 0, 3]]",
    },
}
POINTS = {"right": [3, 0, 5, 38, 0, 5, 0, 0], "hanging": [0, 0, 5, 0, 0, 0, 0, 0]}
LOOKED_AT = {"cheating": ["ring_all_reduce", "ring_reduce_scatter", "least_seconds"]}
SAYS = {
    "right": ["ring_all_reduce: passed"],
    "wrong": [
        *("ring_all_reduce: not yet", "ring_reduce_scatter: not attempted"),
        *("SyntaxError in line 1 of the answer", "seconds_of_the_least"),
    ],
    "cheating": [
        "It uses distlab_course.exercises.ring_all_reduce",
        "It uses sys",
        "a person has to mark it",
    ],
    "hanging": [
        "it ends in DeadlockError",
        "ended with exit status 0",
        "did not come back within 10 s",
    ],
}


@pytest.mark.parametrize("lab", LABS, ids=lambda path: path.stem)
def test_every_lab_becomes_an_assignment(lab):
    """Each exercise has a cell for its answer, which nothing else defines, and a check.

    Students get no answer.
    """
    asked = [name for name, one in all_exercises().items() if lab.name.startswith(one.notebook)]
    theirs, ours = (assignments.assignment(lab, with_answers) for with_answers in (False, True))
    for notebook in (theirs, ours):
        nbformat.validate(notebook)
        cells = {
            cell.metadata.nbgrader.grade_id: cell
            for cell in notebook.cells
            if "nbgrader" in cell.metadata
        }
        assert list(cells) == [f"{kind}-{name}" for name in asked for kind in ("answer", "check")]
    handed_out = "\n".join(cell.source for cell in theirs.cells)
    right = assignments.answers(lab)
    assert [name for name in asked if right[name] in handed_out and "def " in right[name]] == []
    assert [
        words
        for words in ("solutions/", "`solutions`", "folded", "in its check")
        if words in handed_out
    ] == []
    assert "BEGIN SOLUTION" not in handed_out


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course's folder after every student's notebook was marked, and the environment for it."""
    folder = tmp_path_factory.mktemp("a class")
    python_path = os.pathsep.join([str(NBGRADER), str(ROOT)])
    path = os.pathsep.join([str(NBGRADER / "bin"), os.environ["PATH"]])
    variables = {
        **os.environ,
        "PYTHONPATH": python_path,
        "PATH": path,
        "DISTLAB_TEST_MARK": folder.name,
    }

    def run(*command):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]

    run("distlab", "class", ".", "05")
    run("nbgrader", "generate_assignment", LAB.stem)
    for student, written in SUBMISSIONS.items():
        notebook = nbformat.read(folder / "release" / LAB.stem / LAB.name, as_version=4)
        if "before" in written:
            notebook.cells.insert(0, nbformat.v4.new_code_cell(written["before"]))
        for cell in notebook.cells:
            name = cell.metadata.get("nbgrader", {}).get("grade_id", "")
            if name.removeprefix("answer-") in written:
                cell.source = written[name.removeprefix("answer-")]
            elif student == "cheating" and name.startswith("check-"):
                cell.source = "pass"
        where = folder / "submitted" / student / LAB.stem
        where.mkdir(parents=True)
        if student == "cheating":  # which a judge would import if its folder were on the path
            (where / "distlab.py").write_text("check = lambda *anything: print('passed') or exit()")
        nbformat.write(notebook, where / LAB.name)
    run("nbgrader", "autograde", LAB.stem)
    run("nbgrader", "export")
    assert wait_until_gone(lambda: marked("DISTLAB_TEST_MARK", folder.name)) == []
    return folder


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("student", SUBMISSIONS)
def test_each_submission_gets_the_right_marks(course, student):
    """Also one that redefines the check, never ends, or ends its rank."""
    with open(course / "grades.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["student"] == student]
    names = [row["exercise"] for row in rows]
    assert sorted(names) == sorted(assignments.answers(LAB))
    assert {row["title"] for row in rows} == {all_exercises()[name].title for name in names}
    points = {row["exercise"]: float(row["points"]) for row in rows}
    wanted = dict(zip(assignments.answers(LAB), POINTS.get(student, [0] * len(names)), strict=True))
    assert points == wanted
    looked_at = {row["exercise"]: row["to be looked at"] for row in rows if row["to be looked at"]}
    assert list(looked_at) == LOOKED_AT.get(student, [])
    assert all("a person has to mark it" in why for why in looked_at.values())
    marked_notebook = (course / "autograded" / student / LAB.stem / LAB.name).read_text()
    assert [words for words in SAYS[student] if words not in marked_notebook] == []


def test_students_get_what_nbgrader_hands_out(course):
    """The bundle has the cells of nbgrader's release, the diagrams, and the page to keep.

    It has no answer.
    """
    released = nbformat.read(course / "release" / LAB.stem / LAB.name, as_version=4)
    with zipfile.ZipFile(course / "students.zip") as bundle:
        names = bundle.namelist()
        content = bundle.read(f"{LAB.stem}/{LAB.name}").decode()
    assert names == [f"{LAB.stem}/{LAB.name}", "cheat_sheet.md"]
    theirs = nbformat.reads(content, as_version=4)
    assert [cell.source.strip() for cell in theirs.cells] == [
        cell.source.strip() for cell in released.cells
    ]
