"""Checkpoints of one process: what comes back, what is refused, and what a failed save leaves."""

import os

import numpy
import pytest
import torch
from torch import nn

import distlab
from distlab_course import checkpoints
from tests.refused import raised


def make(width=4, layers=3, kind=torch.optim.SGD):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2))[:layers]
    return model, kind(model.parameters(), lr=0.1)


def refused(call, *args, **kwargs):
    """The message with which a call is refused."""
    return str(raised(distlab.CheckpointError, call, *args, **kwargs))


@pytest.fixture
def saved(tmp_path):
    """The path of a checkpoint that was saved after a step, in a folder that was not there."""
    model, optimizer = make()
    model(torch.randn(8, 3)).square().mean().backward()
    optimizer.step()
    checkpoints.save(tmp_path / "run" / "digits.pt", model, optimizer, epoch=2, losses=[0.5, 0.25])
    return tmp_path / "run" / "digits.pt"


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (
            {"layers": 2},
            "model, got {} with '2.weight', which is float32[2, 4] there and missing in the model",
        ),
        (
            {"kind": torch.optim.Adam},
            "optimizer, got {} with SGD of 6 parameters, and the optimizer is Adam",
        ),
    ],
)
def test_another_architecture_is_refused(saved, other, found):
    """The error names the file, the key and both values; the model stays as it was."""
    model, optimizer = make(**other)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    message = refused(checkpoints.load, saved, model, optimizer)
    assert message.startswith(f"path must be a checkpoint of this {found.format(repr(str(saved)))}")
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_weights_alone(saved):
    """A checkpoint of weights alone can be loaded without an optimizer.

    One of torch.save's can be loaded with torch.load.
    """
    model, optimizer = make()
    checkpoints.save(saved, model, losses=[0.5, 0.25])
    assert "with no optimizer, and the optimizer is SGD" in refused(
        checkpoints.load, saved, model, optimizer
    )
    assert checkpoints.load(saved, model)["losses"] == [0.5, 0.25]
    torch.save(model.state_dict(), saved)
    assert "which is another. Load it with torch.load." in refused(checkpoints.load, saved, model)


@pytest.mark.parametrize(
    ("value", "name"), [(numpy.cos(0.1), "multiarray"), (nn.Linear(1, 1), "linear.Linear")]
)
def test_what_cannot_be_loaded_safely_is_not_saved(saved, value, name):
    """What `load` would not read is refused by its class, and the file that was there stays."""
    before = saved.read_bytes()
    message = refused(checkpoints.save, saved, *make(), epoch=value)
    assert message.startswith(
        "What is saved must be numbers, texts, tensors, and lists and dicts of them, got "
    )
    assert name in message
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == ["digits.pt"]


def test_a_full_disk_loses_nothing(saved, monkeypatch):
    """Where the new file cannot be written, the old one is whole, and nothing lies beside it.

    The error says both.
    """
    before = saved.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert refused(checkpoints.save, saved, make()[0]) == (
        f"path must be a file that rank 0 can write, got {str(saved)!r} "
        "(OSError: [Errno 28] No space left on device). What was there before is unchanged."
    )
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == ["digits.pt"]
