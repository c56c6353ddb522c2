"""The package as `pip install -e .` installs it from a clone."""

import shutil
import zipfile
from importlib import metadata

import pytest
from packaging.version import Version

from tests.processes import python
from tests.tool import ROOT


@pytest.mark.skipif(
    Version(metadata.version("setuptools")) < Version("77"),
    reason="pip builds with a setuptools of its own, of 77 or newer, and this one is older",
)
def test_a_clone_called_distlab_is_imported_from_its_parent(tmp_path):
    """Beside a clone of that name, `import distlab` finds the package, not the clone's folder as an empty one."""
    clone = tmp_path / "distlab"
    clone.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    shutil.copytree(ROOT / "distlab", clone / "distlab", ignore=shutil.ignore_patterns("__pycache__"))
    build = "import sys; from setuptools import build_meta; print(build_meta.build_editable(sys.argv[1]))"
    done = python("-c", build, tmp_path, cwd=clone, check=True)
    site = tmp_path / "site-packages"
    with zipfile.ZipFile(tmp_path / done.stdout.splitlines()[-1]) as wheel:
        wheel.extractall(site)
    ask = f"import site; site.addsitedir({str(site)!r}); import distlab; print(distlab.__file__)"
    done = python("-S", "-c", ask, cwd=tmp_path, env={}, check=True)
    assert done.stdout == f"{clone}/distlab/__init__.py\n"
