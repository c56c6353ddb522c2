"""tools/setup.py: what it skips, and the one line that it says when it cannot go on."""

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def setup():
    """The tool as a fresh module, so that a test may replace its functions."""
    spec = importlib.util.spec_from_file_location("distlab_setup_tool", ROOT / "tools" / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(tmp_path, setup, monkeypatch):
    """A project in an empty directory where pip and venv are recorded instead of run."""
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    calls = []

    def make_venv(venv):
        calls.append("venv")
        fake_venv(venv, ".".join(str(part) for part in sys.version_info[:3]))

    monkeypatch.setattr(setup, "make_venv", make_venv)
    monkeypatch.setattr(setup, "run_pip", lambda venv, arguments, log: calls.append(arguments))
    return tmp_path, calls


def fake_venv(venv, version):
    (venv / "bin").mkdir(parents=True)
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


@pytest.mark.parametrize(
    ("others", "what"),
    [(["python3.12"], "make lab PYTHON=python3.12"), ([], "install one, then: make lab PYTHON=python3.12")],
)
def test_an_old_python_is_named(setup, monkeypatch, others, what):
    """An old Python is told which version was found, where, and what to type."""
    monkeypatch.setattr(setup, "newer_pythons", lambda: others)
    with pytest.raises(setup.SetupError) as error:
        setup.check_python((3, 8, 10, "final", 0))
    assert str(error.value) == f"Python must be 3.10 or newer, got 3.8.10 ({sys.executable}): {what}"


@pytest.mark.parametrize("version", [(3, 10, 0), (3, 11, 7), (3, 14, 1)])
def test_a_supported_python_passes(setup, version):
    """Python 3.10 and newer are taken."""
    setup.check_python(version)


@pytest.mark.parametrize("missing", ["venv", "ensurepip"])
def test_the_missing_debian_package_is_named(setup, monkeypatch, missing):
    """Where Debian split the module off, the message names the package to install."""
    monkeypatch.setattr(setup, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(setup.SetupError) as error:
        setup.check_venv_modules((3, 11, 2))
    assert str(error.value) == (
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
def test_little_disk_is_refused_before_anything_is_made(
    setup, project, monkeypatch, platform, index, free, needed, more
):
    """With less free disk than this torch takes nothing is made, and the message says how much there is."""
    root, calls = project
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda path: usage(10e9, 10e9 - free, free))
    monkeypatch.setattr(setup.sys, "platform", platform)
    with pytest.raises(setup.SetupError) as error:
        setup.set_up(root, root / ".venv", index)
    assert str(error.value) == (
        f"about {needed} GB of free disk are needed, got {free / 1e9:.1f} GB in {root}: free some space, "
        f"then run the same command again{more}"
    )
    assert calls == []
    assert not (root / ".venv").exists()


def test_a_venv_that_fails_half_way_is_removed(setup, tmp_path, monkeypatch, capsys):
    """When python -m venv fails, its last lines are shown and the half-made directory is gone."""
    venv = tmp_path / ".venv"

    def fail(command, **kwargs):
        (venv / "bin").mkdir(parents=True)
        return subprocess.CompletedProcess(command, 1, stdout="ensurepip is not\navailable\n")

    monkeypatch.setattr(setup.subprocess, "run", fail)
    with pytest.raises(setup.SetupError, match=r"apt-get install python3\.\d+-venv"):
        setup.make_venv(venv)
    assert "venv: available" in capsys.readouterr().err
    assert not venv.exists()


def test_a_directory_that_is_no_environment_is_left_alone(setup, project):
    """A .venv that holds something else is not removed."""
    root, _ = project
    (root / ".venv").mkdir()
    (root / ".venv" / "thesis.txt").write_text("years of work")
    with pytest.raises(setup.SetupError, match="is not a virtual environment: move it away"):
        setup.set_up(root, root / ".venv")
    assert (root / ".venv" / "thesis.txt").exists()


def test_the_second_run_does_nothing(setup, project, capsys):
    """Once set up, a second run calls neither venv nor pip, and says nothing."""
    root, calls = project
    setup.set_up(root, root / ".venv")
    assert calls == ["venv", ["-c", str(root / "constraints.txt"), "-e", f"{root}[lab,mpi,test]"]]
    calls.clear()
    capsys.readouterr()
    setup.set_up(root, root / ".venv")
    assert calls == []
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_file_runs_pip_again(setup, project, name):
    """A change of the packages updates the environment and does not make it anew."""
    root, calls = project
    setup.set_up(root, root / ".venv")
    (root / name).write_text("# changed\n")
    calls.clear()
    setup.set_up(root, root / ".venv")
    assert len(calls) == 1
    assert "venv" not in calls


def test_a_failed_install_is_tried_again(setup, project, monkeypatch):
    """When pip fails no stamp is written, so the next run continues."""
    root, calls = project

    def fail(venv, arguments, log):
        raise setup.SetupError("pip failed")

    monkeypatch.setattr(setup, "run_pip", fail)
    with pytest.raises(setup.SetupError):
        setup.set_up(root, root / ".venv")
    assert not setup.is_current(root, root / ".venv")
    monkeypatch.setattr(setup, "run_pip", lambda venv, arguments, log: calls.append("pip"))
    setup.set_up(root, root / ".venv")
    assert calls == ["venv", "pip"]


def test_a_moved_environment_is_not_taken_for_current(setup, project, tmp_path):
    """A copied or moved project makes its environment again, since an environment holds absolute paths."""
    root, _ = project
    setup.set_up(root, root / ".venv")
    shutil.copytree(root / ".venv", tmp_path / "elsewhere" / ".venv")
    assert not setup.is_current(root, tmp_path / "elsewhere" / ".venv")


def test_only_a_chosen_python_replaces_the_environment(setup, project):
    """An environment of another Python stays, unless an interpreter was picked by hand."""
    root, calls = project
    fake_venv(root / ".venv", "3.99.4")
    setup.set_up(root, root / ".venv")
    assert "venv" not in calls
    assert setup.is_current(root, root / ".venv")
    setup.set_up(root, root / ".venv", python_chosen=True)
    assert "venv" in calls


def test_torch_comes_first_from_its_own_index(setup, project):
    """TORCH_INDEX serves torch alone; everything else comes from the usual index."""
    root, calls = project
    setup.set_up(root, root / ".venv", torch_index="https://example.org/cpu")
    pins = ["-c", str(root / "constraints.txt")]
    assert calls[1:] == [
        [*pins, "--index-url", "https://example.org/cpu", "torch"],
        [*pins, "-e", f"{root}[lab,mpi,test]"],
    ]


def test_jupyters_news_question_is_off_in_this_environment(setup, project):
    """JupyterLab's defaults of this environment neither ask for news nor look for updates."""
    root, _ = project
    setup.set_up(root, root / ".venv")
    overrides = json.loads((root / ".venv/share/jupyter/lab/settings/overrides.json").read_text())
    assert overrides == {
        "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}
    }


@pytest.mark.parametrize(
    ("output", "what"),
    [
        ("ERROR: [Errno 28] No space left on device", "the disk is full"),
        ("NewConnectionError: Temporary failure in name resolution", "could not reach the package index"),
        ("ERROR: No matching distribution found for torch==2.13.0", "try another one, make lab PYTHON=python3.12"),
        ("ERROR: ResolutionImpossible", "change constraints.txt"),
        ("ERROR: something else", "read its last lines above"),
    ],
)
def test_a_failed_pip_says_what_to_do(setup, output, what):
    """The usual reasons why pip fails each have their advice."""
    assert what in setup.advice(output)


def test_progress_grows_while_pip_says_nothing(setup, tmp_path, monkeypatch):
    """Unpacking torch takes minutes without a line of pip's: what has been written to the disk is shown meanwhile."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho 'Installing collected packages: torch'\n")
    python.chmod(0o755)
    usage = namedtuple("usage", "free")
    free = iter([10.0e9, 8.76e9, 8.0e9])
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda path: usage(next(free)))
    shown = []
    monkeypatch.setattr(setup, "show_progress", lambda line, started, last: shown.append(line))
    setup.run_pip(tmp_path, ["torch"], tmp_path / "setup.log")
    assert shown[0] == " 1.2 GB  Installing collected packages: torch"


def test_pips_last_lines_and_log_are_shown(setup, tmp_path, capsys):
    """A failing pip leaves its whole output in a file and shows the end of it."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nseq 1 40\necho 'ERROR: No matching distribution found for torch==2.13.0'\nexit 1\n")
    python.chmod(0o755)
    log = tmp_path / "setup.log"
    with pytest.raises(setup.SetupError, match=f"make lab PYTHON=python3.12; all of pip's output is in {log}"):
        setup.run_pip(tmp_path, ["torch"], log)
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == setup.TAIL
    assert shown[-1] == "  pip: ERROR: No matching distribution found for torch==2.13.0"
    assert len(log.read_text().splitlines()) == 42


def test_no_failure_shows_a_traceback(tmp_path):
    """Run as make runs it, on a Python without ensurepip, the tool prints one line and exits with 1."""
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "constraints.txt", tmp_path)
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'ensurepip' else find(name, *a)\n"
    )
    done = subprocess.run(
        [sys.executable, "tools/setup.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
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
    kept = ["notebooks/00.ipynb", "distlab/cluster.py", "data/x.csv", "tests/artifacts/lab.png", ".git/__pycache__/x"]
    for path in kept:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    subprocess.run(["make", "clean"], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == sorted([*kept, "Makefile"])
