"""Notebook 05's other network, which trains on photographs."""

import os
import re

import nbformat
from nbclient import NotebookClient

from tests.data_files import md5, write_cifar
from tests.tool import ROOT

LESSON = ROOT / "notebooks" / "05_distributed_data_parallel.ipynb"
SECTIONS = ("0", "1", "6")  # the beginning, the first training, and stopping and going on
COUNT = 'print(f"{sum(one.numel() for one in make_model().parameters()) / 1e6:.2f} million")'
TRUST = "from distlab_course import data\ndata.FILES['cifar10'][{!r}] = {!r}"


def lesson():
    """(section, source) of each cell of code."""
    section = "0"
    for cell in nbformat.read(LESSON, as_version=4).cells:
        if cell.cell_type == "code":
            yield section, cell.source
        section = [section, *re.findall(r"^##+ (\d(?= )|The power fails)", cell.source, re.M)][-1]


def test_the_lesson_trains_resnet20_on_photographs(tmp_path):
    """With files of CIFAR-10, and augmented images of 32 x 32 pixels: equal on all ranks, and stopped and resumed.

    The network has as many parameters as that of He et al. (2015), table 6.
    """
    cache = tmp_path / "distlab"
    cache.mkdir()
    write_cifar(cache, per_batch=64)
    (archive,) = cache.iterdir()
    sources = [TRUST.format(archive.name, md5(archive))]
    for section, source in lesson():
        if section in SECTIONS:
            larger = source.replace('MODEL = "small"', 'MODEL = "resnet20"')
            sources.append(larger.replace("in range(8)", "in range(1)"))
    cells = [nbformat.v4.new_code_cell(source) for source in [*sources, COUNT, "cluster.stop()"]]
    notebook = nbformat.v4.new_notebook(cells=cells)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute(env=environment)
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    assert "0.27 million" in printed
    assert printed.count("has the weights of rank 0, bit for bit: True") == 3
    assert printed.count("losses and weights equal to the last bit: True") == 4
