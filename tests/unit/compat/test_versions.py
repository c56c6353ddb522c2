"""Which Pythons and versions of torch are tried; a newer torch is named in a warning."""

import re
from importlib import metadata

import pytest
import yaml

from distlab import compat
from tests.processes import python
from tests.tool import ROOT


@pytest.fixture
def pairs():
    """The pairs that `make matrix` tries by default."""
    return (
        re.search(r"^MATRIX \?= (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        .group(1)
        .split()
    )


@pytest.mark.parametrize("version", ["2.9.0", compat.NEWEST_TORCH + ".post1+cu130"])
def test_a_tested_torch_is_not_named(monkeypatch, recwarn, version):
    """There is no warning of a torch that was tried, in whichever build."""
    monkeypatch.setattr(metadata, "version", lambda name: version)
    compat.warn_of_newer_torch.__wrapped__()  # as in a process that has not warned yet
    assert not recwarn


def test_cluster_warns_without_importing_torch():
    """Both versions and what to do, once, at the learner's line, without importing torch."""
    program = (
        "import sys, distlab\nfrom importlib import metadata\n"
        "metadata.version = lambda name: '99.1.0+cpu'\n"
        "distlab.Cluster._begin = lambda self: print('starts', 'torch' in sys.modules)\n"
        "distlab.Cluster(2)\ndistlab.Cluster(2)\n"
    )
    # from stdin: of a program in "-c", Python 3.13 shows the line, too
    done = python("-", input=program)
    assert done.stdout.splitlines() == ["starts False"] * 2
    newest = compat.NEWEST_TORCH
    assert done.stderr.strip() == (
        f"<stdin>:5: UserWarning: torch 99.1.0+cpu is newer than torch {newest}, "
        "the newest that this distlab was tested with. "
        f'If ranks behave strangely, install that one: pip install "torch=={newest}"'
    )


def test_the_matrix_has_all_that_is_supported(pairs):
    """Every Python, and the oldest, pinned and newest torch, as in docs/install.md and ci.yml."""
    pythons, torches = zip(*(pair.split(":") for pair in pairs), strict=True)
    assert pythons == ("3.10", "3.11", "3.12", "3.13")
    oldest = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text()).group(1)
    pinned = re.search(r"(?m)^torch==([\d.]+)", (ROOT / "constraints.txt").read_text()).group(1)
    assert {f"{oldest}.0", pinned, compat.NEWEST_TORCH} <= set(torches)
    rows = re.findall(
        r"^\| (3\.\d+) \| ([\d.]+) \|", (ROOT / "docs/install.md").read_text(), flags=re.MULTILINE
    )
    assert [":".join(row) for row in rows] == pairs
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["tests"]
    assert tuple(job["strategy"]["matrix"]["python"]) == pythons
    assert job["steps"][-1]["run"] == ".ci/run"
