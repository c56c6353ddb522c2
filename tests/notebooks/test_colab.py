"""make colab: each notebook as one file, run where there is only what Colab has.

The environment with Colab's packages is made once and kept in .venv-colab; each notebook then gets an empty environment
on top of it, so that each one installs distlab for itself and none sees what another installed.
"""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import time
import uuid
import zipfile
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
COLAB = ROOT / ".venv-colab"
COLAB_PACKAGES = ["ipykernel", "torch", "matplotlib", "numpy", "pandas", "scikit-learn"]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))

PIXEL = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"
    b"\x00\x00\x00\rIDATx\x9cc\xf8\xcf\xc0\xf0\x1f\x00\x05\x00\x01\xff\x89\x99=\x1d\x00\x00\x00\x00IEND\xaeB`\x82"
)

# What Colab's own launcher does that matters here: google.colab is loaded before the first cell runs.
LAUNCHER = "import google.colab\nfrom ipykernel import kernelapp\n\nkernelapp.launch_new_instance()\n"

PROBE = """\
import importlib.util, os, sys
assert "google.colab" in sys.modules
missing = [name for name in ("jupyterlab", "ipyparallel", "distlab") if importlib.util.find_spec(name) is None]
assert missing == ["jupyterlab", "ipyparallel", "distlab"], missing
assert os.listdir() == [], os.listdir()"""

pytestmark = pytest.mark.timeout(900)  # the first run installs torch; a notebook runs its lesson in full


def load_tool():
    spec = importlib.util.spec_from_file_location("distlab_colab_tool", ROOT / "tools" / "colab.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tool():
    return load_tool()


@pytest.fixture(scope="session")
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
    """A fresh Colab-like machine: an empty environment over `packages`, an empty directory, google.colab loaded."""

    def __init__(self, packages: Path, folder: Path):
        self.environment = folder / "environment"
        self.content = folder / "content"
        self.content.mkdir()
        subprocess.run([COLAB / "bin/python", "-m", "venv", "--without-pip", self.environment], check=True)
        (self.own_packages,) = self.environment.glob("lib/python*/site-packages")
        (self.own_packages / "colab_packages.pth").write_text(f"{packages}\n")
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

    def run(self, notebook, monkeypatch):
        """Runs `notebook` in place; a cell may fail only when it is tagged raises-exception."""
        monkeypatch.setenv("JUPYTER_PATH", str(self.kernels))
        client = NotebookClient(
            notebook, timeout=300, kernel_name="colab", resources={"metadata": {"path": str(self.content)}}
        )
        client.execute(env=self.variables)
        return notebook

    def left_processes(self, patience=10.0):
        """Processes that outlived the kernel by `patience` seconds."""
        end = time.monotonic() + patience
        while (left := self.marked_processes()) and time.monotonic() < end:
            time.sleep(0.1)
        return left

    def marked_processes(self):
        marked = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("DISTLAB_TEST_MARK") == self.mark and process.status() != "zombie":
                    marked.append(process)
            except (psutil.AccessDenied, psutil.NoSuchProcess):
                continue
        return marked


@pytest.fixture
def machine(colab_packages, tmp_path):
    return Machine(colab_packages, tmp_path)


@pytest.fixture(scope="session")
def built(tool, tmp_path_factory):
    """{name: built file} of every notebook of the course."""
    folder = tmp_path_factory.mktemp("colab")
    return {path.name: path for path in tool.build(ROOT, NOTEBOOKS, folder)}


@pytest.fixture
def small_notebook(tmp_path):
    """A notebook with a diagram and links, beside the files that they name."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "figs").mkdir()
    (tmp_path / "figs/ring.png").write_bytes(PIXEL)
    (tmp_path / "figs/ring.svg").write_text("<svg/>")
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_markdown_cell("# Small\n\n![ring](../figs/ring.svg)\n\nSee [the ring](03_ring.ipynb)."),
            nbformat.v4.new_code_cell("import torch\nimport distlab\nprint(torch.__version__, distlab.__file__)"),
        ]
    )
    path = tmp_path / "notebooks/00_small.ipynb"
    nbformat.write(notebook, path)
    return path


def errors(notebook):
    """The error outputs of cells that were not meant to fail."""
    return [
        output
        for cell in notebook.cells
        if cell.cell_type == "code" and "raises-exception" not in cell.metadata.get("tags", [])
        for output in cell.outputs
        if output.output_type == "error"
    ]


def with_probe(path):
    """The built notebook with a first cell that fails unless this is a machine like Colab's."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    notebook.cells.insert(0, nbformat.v4.new_code_cell(PROBE))
    return notebook


def test_the_wheel_holds_the_whole_package(tool, tmp_path):
    """Every file of distlab/ is in the wheel, so that nothing is missing at run time."""
    with zipfile.ZipFile(tool.build_wheel(ROOT, tmp_path)) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("distlab/")}
    tree = {str(path.relative_to(ROOT)) for path in (ROOT / "distlab").rglob("*") if path.is_file()}
    assert packed == {name for name in tree if "__pycache__" not in name}


def test_building_twice_gives_the_same_bytes(tool, small_notebook, tmp_path):
    """The same sources give the same files."""
    (one,) = tool.build(ROOT, [small_notebook], tmp_path / "one")
    (two,) = tool.build(ROOT, [small_notebook], tmp_path / "two")
    assert one.read_bytes() == two.read_bytes()


def test_diagrams_travel_as_png(tool, small_notebook):
    """A diagram, as Markdown or HTML, SVG or PNG, becomes a data: address of its PNG."""
    folder = small_notebook.parent
    for text in (
        "![ring](../figs/ring.svg)",
        '![ring](../figs/ring.png "A ring")',
        '<img alt="r" src="../figs/ring.png" width="400">',
    ):
        carried = tool.carry(text, folder)
        assert "data:image/png;base64,iVBORw0KGgo" in carried
        assert "../figs" not in carried


def test_a_missing_diagram_stops_the_build(tool, small_notebook):
    """A diagram that was not drawn is an error with the command that draws it, not a broken picture."""
    with pytest.raises(SystemExit, match="Run make figs first"):
        tool.carry("![x](../figs/nothing.svg)", small_notebook.parent)


@pytest.mark.parametrize(
    ("text", "carried"),
    [
        ("see [lesson 3](03_ring.ipynb) next", "see lesson 3 next"),
        ("[answers](solutions/01.ipynb#a)", "answers"),
        ("[`distlab`](../distlab/cluster.py)", "`distlab`"),
        ("[paper](https://arxiv.org/abs/1)", "[paper](https://arxiv.org/abs/1)"),
        ("[below](#summary)", "[below](#summary)"),
        ("`x[0](1)` and\n```\ny[0](2)\n```", "`x[0](1)` and\n```\ny[0](2)\n```"),
    ],
)
def test_links_to_files_become_words(tool, tmp_path, text, carried):
    """A link that would lead nowhere leaves its words; links to the web, to sections, and code stay."""
    assert tool.carry(text, tmp_path) == carried


def test_no_index_is_asked_for_distlab(tool, small_notebook, tmp_path):
    """distlab is installed by the path of the wheel in the cell, and never by a name that somebody could claim."""
    (path,) = tool.build(ROOT, [small_notebook], tmp_path / "built")
    (install,) = [cell.source for cell in nbformat.read(path, 4).cells if "%pip" in cell.source]
    (line,) = [line.strip() for line in install.splitlines() if "%pip" in line]
    assert line == '%pip install -q --constraint "{pins}" "{wheel}" ipyparallel'


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


def test_the_first_install_of_a_user_is_found_at_once(tool, tmp_path):
    """Where pip makes a folder for the user's packages that the kernel did not know, the first cell finds it."""
    wheel = tmp_path / "distlab-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("distlab/__init__.py", "")
    source = tool.install_cell(wheel, "torch").source
    code = USERS_FIRST_INSTALL.format(packages=str(Path(nbformat.__file__).parents[1]), wheel=str(wheel), source=source)
    variables = {"PYTHONUSERBASE": str(tmp_path / "user"), "HOME": str(tmp_path)}
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.stdout.startswith(str(tmp_path / "user")), done.stdout + done.stderr


def test_mpi_is_installed_where_a_notebook_starts_ranks_by_it(tool, tmp_path):
    """MPICH and mpi4py are an extra of the wheel; only a notebook that needs them brings them."""
    path = tmp_path / "with_mpi.ipynb"
    cells = [nbformat.v4.new_code_cell('cluster = distlab.Cluster(2, engines="mpi")')]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    (built,) = tool.build(ROOT, [path], tmp_path / "built")
    assert '"{wheel}[mpi]" ipyparallel' in nbformat.read(built, 4).cells[0].source


def test_the_first_cell_installs_once_and_leaves_torch(tool, small_notebook, machine, monkeypatch, tmp_path):
    """On a Colab-like machine the first cell installs distlab, exchanges no torch, and does nothing the second time."""
    (path,) = tool.build(ROOT, [small_notebook], tmp_path / "built")
    notebook = machine.run(with_probe(path), monkeypatch)
    assert errors(notebook) == []
    assert str(machine.own_packages / "distlab") in notebook.cells[-1].outputs[0].text
    assert not (machine.own_packages / "torch").exists()
    assert not (machine.own_packages / "numpy").exists()

    again = machine.run(nbformat.read(path, 4), monkeypatch)
    install, use = [cell for cell in again.cells if cell.cell_type == "code"]
    assert install.outputs == []
    assert use.outputs[0].output_type == "stream"


@pytest.mark.skipif(not NOTEBOOKS, reason="notebooks/ is empty")
@pytest.mark.parametrize("name", [path.name for path in NOTEBOOKS])
def test_a_built_notebook_runs_alone(built, machine, monkeypatch, name):
    """The one file runs top to bottom with Colab's packages, in an empty directory, and leaves no process behind."""
    notebook = machine.run(with_probe(built[name]), monkeypatch)
    assert errors(notebook) == []
    assert machine.left_processes() == []


@pytest.mark.skipif(not NOTEBOOKS, reason="notebooks/ is empty")
@pytest.mark.parametrize("name", [path.name for path in NOTEBOOKS])
def test_a_built_notebook_names_no_file_of_the_project(built, name):
    """No picture or link of the built file points to a file that does not travel with it."""
    for cell in nbformat.read(built[name], 4).cells:
        if cell.cell_type == "markdown":
            assert "../" not in cell.source
            assert ".ipynb)" not in cell.source
