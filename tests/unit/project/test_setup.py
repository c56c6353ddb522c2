"""tools/setup.py: what it skips, and the one line that it says when it cannot go on."""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple

import pytest

from tests.processes import python
from tests.refused import refused
from tests.tool import ROOT, load

setup = load("setup")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project in an empty directory where pip and venv are recorded instead of run."""
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    calls = []

    def make_venv(venv):
        calls.append("venv")
        fake_venv(venv, ".".join(str(part) for part in sys.version_info[:3]))

    monkeypatch.setattr(setup, "make_venv", make_venv)
    monkeypatch.setattr(setup, "run_pip", lambda venv, arguments: calls.append(arguments))
    return tmp_path, calls


def fake_venv(venv, version):
    (venv / "bin").mkdir(parents=True, exist_ok=True)
    for name in ("python", "pip"):
        (venv / "bin" / name).write_text("")
    (venv / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {version}\n")


def make(*arguments, **environment):
    """Runs make in the project as a newcomer does, not as a child of the make that runs the tests."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "PYTHON"}
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, env={**clean, **environment}, capture_output=True, text=True, timeout=60
    )


def test_the_syntax_is_that_of_python_3_6():
    """Python 3.6 can read the file, so an old interpreter reaches the check of its version."""
    ast.parse((ROOT / "tools" / "setup.py").read_text(), feature_version=(3, 6))


def test_an_old_python_is_named():
    """An old Python is told which version was found, where, and what to type."""
    assert str(refused(setup.check_python, (3, 8, 10, "final", 0), kind=setup.SetupError)) == (
        f"Python must be 3.10 or newer, got 3.8.10 ({sys.executable}): "
        "name one that is here, or install one first: make lab PYTHON=python3.12"
    )


@pytest.mark.parametrize("missing", ["venv", "ensurepip"])
def test_the_missing_debian_package_is_named(monkeypatch, missing):
    """Where Debian split the module off, the message names the package to install."""
    monkeypatch.setattr(setup, "find_spec", lambda name: None if name == missing else object())
    assert str(refused(setup.check_python, (3, 11, 2), kind=setup.SetupError)) == (
        f"this Python has no module '{missing}': apt-get install python3.11-venv (Debian, Ubuntu), then run the same "
        "command again"
    )


CPU_INDEX = "https://download.pytorch.org/whl/cpu"
OR_CPU = f", or take torch's CPU build, 3 GB: make lab TORCH_INDEX={CPU_INDEX}"


@pytest.mark.parametrize(
    ("platform", "index", "free", "needed", "more"),
    [("linux", "", 8.04e9, 9, OR_CPU), ("linux", CPU_INDEX, 1.04e9, 3, ""), ("darwin", "", 1.04e9, 3, "")],
    ids=["PyPI's torch on Linux", "the CPU build", "macOS"],
)
def test_little_disk_is_refused_before_anything_is_made(project, monkeypatch, platform, index, free, needed, more):
    """With less free disk than this torch takes nothing is made, and the message says how much there is."""
    root, calls = project
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda path: usage(10e9, 10e9 - free, free))
    monkeypatch.setattr(setup.sys, "platform", platform)
    assert str(refused(setup.set_up, root, root / ".venv", index, kind=setup.SetupError)) == (
        f"about {needed} GB of free disk are needed, got {free / 1e9:.1f} GB in {root}: free some space, "
        f"then run the same command again{more}"
    )
    assert calls == []
    assert not (root / ".venv").exists()


def test_a_venv_that_fails_half_way_is_removed(tmp_path, monkeypatch):
    """When python -m venv fails, the half-made directory is gone, and what may be missing is named."""
    venv = tmp_path / ".venv"
    monkeypatch.setattr(setup.subprocess, "call", lambda command: fake_venv(venv, "3.11.7") or 1)
    with pytest.raises(setup.SetupError, match=r"apt-get install python3\.\d+-venv"):
        setup.make_venv(venv)
    assert not venv.exists()


def test_a_directory_that_is_no_environment_is_left_alone(tmp_path):
    """A .venv that holds something else is not removed."""
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "thesis.txt").write_text("years of work")
    with pytest.raises(setup.SetupError, match="is not a virtual environment: move it away"):
        setup.make_venv(tmp_path / ".venv")
    assert (tmp_path / ".venv" / "thesis.txt").exists()


def test_the_second_run_does_nothing(project, capsys):
    """Once set up, a second run calls neither venv nor pip, and says nothing."""
    root, calls = project
    setup.set_up(root, root / ".venv")
    assert calls == ["venv", ["-c", str(root / "constraints.txt"), "-e", f"{root}[lab,mpi,test]"]]
    calls.clear()
    capsys.readouterr()
    setup.set_up(root, root / ".venv")
    assert calls == []
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("what", ["pyproject.toml", "constraints.txt", "moved", "failed"])
def test_pip_runs_again(project, monkeypatch, what):
    """After a change of the packages, a move, or a failure pip runs again, in the environment that is there."""
    root, calls = project
    venv = root / ".venv"
    if what == "failed":
        with monkeypatch.context() as patch:
            patch.setattr(setup, "run_pip", lambda venv, arguments: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                setup.set_up(root, venv)
    else:
        setup.set_up(root, venv)
    calls.clear()
    if what == "moved":  # an environment holds absolute paths
        venv = shutil.move(venv, root / "elsewhere")
    elif what != "failed":
        (root / what).write_text("# changed\n")
    setup.set_up(root, venv)
    assert calls == [["-c", str(root / "constraints.txt"), "-e", f"{root}[lab,mpi,test]"]]


def test_only_a_chosen_python_replaces_the_environment(project):
    """An environment of another Python stays, unless an interpreter was picked by hand."""
    root, calls = project
    fake_venv(root / ".venv", "3.99.4")
    setup.set_up(root, root / ".venv")
    assert "venv" not in calls
    setup.set_up(root, root / ".venv", python_chosen=True)
    assert "venv" in calls


def test_torch_comes_first_from_its_own_index(project):
    """TORCH_INDEX serves torch alone. In this environment JupyterLab neither asks for news nor looks for updates."""
    root, calls = project
    setup.set_up(root, root / ".venv", torch_index="https://example.org/cpu")
    pins = ["-c", str(root / "constraints.txt")]
    packages = [*pins, "-e", f"{root}[lab,mpi,test]"]
    assert calls[1:] == [[*pins, "--index-url", "https://example.org/cpu", "torch"], packages]
    overrides = json.loads((root / ".venv/share/jupyter/lab/settings/overrides.json").read_text())
    news = {"fetchNews": "false", "checkForUpdates": False}
    assert overrides == {"@jupyterlab/apputils-extension:notification": news}


def test_no_failure_shows_a_traceback(tmp_path):
    """Run as make runs it, on a Python without ensurepip, the tool prints one line and exits with 1."""
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "constraints.txt", tmp_path)
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'ensurepip' else find(name, *a)\n"
    )
    done = python("tools/setup.py", cwd=tmp_path, variables={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("distlab: this Python has no module 'ensurepip': apt-get install python3.")
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_interpreter_is_one_line():
    """make says which interpreter it looked for and how to name another."""
    done = make("setup", "PYTHON=python3.99")
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == (
        "distlab: 'python3.99' was not found; install Python 3.10 or newer, or name one: make lab PYTHON=python3.12"
    )


def test_make_alone_lists_the_targets():
    """`make` without a target changes nothing and names every target."""
    done = make()
    assert done.returncode == 0
    for target in ("lab", "test", "lint", "notebooks", "figs", "bench", "colab", "clean"):
        assert f"make {target} " in done.stdout


def test_clean_keeps_what_is_not_made_here(tmp_path):
    """`make clean` removes the environment, dist and caches, and nothing else."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for path in (".venv/bin/python", "dist/a.whl", "distlab/__pycache__/a.pyc", ".ruff_cache/x"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text("")
    kept = ["notebooks/00.ipynb", "distlab/errors.py", "data/x.csv", "tests/artifacts/lab.png", ".git/__pycache__/x"]
    for path in kept:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    subprocess.run(["make", "clean"], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == sorted([*kept, "Makefile"])
