"""Which Pythons and versions of torch are tried: said in one place each, and a newer torch is named in a warning."""

import re
import sys
from pathlib import Path

import pytest
import yaml

from distlab.compat import versions
from tests.processes import python
from tests.refused import refused
from tests.tool import ROOT, load

matrix = load("matrix")


@pytest.fixture
def pairs():
    """The pairs that `make matrix` tries by default."""
    texts = re.search(r"^MATRIX \?= (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE).group(1)
    return [matrix.parse(text) for text in texts.split()]


@pytest.mark.parametrize("version", ["2.8.0", versions.NEWEST_TORCH + ".post1+cu130"])
def test_a_tested_torch_is_not_named(monkeypatch, recwarn, version):
    """Nothing is said of a torch that was tried, in whichever build."""
    monkeypatch.setattr(versions.metadata, "version", lambda name: version)
    versions.warn_of_newer_torch.__wrapped__()  # as in a process that has not warned yet
    assert not recwarn


def test_cluster_warns_without_importing_torch():
    """It names both versions and what to do, once, at the learner's line, and costs the notebook's process no torch."""
    program = (
        "import sys, distlab\nfrom distlab.compat import versions\n"
        "versions.metadata.version = lambda name: '99.1.0+cpu'\n"
        "distlab.Cluster._begin = lambda self: print('starts', 'torch' in sys.modules)\n"
        "distlab.Cluster(2)\ndistlab.Cluster(2)\n"
    )
    # from stdin: of a program in "-c", Python 3.13 shows the line, too
    done = python("-", input=program)
    assert done.stdout.splitlines() == ["starts False"] * 2
    newest = versions.NEWEST_TORCH
    assert done.stderr.strip() == (
        f"<stdin>:5: UserWarning: torch 99.1.0+cpu is newer than torch {newest}, the newest that this distlab was "
        f'tested with. If ranks behave strangely, install that one: pip install "torch=={newest}"'
    )


def test_the_default_matrix_has_all_that_is_supported(pairs):
    """Every Python is in it, and the oldest, the pinned and the newest torch."""
    assert [pair.python for pair in pairs] == ["3.10", "3.11", "3.12", "3.13"]
    assert {pair.torch for pair in pairs} == {matrix.parse(f"3.11:{name}").torch for name in matrix.NAMED}
    assert max((pair.torch for pair in pairs), key=versions.release) == versions.NEWEST_TORCH


def test_the_readme_says_what_was_tried(pairs):
    """README's table has the pairs of the default matrix."""
    rows = re.findall(r"^\| (3\.\d+) \| ([\d.]+) \|", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert rows == [(pair.python, pair.torch) for pair in pairs]


def test_the_workflow_has_the_same_pythons(pairs):
    """The jobs of continuous integration on Linux and macOS call .ci/run with each Python of the matrix."""
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["tests"]
    assert job["strategy"]["matrix"]["python"] == [pair.python for pair in pairs]
    assert job["steps"][-1]["run"] == ".ci/run"


@pytest.mark.parametrize("text", ["3.13", "3.13:", "3.13:nightly", "python3.13:2.13.0", "3.13:2"])
def test_a_wrong_pair_is_refused(text):
    """MATRIX is checked before anything is made."""
    said = str(refused(matrix.parse, text, kind=ValueError))
    assert said == f'MATRIX must be pairs of Python and torch, got {text!r}. Try: make matrix MATRIX="3.13:newest"'


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    """The commands that a matrix would run, and their exit statuses by name of the program; nothing is run."""
    commands, statuses = [], {}

    def call(command, stdout, **options):
        commands.append([str(word) for word in command])
        status = statuses.get(Path(command[1]).name, 0)
        if "run_tests.py" in command[1]:
            failed = "FAILED (1)   3.0 s   2 failed, 5 passed\n    FAILED tests/unit/test_x.py"
            stdout.write(f"unit | what a test prints\n\n----- summary\nunit  {failed if status else 'ok   3.0 s'}\n")
        return status

    monkeypatch.setattr(matrix, "MATRIX", tmp_path)
    monkeypatch.setattr(matrix, "ROOT", tmp_path)
    (tmp_path / "constraints.txt").write_text("# pins\ntorch==2.13.0\npsutil==7.2.2\n")
    monkeypatch.setattr(matrix, "interpreter", lambda version: None if version == "3.99" else f"/usr/python{version}")
    monkeypatch.setattr(matrix.subprocess, "call", call)
    return commands, statuses


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["matrix.py", *arguments])
    return matrix.main()


def test_a_pair_has_its_own_environment_and_torch(monkeypatch, recorded, tmp_path, capsys):
    """setup.py makes it with the pair's Python and the other pins unchanged; its Python runs the parts."""
    assert run(monkeypatch, "--parts", "unit nbval", "3.12:2.9.1") == 0
    venv = tmp_path / "3.12-2.9.1"
    assert recorded[0] == [
        ["/usr/python3.12", "tools/setup.py", "--venv", str(venv), "--pins", f"{venv}.txt"],
        [f"{venv}/bin/python", "tools/run_tests.py", "unit", "nbval"],
    ]
    assert (tmp_path / "3.12-2.9.1.txt").read_text() == "# pins\ntorch==2.9.1\npsutil==7.2.2\n"
    assert re.fullmatch(r"3\.12:2\.9\.1 +ok +\d+ s   unit ok", capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize(
    ("fails", "details"), [("setup.py", "its environment could not be made"), ("run_tests.py", "unit FAILED")]
)
def test_any_pair_that_fails_fails_the_matrix(monkeypatch, recorded, capsys, fails, details):
    """The status is 1, the failed tests are named, and the other pairs run all the same; one line for each."""
    recorded[1][fails] = 1
    assert run(monkeypatch, "3.12:2.9.1", "3.13:2.9.1") == 1
    shown = capsys.readouterr().out.splitlines()
    assert [line.split(" s   ")[1] for line in shown[-2:]] == [details, details]
    assert ("        FAILED tests/unit/test_x.py" in shown) == (fails == "run_tests.py")
