"""make colab: each notebook as one file, run where there is only what Colab has.

The environment with Colab's packages is made once and kept in .venv-colab. A small notebook installs distlab into an
empty environment on top of it, by the cell that every built file begins with; the lessons then run there.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import uuid
import zipfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.processes import marked, python, wait_until_gone
from tests.tool import ROOT, load

tool = load("colab")
COLAB = ROOT / ".venv-colab"
COLAB_PACKAGES = ["ipykernel", "torch", "matplotlib", "numpy", "pandas", "scikit-learn"]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))

# The lessons that start programs of their own, which find what they need where they run. The others were run by nbval,
# and do here what these do: of them it is checked that all they import is there.
STARTS_PROGRAMS = "import subprocess", "%%bash", 'engines=\\"mpi\\"'  # as they stand in the file

# What Colab's own launcher does that matters here: google.colab is loaded before the first cell runs.
LAUNCHER = "import google.colab\nfrom ipykernel import kernelapp\n\nkernelapp.launch_new_instance()\n"

PROBE = """\
import importlib.util, os, sys
assert "google.colab" in sys.modules
assert not any(importlib.util.find_spec(name) for name in {absent})
assert os.listdir() == [], os.listdir()"""

pytestmark = pytest.mark.timeout(900)  # the first run installs torch; a notebook runs its lesson in full


@pytest.fixture(scope="module")
def colab_packages():
    """The directory of packages of an environment that has what Colab has, and nothing of this project."""
    recipe = "\n".join([sys.version, str(COLAB), *COLAB_PACKAGES, (ROOT / "constraints.txt").read_text()])
    digest = hashlib.sha256(recipe.encode()).hexdigest()
    stamp = COLAB / "stamp"
    if not stamp.is_file() or stamp.read_text() != digest:
        subprocess.run([sys.executable, "-m", "venv", "--clear", COLAB], check=True)
        subprocess.run(
            [COLAB / "bin/python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", *COLAB_PACKAGES],
            check=True,
        )
        stamp.write_text(digest)
    (packages,) = COLAB.glob("lib/python*/site-packages")
    installed = {path.name.split("-")[0].lower() for path in packages.glob("*.dist-info")}
    assert not installed & {"jupyterlab", "ipyparallel", "distlab"}
    return packages


class Machine:
    """A fresh Colab-like machine: an empty environment over `packages`, and google.colab loaded."""

    def __init__(self, packages: Path, folder: Path):
        self.environment = folder / "environment"
        self.folder = folder
        subprocess.run([COLAB / "bin/python", "-m", "venv", "--without-pip", self.environment], check=True)
        (self.own_packages,) = self.environment.glob("lib/python*/site-packages")
        (self.own_packages / "colab_packages.pth").write_text(f"{packages}\n")
        torchrun = self.environment / "bin/torchrun"  # Colab has it on PATH, beside its torch
        torchrun.write_text(f'#!/bin/sh\nexec "{self.environment}/bin/python" -m torch.distributed.run "$@"\n')
        torchrun.chmod(0o755)
        (self.own_packages / "google/colab").mkdir(parents=True)
        (self.own_packages / "google/colab/__init__.py").write_text("")
        (self.own_packages / "colab_kernel_launcher.py").write_text(LAUNCHER)
        kernel = folder / "jupyter/kernels/colab"
        kernel.mkdir(parents=True)
        argv = [str(self.environment / "bin/python"), "-m", "colab_kernel_launcher", "-f", "{connection_file}"]
        (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Colab", "language": "python"}))
        self.mark = f"colab-test-{uuid.uuid4()}"
        ours = ("PYTHON", "VIRTUAL_ENV", "JUPYTER", "JPY", "IPYTHON", "MPL", "DISTLAB", "PYTEST", "MAKE")
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        self.variables |= {"IPYTHONDIR": str(folder / "ipython"), "DISTLAB_TEST_MARK": self.mark}
        self.variables |= {"JUPYTER_RUNTIME_DIR": str(folder / "runtime"), "JUPYTER_CONFIG_DIR": str(folder / "config")}
        self.kernels = folder / "jupyter"

    def run(self, path, *absent):
        """The code cells of the notebook at `path` after its run in an empty folder; `absent` modules must not be there.

        A cell may fail only when it is tagged raises-exception.
        """
        notebook = nbformat.read(path, as_version=4)
        notebook.cells.insert(0, nbformat.v4.new_code_cell(PROBE.format(absent=absent)))
        with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory(dir=self.folder) as content:
            patched.setenv("JUPYTER_PATH", str(self.kernels))
            resources = {"metadata": {"path": content}}
            NotebookClient(notebook, timeout=300, kernel_name="colab", resources=resources).execute(env=self.variables)
        return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def small_notebook(tmp_path_factory):
    """A notebook with a diagram beside it; its comment makes it one of those that bring MPI."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "ring.png").write_bytes(b"\x89PNG")
    code = 'import torch\nimport distlab\nprint(distlab.__file__)  # engines="mpi"'
    cells = [nbformat.v4.new_markdown_cell("![ring](ring.svg)"), nbformat.v4.new_code_cell(code)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "00_small.ipynb")
    return folder / "00_small.ipynb"


@pytest.fixture(scope="module")
def built(small_notebook, tmp_path_factory):
    """{name: built file} of the small notebook and every notebook of the course."""
    folder = tmp_path_factory.mktemp("colab")
    return {path.name: path for path in tool.build(ROOT, [small_notebook, *NOTEBOOKS], folder)}


@pytest.fixture(scope="module")
def installed(colab_packages, built, small_notebook, tmp_path_factory):
    """A machine, and the code cells of the notebook that has installed distlab there."""
    machine = Machine(colab_packages, tmp_path_factory.mktemp("machine"))
    return machine, machine.run(built[small_notebook.name], "jupyterlab", "ipyparallel", "distlab")


def test_the_wheel_holds_the_whole_package(tmp_path):
    """Every file of distlab/ is in the wheel, so that nothing is missing at run time; the next has the same bytes."""
    wheels = [tool.build_wheel(ROOT, tmp_path / name) for name in ("one", "two")]
    with zipfile.ZipFile(wheels[0]) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("distlab/")}
    tree = {str(path.relative_to(ROOT)) for path in (ROOT / "distlab").rglob("*") if path.is_file()}
    assert packed == {name for name in tree if "__pycache__" not in name}
    assert wheels[0].read_bytes() == wheels[1].read_bytes()


PNG = "data:image/png;base64,iVBORw=="


@pytest.mark.parametrize(
    ("text", "carried"),
    [
        ("![ring](ring.svg)", f"![ring]({PNG})"),
        ('<img alt="r" src="ring.png" width="400">', f'<img alt="r" src="{PNG}" width="400">'),
        ("see [lesson 3](03_ring.ipynb) next", "see lesson 3 next"),
        ("[`distlab`](../distlab/client/cluster.py)", "`distlab`"),
        ("[paper](https://arxiv.org/abs/1) [below](#summary)", "[paper](https://arxiv.org/abs/1) [below](#summary)"),
        ("`x[0](1)` and\n```\ny[0](2)\n```", "`x[0](1)` and\n```\ny[0](2)\n```"),
    ],
)
def test_diagrams_travel_and_links_to_files_become_words(small_notebook, text, carried):
    """A diagram becomes a data: address of its PNG; links to the web and to sections stay, and so does code."""
    assert tool.carry(text, small_notebook.parent) == carried


def test_a_missing_diagram_stops_the_build(small_notebook):
    """A diagram that was not drawn is an error with the command that draws it, not a broken picture."""
    with pytest.raises(SystemExit, match="Run make figs first"):
        tool.carry("![x](../figs/nothing.svg)", small_notebook.parent)


@pytest.mark.parametrize(
    ("code", "extras"), [("import distlab", "[course]"), ('Cluster(2, engines="mpi")', "[course,mpi]")]
)
def test_no_index_is_asked_for_distlab(tmp_path, code, extras):
    """distlab is installed by the path of the wheel in the cell, and never by a name that somebody could claim.

    MPICH and mpi4py are an extra of the wheel: only a notebook that starts ranks by them brings them.
    """
    path = tmp_path / "one.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)]), path)
    install = tool.convert(path, path, "torch").cells[0].source
    (line,) = [line.strip() for line in install.splitlines() if "%pip" in line]
    assert line == f'%pip install -q --constraint "{{pins}}" "{{wheel}}{extras}" ipyparallel'


USERS_FIRST_INSTALL = """
import site, sys, zipfile
sys.path.append({packages!r})  # without its .pth files: distlab is not there
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
folder = site.getusersitepackages()
shell.register_magic_function(lambda line: zipfile.ZipFile({wheel!r}).extractall(folder), "line", "pip")
shell.run_cell({source!r}).raise_error()
import distlab
print(distlab.__file__)
"""


def test_the_first_install_of_a_user_is_found_at_once(tmp_path):
    """Where pip makes a folder for the user's packages that the kernel did not know, the first cell finds it."""
    wheel = tmp_path / "distlab-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("distlab/__init__.py", "")
    source = tool.install_cell(wheel, "torch", "").source
    code = USERS_FIRST_INSTALL.format(packages=str(Path(nbformat.__file__).parents[1]), wheel=str(wheel), source=source)
    variables = {"PYTHONUSERBASE": str(tmp_path / "user"), "HOME": str(tmp_path)}
    done = python("-S", "-c", code, cwd=tmp_path, env=variables)
    assert done.stdout.startswith(str(tmp_path / "user")), done.stdout + done.stderr


def test_the_first_cell_installs_once_and_leaves_torch(installed, built, small_notebook):
    """On a Colab-like machine the first cell installs distlab, exchanges no torch, and does nothing the second time."""
    machine, cells = installed
    assert str(machine.own_packages / "distlab") in cells[-1].outputs[0].text
    assert not (machine.own_packages / "torch").exists()
    assert not (machine.own_packages / "numpy").exists()
    _, install, use = machine.run(built[small_notebook.name], "jupyterlab")
    assert install.outputs == []
    assert use.outputs[0].output_type == "stream"


def starts_programs(path):
    return any(words in path.read_text() for words in STARTS_PROGRAMS)


@pytest.mark.parametrize("path", [*filter(starts_programs, NOTEBOOKS)], ids=lambda path: path.stem)
def test_a_built_notebook_runs_alone(built, installed, path):
    """The one file runs top to bottom with Colab's packages, in an empty directory, and leaves no process behind."""
    machine, _ = installed
    machine.run(built[path.name], "jupyterlab")
    assert wait_until_gone(lambda: marked("DISTLAB_TEST_MARK", machine.mark)) == []


def test_what_the_other_notebooks_import_is_there(built, installed):
    """Colab has it, or distlab brings it."""
    others = [built[path.name].read_text() for path in NOTEBOOKS if not starts_programs(path)]
    names = set(re.findall(r'^ +"(?: *from| *import) (\w+)', "\n".join(others), flags=re.MULTILINE))
    assert {"torch", "distlab"} <= names
    code = f"import importlib.util; print([name for name in {sorted(names)} if importlib.util.find_spec(name) is None])"
    command = [installed[0].environment / "bin/python", "-c", code]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("name", [path.name for path in NOTEBOOKS])
def test_a_built_notebook_names_no_file_of_the_project(built, name):
    """No picture, link or line of code of the built file points to a file that does not travel with it."""
    for cell in nbformat.read(built[name], 4).cells:
        assert "../" not in cell.source
        assert cell.cell_type == "code" or ".ipynb)" not in cell.source
