"""make colab: each notebook as one file, run where there is only what Colab has.

A folder with links to Colab's packages, as they are installed here, stands for its machine. A small
notebook installs distlab into an empty environment on top of it, by the cell that every built file
begins with, and starts ranks in every way in which the lessons do; what the lessons do with these,
nbval has compared.
"""

import base64
import os
import subprocess
import sys
import uuid
import zipfile
from importlib import metadata

import nbformat
import pytest
from packaging.requirements import Requirement

from tests.processes import marked, wait_until_gone
from tests.tool import ROOT, load

tool = load("colab")
# of those that matter here
COLAB_PACKAGES = ("pip", "ipykernel", "torch", "matplotlib", "numpy", "scikit-learn")
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))

# As the lessons start programs: torchrun by its name, mpiexec, and engines.
SMALL = """\
import os, subprocess, sys
import torch
import distlab

print(distlab.__file__)
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
with open("script.py", "w") as file:
    file.write("import os, distlab_course.data\\n")
    file.write("os.write(1, b'rank %s\\\\n' % os.environ['RANK'].encode())")
torchrun = ["torchrun", "--standalone", "--nproc-per-node", "2", "script.py"]
print(sorted(subprocess.run(torchrun, capture_output=True, text=True).stdout.splitlines()))
# engines="mpi" brings MPI
for options in ({}, {"engines": "mpi", "backend": "distlab_course.mpi_backend"}):
    with distlab.Cluster(2, **options) as cluster:
        print(cluster.run(lambda rank, world_size: rank))"""

pytestmark = pytest.mark.timeout(500)


@pytest.fixture(scope="module")
def colab_packages(tmp_path_factory):
    """A directory of packages with what Colab has, and nothing of this project."""
    folder = tmp_path_factory.mktemp("packages")
    names = list(COLAB_PACKAGES)
    for name in names:
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
            if not (folder / top).exists():  # two may share a folder
                (folder / top).symlink_to(distribution.locate_file(top))
        needed = map(Requirement, distribution.requires or ())
        wanted = [
            one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})
        ]
        names += [one for one in wanted if one not in names]
    assert not {*names} & {"jupyterlab", "ipyparallel", "distlab"}
    return folder


def printed_by(cells, folder, interpreter, mark):
    """The lines that these cells print in that Python, in an empty folder.

    This process's settings are not there.
    """
    ours = (
        "PYTHON",
        "VIRTUAL_ENV",
        "JUPYTER",
        "JPY",
        "IPYTHON",
        "MPL",
        "DISTLAB",
        "PYTEST",
        "MAKE",
    )
    variables = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    variables |= {"IPYTHONDIR": str(folder / "ipython"), "DISTLAB_TEST_MARK": mark}
    content = folder / "content"
    content.mkdir()
    (content / "cells.ipy").write_text("\n\n".join(cells))
    command = [interpreter, "-m", "IPython", "cells.ipy"]
    done = subprocess.run(
        command, cwd=content, env=variables, capture_output=True, text=True, timeout=450
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def small_notebook(tmp_path_factory):
    """A notebook with a diagram beside it."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "ring.png").write_bytes(b"\x89PNG")
    cells = [nbformat.v4.new_markdown_cell("![ring](ring.svg)"), nbformat.v4.new_code_cell(SMALL)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "00_small.ipynb")
    return folder / "00_small.ipynb"


@pytest.fixture(scope="module")
def built(small_notebook, tmp_path_factory):
    """{name: built file} of the small notebook and every notebook of the course."""
    folder = tmp_path_factory.mktemp("colab")
    return {path.name: path for path in tool.build(ROOT, [small_notebook, *NOTEBOOKS], folder)}


def test_the_wheel_holds_the_whole_package(built, tmp_path):
    """Every file of distlab/ is in the wheel, so that nothing is missing at run time.

    Each build has the same bytes.
    """
    path = tool.build_wheel(ROOT, tmp_path)
    with zipfile.ZipFile(path) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("distlab/")}
    tree = {str(path.relative_to(ROOT)) for path in (ROOT / "distlab").rglob("*") if path.is_file()}
    assert packed == {name for name in tree if "__pycache__" not in name}
    assert base64.b64encode(path.read_bytes()).decode() in built[NOTEBOOKS[0].name].read_text()


PNG = "data:image/png;base64,iVBORw=="
CARRIED = {
    "![ring](ring.svg)": f"![ring]({PNG})",
    '<img alt="r" src="ring.png" width="400">': f'<img alt="r" src="{PNG}" width="400">',
    "see [lesson 3](03_ring.ipynb) next": "see lesson 3 next",
    "[`distlab`](../distlab/notebook/cluster.py)": "`distlab`",
    "[paper](https://arxiv.org/abs/1) [below](#summary)": (
        "[paper](https://arxiv.org/abs/1) [below](#summary)"
    ),
    "`x[0](1)` and\n```\ny[0](2)\n```": "`x[0](1)` and\n```\ny[0](2)\n```",
}


def test_diagrams_travel_and_links_to_files_become_words(small_notebook):
    """A diagram becomes a data: address of its PNG; links to the web and to sections stay.

    Code stays as well.
    """
    assert {text: tool.carry(text, small_notebook.parent) for text in CARRIED} == CARRIED


def test_a_built_notebook_runs_alone(built, small_notebook, colab_packages, tmp_path):
    """Its first cell installs distlab, exchanges no torch, and does nothing the second time.

    Then ranks start in every way, and leave no process behind.
    """
    environment = tmp_path / "environment"
    mark = f"colab-test-{uuid.uuid4()}"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "colab_packages.pth").write_text(f"{colab_packages}\n")
    torchrun = environment / "bin/torchrun"  # Colab has it on PATH, beside its torch
    torchrun.write_text(
        f'#!/bin/sh\nexec "{environment}/bin/python" -m torch.distributed.run "$@"\n'
    )
    torchrun.chmod(0o755)
    absent = (
        "import importlib.util\n"
        "assert not any(map(importlib.util.find_spec, ['distlab', 'ipyparallel']))"
    )
    _, install, use = (
        cell.source for cell in nbformat.read(built[small_notebook.name], as_version=4).cells
    )
    printed = printed_by(
        [absent, install, use, install], tmp_path, environment / "bin/python", mark
    )
    place = next(
        place for place, line in enumerate(printed) if line.startswith(str(packages / "distlab"))
    )
    assert printed[place + 1 :] == ["['rank 0', 'rank 1']", "[0, 1]", "[0, 1]"]
    assert not (packages / "torch").exists()
    assert not (packages / "numpy").exists()
    assert wait_until_gone(lambda: marked("DISTLAB_TEST_MARK", mark)) == []


def test_a_built_notebook_names_no_file_of_the_project(built):
    """No picture, link or line of code of a built file needs a file that stays behind."""
    for path in built.values():
        for cell in nbformat.read(path, 4).cells:
            assert "../" not in cell.source, path
            assert cell.cell_type == "code" or ".ipynb)" not in cell.source, path


def test_a_built_notebook_leaves_out_what_is_to_be_predicted(built):
    """Outputs that a lesson folds are not there, because Colab does not fold them.

    The text says so; all others are there.
    """
    left_out = 0
    for path in NOTEBOOKS:
        cells = {cell.id: cell for cell in nbformat.read(built[path.name], 4).cells}
        for cell in nbformat.read(path, 4).cells:
            assert "are folded" not in cells[cell.id].source
            if cell.cell_type != "code":
                continue
            is_folded = cell.metadata.get("jupyter", {}).get("outputs_hidden", False)
            assert cells[cell.id].outputs == ([] if is_folded else cell.outputs)
            left_out += is_folded
    assert left_out >= 30
