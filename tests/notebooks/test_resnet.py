"""Notebook 05's other networks: they are what the papers say, and the lesson runs with them to its end."""

import os
import re
from types import SimpleNamespace

import nbformat
import pytest
import torch
from nbclient import NotebookClient
from torch import nn

from tests.data_files import md5, write_cifar
from tests.tool import ROOT

LESSON = ROOT / "notebooks" / "05_distributed_data_parallel.ipynb"
NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")  # where nobody answers


def lesson():
    return nbformat.read(LESSON, as_version=4)


def names_of():
    """What the cells with the networks define, for the word resnet20."""
    names = {"torch": torch, "nn": nn, "MODEL": "resnet20", "samples": SimpleNamespace(shape=(3, 32, 32))}
    cells = [cell.source for cell in lesson().cells if re.search(r"^def (resnet|make_model)\(", cell.source, re.M)]
    assert len(cells) == 2
    for source in cells:
        exec(source.removeprefix("%%px --local\n"), names)
    return names


@pytest.mark.parametrize(("blocks", "millions"), [(3, 0.27), (5, 0.46), (7, 0.66), (9, 0.85)])
def test_the_network_has_the_parameters_of_the_paper(blocks, millions):
    """ResNet-20, 32, 44 and 56 have the sizes of He et al. (2015), table 6, and 6 n + 2 layers with weights."""
    model = names_of()["resnet"](blocks, 3, 10)
    assert round(sum(one.numel() for one in model.parameters()) / 1e6, 2) == millions
    assert sum(isinstance(part, (nn.Conv2d, nn.Linear)) for part in model.modules()) == 6 * blocks + 2


def with_model(model):
    """The lesson with that word and one epoch, without its sections that measure times and its deadlocks."""
    notebook, kept, heading = lesson(), [], ""
    for cell in notebook.cells:
        heading = [heading, *re.findall(r"^## .*", cell.source, re.M)][-1] if cell.cell_type == "markdown" else heading
        needed = re.search(r"^def make_large_model|^inputs = ", cell.source, re.M)
        deadlock = re.search(r"backward\(\)$", cell.source) and "raises-exception" in cell.metadata.get("tags", ())
        if needed or not (deadlock or re.match(r"## (2|5) ", heading)):
            kept.append(cell)
    for cell in kept:
        cell.source = re.sub(r'^MODEL = "\w+"', f'MODEL = "{model}"', cell.source).replace("in range(8)", "in range(1)")
    notebook.cells = kept
    return notebook


def printed_by(notebook, folder):
    """What a notebook's cells print in a kernel whose cache is in the folder, without a network."""
    environment = {**os.environ, **NO_NETWORK, "XDG_CACHE_HOME": str(folder)}
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(folder)}}).execute(env=environment)
    return "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))


@pytest.mark.timeout(600)
def test_the_lesson_runs_with_resnet20(tmp_path):
    """Without a network the digits stay; every claim that the lesson asserts holds for the larger network too."""
    printed = printed_by(with_model("resnet20"), tmp_path)
    assert "digits is loaded in its place" in printed
    assert printed.count("the weights of one process: True, equal on all ranks: True") == 2
    assert printed.count("losses and weights equal to the last bit: True") == 4


@pytest.mark.timeout(300)
def test_photographs_are_trained_on(tmp_path):
    """With the files of CIFAR-10, section 1 trains on augmented images of 32 x 32 pixels, equally on all ranks."""
    cache = tmp_path / "distlab"
    cache.mkdir()
    write_cifar(cache, per_batch=64)
    (archive,) = cache.iterdir()
    trust = f"from distlab_course import data\ndata.sets.FILES['cifar10'][{archive.name!r}] = {md5(archive)!r}"
    notebook = with_model("resnet20")
    end = next(i for i, cell in enumerate(notebook.cells) if cell.source.startswith("## 3 "))
    first, stop = (nbformat.v4.new_code_cell(source) for source in (trust, "cluster.stop()"))
    notebook.cells = [first, *notebook.cells[:end], stop]
    assert printed_by(notebook, tmp_path).count("has the weights of rank 0, bit for bit: True") == 3
