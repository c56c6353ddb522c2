"""A lab as an autograder of Gradescope: what is uploaded runs in a folder.

The folder takes the place of Gradescope's /autograder.
"""

import json
import os
import shlex
import subprocess
import sys
import zipfile

import nbformat
import pytest

from distlab_course.classroom import assignments, for_gradescope
from tests.processes import marked, wait_until_gone
from tests.tool import ROOT

LAB = ROOT / "notebooks" / "00_start_here.ipynb"
ANSWERS = {
    "my_square": "def my_square():\n    return rank ** 2",
    "my_role": (
        "class Any:\n    def __eq__(self, other):\n        return True\n\n\ndef my_role():\n"
        "    return Any()"
    ),
    "sum_of_squares": "import sys\n\n\ndef sum_of_squares(tensor):\n    return sys.modules",
}
# Fields of https://gradescope-autograders.readthedocs.io/en/latest/specs/, and their types
OF_RESULTS = {"score": float, "output": str, "tests": list, "extra_data": dict}
OF_TEST = {
    "name": str,
    "score": float,
    "max_score": float,
    "status": str,
    "output": str,
    "visibility": str,
}


@pytest.fixture(scope="module")
def uploaded(tmp_path_factory):
    """The folder of a container in which a lab's autograder lies as Gradescope unpacks it."""
    home = tmp_path_factory.mktemp("autograder")
    (line,) = for_gradescope.build(home, LAB)
    path, _, _ = line.partition("   ")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(home / "source")
        at_top = [one for one in archive.infolist() if "/" not in one.filename]
    can_be_run = {one.filename: one.external_attr >> 16 & 0o111 != 0 for one in at_top}
    assert can_be_run == {"setup.sh": True, "run_autograder": True, "assignment.json": False}
    return home


def results_of(home, written):
    """What Gradescope reads after its program ran on a notebook with these answers."""
    notebook = assignments.assignment(LAB, with_answers=False)
    for cell in notebook.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id", "").removeprefix("answer-")
        cell.source = written.get(name, cell.source)
    (home / "submission").mkdir(exist_ok=True)
    nbformat.write(notebook, home / "submission" / "my notebook.ipynb")
    return run(home)


def run(home):
    """Run what Gradescope runs, with this Python; returns the results."""
    program = (home / "source" / "run_autograder").read_text()
    program = program.replace("/autograder/python/bin/python", shlex.quote(sys.executable))
    program = program.replace("/autograder", str(home))
    variables = {**os.environ, "DISTLAB_TEST_MARK": home.name}
    done = subprocess.run(
        ["bash", "-c", program], env=variables, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert wait_until_gone(lambda: marked("DISTLAB_TEST_MARK", home.name)) == []
    return json.loads((home / "results" / "results.json").read_text())


def test_the_image_is_built_by_a_program_that_a_shell_reads(uploaded):
    """Not run here: it installs packages of the system."""
    program = (uploaded / "source" / "setup.sh").read_text()
    read = subprocess.run(["bash", "-n"], input=program, text=True, capture_output=True)
    assert read.stderr == ""
    (install,) = [line for line in program.splitlines() if "pip install" in line]
    wanted = shlex.split(install)
    assert any(one.startswith("torch==2.") for one in wanted)
    assert any(one.startswith("matplotlib>=") for one in wanted)


def types_in(fields):
    """The type of each field's value."""
    return {name: type(value) for name, value in fields.items()}


@pytest.mark.timeout(700)
def test_a_submission_has_a_test_for_each_exercise(uploaded):
    """Each has points and words, and it is said who has to be looked at.

    The program is that of the zip, and not this clone's.
    """
    results = results_of(uploaded, ANSWERS)
    assert types_in(results) == OF_RESULTS
    for test in results["tests"]:
        assert types_in(test) == OF_TEST
    points = json.loads((uploaded / "source" / "assignment.json").read_text())["points"]
    assert {test["name"]: test["max_score"] for test in results["tests"]} == points
    passed = [test["name"] for test in results["tests"] if test["status"] == "passed"]
    assert passed == ["my_square"]
    assert results["score"] == points["my_square"]
    assert list(results["extra_data"]["to be looked at"]) == ["sum_of_squares"]
    assert results["output"].startswith("To be looked at: sum_of_squares. It uses .modules")


def test_no_notebook_is_no_points(uploaded):
    """And says what to hand in."""
    for path in (uploaded / "submission").glob("*"):
        path.unlink()
    (uploaded / "submission").mkdir(exist_ok=True)
    assert run(uploaded) == {
        "score": 0.0,
        "output": "Hand in one notebook (.ipynb): none were found.",
    }
