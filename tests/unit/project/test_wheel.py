"""What is in the wheel, and what PyPI says of it."""

import os
import re
import subprocess

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder

from tests.tool import ROOT
from tests.unit.project.test_environment import tomllib


@pytest.fixture(scope="module")
def builder():
    return WheelBuilder(str(ROOT))


@pytest.mark.parametrize("package", ["distlab", "distlab_predict", "distlab_course"])
def test_a_type_checker_reads_the_package(builder, package):
    """The mark that says so is in the wheel, beside the package's first file."""
    paths = {file.distribution_path for file in builder.recurse_included_files()}
    assert {f"{package}/__init__.py", f"{package}/py.typed"} <= paths


def test_pypi_takes_the_metadata(builder):
    """Every classifier is one that it knows."""
    builder.metadata.validate_fields()
    assert builder.metadata.core.classifiers


def test_a_release_names_its_repository(tmp_path):
    """release.yml adds the addresses of the repository that it runs in, which may be a fork."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    (script,) = (
        step["run"] for step in jobs["build"]["steps"] if "project.urls" in step.get("run", "")
    )
    project = tmp_path / "pyproject.toml"
    project.write_text((ROOT / "pyproject.toml").read_text())
    of_github = {"GITHUB_REPOSITORY": "somebody/distlab", "GITHUB_REF_NAME": "v1.2.3"}
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, env=os.environ | of_github, check=True)
    assert tomllib.loads(project.read_text())["project"]["urls"] == {
        "Source": "https://github.com/somebody/distlab",
        "Issues": "https://github.com/somebody/distlab/issues",
        "Changes": "https://github.com/somebody/distlab/blob/v1.2.3/CHANGELOG.md",
        "Documentation": "https://somebody.github.io/distlab",
    }


def test_ci_runs_every_part_of_the_tests_once():
    """`.ci/run` begins with `make quick`; its `make test` has the parts that are left."""
    makefile = (ROOT / "Makefile").read_text()
    every = re.search(r"^PARTS \?= (.*)$", makefile, re.MULTILINE).group(1).split()
    quick = re.search(r"^quick:\n.* test PARTS=\"(.*)\"$", makefile, re.MULTILINE).group(1).split()
    ci = (ROOT / ".ci/run").read_text()
    left = re.search(r"^make test PARTS=\"(.*)\"", ci, re.MULTILINE).group(1).split()
    assert ci.index("make quick ||") < ci.index("make test ")
    assert quick + left == every
