"""The package as `pip install -e .` installs it from a clone."""

import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[3]


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
    command = [sys.executable, "-c", build, tmp_path]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True)
    site = tmp_path / "site-packages"
    with zipfile.ZipFile(tmp_path / done.stdout.splitlines()[-1]) as wheel:
        wheel.extractall(site)
    ask = f"import site; site.addsitedir({str(site)!r}); import distlab; print(distlab.__file__)"
    command = [sys.executable, "-S", "-c", ask]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=True)
    assert done.stdout == f"{clone}/distlab/__init__.py\n"
