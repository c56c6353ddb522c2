"""Marking itself, without nbgrader.

Tricks get no points or are left to a person, and odd answers get their due.

The exercises are small (`marked_exercises.py`) and lie in a package that only these tests install,
so that all answers are two notebooks, one of cheats and one of oddities.
"""

import collections
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from marked_cheats import CHEATS, ODDITIES

from distlab_course.classroom.cells import cell_of
from distlab_course.classroom.judge import Decision
from distlab_course.classroom.submission import needed_for
from distlab_course.classroom.suspicions import suspicion
from tests.processes import marked, wait_until_gone
from tests.tool import ROOT

# names that several cheats define, as a pattern
HELPERS = "Any|Verdicts|Words|Odd|T|Hook|library|communication|kind|clock"
# cheats whose text does not show what they replace, but the ranks do
REPLACED = [
    "torch.equal is replaced by another name",
    "all_reduce does nothing",
    "get_rank says 0",
    "a method of Tensor is replaced",
    "another clock",
]
HERE = Path(__file__).parent
# What is marked and what is not: a process of its own, so that the package of exercises is
# installed in it.
MARK = """\
import json, sys
from dataclasses import astuple
from pathlib import Path
from distlab_course.classroom.cells import Cell
from distlab_course.classroom.marking import Marking
if __name__ == "__main__":
    orders = json.load(sys.stdin)
    marking = Marking(jobs=2)
    begun = []
    for asked, cells in orders:
        cells = [Cell(*cell) for cell in cells]
        begun.append(marking.begin(asked, cells, [], [], Path.cwd() / "handed in"))
    found = [each.result() for each in begun]
    decided = [{name: astuple(one) for name, one in decisions.items()} for decisions in found]
    print("\\n", json.dumps(decided))
    marking.end()
"""
# The same cells as a notebook runs them: each cell in one IPython, whose checks are kept.
RUN = """\
import json, sys
import distlab
from IPython.core.interactiveshell import InteractiveShell
if __name__ == "__main__":
    shell = InteractiveShell.instance()
    shell.run_cell("import distlab, torch\\nimport torch.distributed as dist")
    shell.run_cell("%load_ext distlab\\ncluster = distlab.Cluster(2)")
    found = {}
    for name, source in json.load(sys.stdin):
        result = shell.run_cell(source)
        if name:
            found[name] = bool(result.result and result.result.passed)
    distlab.Cluster.current.stop()
    print("\\n", json.dumps(found))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A folder to work in, and an environment in which the exercises are installed."""
    folder = tmp_path_factory.mktemp("marking")
    installed = folder / "installed"
    info = installed / "marked_exercises-1.dist-info"
    info.mkdir(parents=True)
    (folder / "handed in").mkdir()
    (installed / "marked_exercises.py").write_text((HERE / "marked_exercises.py").read_text())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: marked-exercises\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[distlab.exercises]\nmarked = marked_exercises\n")
    path = os.pathsep.join([str(installed), str(ROOT)])
    variables = {
        **os.environ,
        "PYTHONPATH": path,
        "DISTLAB_TEST_MARK": folder.name,
        "DISTLAB_PROGRESS": os.devnull,
    }
    yield folder, variables
    assert wait_until_gone(lambda: marked("DISTLAB_TEST_MARK", folder.name)) == []


def result_of(program, given, environment):
    """The JSON in a program's last line."""
    folder, variables = environment
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(given),
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def cheats():
    """Names of exercises with the cheats that answer them, and the cells of a notebook of all.

    In a notebook, what an earlier cell replaces is replaced for the later ones, too: so each has
    names of its own, and those that are not run come last.
    """
    names = {}
    cells = []
    used = collections.Counter()  # exercises of each kind
    run = [title for title in CHEATS if not left_to_a_person(title)]
    not_run = [title for title in CHEATS if left_to_a_person(title)]
    for title in [*run, *not_run]:
        kind, source = CHEATS[title]
        name = f"{kind}_{used[kind]}"
        used[kind] += 1
        names[name] = title
        source = source.replace("NAME", name)
        own = re.sub(rf"\b({HELPERS})\b", rf"\1_{name}", source)
        cells.append(cell_of(f"answer {name}", name, own))
        cells.append(cell_of(f"check {name}", "", f'distlab.check("{name}", {name})', name))
    return names, cells


def left_to_a_person(title):
    """What in the text of a cheat is for a person to look at; "" for nothing."""
    kind, source = CHEATS[title]
    cells = [cell_of("answer", kind, source.replace("NAME", kind))]
    return suspicion(needed_for(kind, cells, []), [], [])


def oddities():
    """Names of exercises with the oddities that answer them, and the cells of a notebook.

    A cell is (name of the check, source, answer).
    """
    names = {}
    cells = []
    for number, (title, (before, source)) in enumerate(ODDITIES.items()):
        name = f"plain_{number}"
        names[name] = title
        cells += [("", text, "") for text in before]
        cells.append(("", source.replace("NAME", name), name))
        cells.append((name, f'distlab.check("{name}", {name})', ""))
    return names, cells


@pytest.fixture(scope="module")
def decisions(environment):
    """What was decided about every cheat, and about every oddity, by name."""
    cheats_by_name, cheating = cheats()
    oddities_by_name, written = oddities()
    odd = []
    for place, (check, text, name) in enumerate(written):
        odd.append(cell_of(f"cell {place}", name, text, check))
    orders = [(list(cheats_by_name), cheating), (list(oddities_by_name), odd)]
    return result_of(MARK, orders, environment)


@pytest.mark.timeout(900)
def test_no_cheat_gets_points(decisions):
    """Each is marked 0; those that could have read or changed something are left to a person."""
    names, _ = cheats()
    assert len(names) >= 30
    found = {names[name]: Decision(*decided) for name, decided in decisions[0].items()}
    assert [title for title, one in found.items() if one.passed] == []
    assert [title for title, one in found.items() if one.look not in one.words] == []
    by_text = [title for title in CHEATS if left_to_a_person(title)]
    assert [title for title in by_text if not found[title].look] == []
    replaced = [title for title, one in found.items() if one.look.startswith("It changes")]
    assert replaced == REPLACED


def test_answers_that_a_person_has_to_read_say_why():
    """They say it by their text alone, before anything of them runs.

    The rest is harmless, and gets what it is worth.
    """
    harmless = [title for title in CHEATS if not left_to_a_person(title)]
    assert len(harmless) < len(CHEATS) / 2
    assert left_to_a_person("frames") == "sys"
    assert left_to_a_person("setattr in a default argument") == "setattr"
    assert left_to_a_person("the solutions on the disk") == "exec"
    of_group = left_to_a_person("a collective in a group of its own")
    assert of_group == "a group of a backend of its own"
    assert left_to_a_person("torch.equal is replaced") == "an assignment to torch.allclose"


@pytest.mark.timeout(900)
def test_odd_answers_are_marked_as_a_notebook_marks_them(decisions, environment):
    names, cells = oddities()
    assert len(names) >= 30
    given = [(check, text) for check, text, _ in cells]
    found = result_of(RUN, given, environment)
    in_notebook = {names[name]: passed for name, passed in found.items()}
    assert in_notebook == {title: not title.startswith("wrong") for title in ODDITIES}
    decided = {names[name]: Decision(*one) for name, one in decisions[1].items()}
    assert {title: one.passed for title, one in decided.items()} == in_notebook
    assert [title for title, one in decided.items() if one.look] == []
