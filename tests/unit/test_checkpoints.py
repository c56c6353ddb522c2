"""Checkpoints of one process: what comes back, what is refused by name, and that a failed save loses nothing."""

import os
import random
import re
import stat

import numpy
import pytest
import torch
from torch import nn

import distlab
from distlab import checkpoints


def make(width=4, momentum=0.9, kind=torch.optim.SGD):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2))
    options = {"momentum": momentum} if kind is torch.optim.SGD else {}
    return model, kind(model.parameters(), lr=0.1, **options)


def step(model, optimizer):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 3)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.fixture
def saved(tmp_path):
    """The path of a checkpoint that was saved after two steps."""
    model, optimizer = make()
    step(model, optimizer), step(model, optimizer)
    checkpoints.save(tmp_path / "run" / "digits.pt", model, optimizer, epoch=2, losses=[0.5, 0.25])
    return tmp_path / "run" / "digits.pt"


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_training_goes_on_to_the_last_bit(tmp_path, kind):
    """Weights, buffers, the optimizer's state and every kind of random number are as if nothing had happened."""
    model, optimizer = make(kind=kind)
    generator = torch.Generator().manual_seed(7)

    def go_on(model, optimizer):
        drawn = [random.random(), numpy.random.rand(), torch.rand(1, generator=generator).item()]
        return [step(model, optimizer) for _ in range(3)], drawn, model.state_dict()

    step(model, optimizer)
    checkpoints.save(tmp_path / "a.pt", model, optimizer, generators=[generator], epoch=1)
    losses, drawn, weights = go_on(model, optimizer)
    other, other_optimizer = make(kind=kind)
    torch.manual_seed(99), random.seed(99), numpy.random.seed(99), generator.manual_seed(99)
    resumed = checkpoints.load(tmp_path / "a.pt", other, other_optimizer, generators=[generator])
    again, drawn_again, weights_again = go_on(other, other_optimizer)
    assert (losses, drawn) == (again, drawn_again)
    assert all(torch.equal(weights[key], weights_again[key]) for key in weights)
    assert (resumed["epoch"], resumed.ranks, resumed.changes) == (1, 1, ())
    assert repr(resumed) == "Resumed: epoch; saved by 1 rank"


def test_nothing_is_left_beside_the_file(saved):
    """The folder was made, and holds the checkpoint alone."""
    assert [path.name for path in saved.parent.iterdir()] == ["digits.pt"]


def test_weights_alone(saved):
    """A model is loaded without its optimizer, for example to be tested."""
    model, _ = make()
    assert checkpoints.load(saved, model)["losses"] == [0.5, 0.25]


REFUSED = {
    "another width": (
        lambda: make(width=5),
        "path must be a checkpoint of this model, got {path!r} with '0.weight', which is float32[4, 3] there and "
        "float32[5, 3] in the model. Build the model as it was when it was saved.",
    ),
    "a layer less": (
        lambda: (nn.Sequential(*make()[0][:2]), None),
        "path must be a checkpoint of this model, got {path!r} with '2.weight', which is float32[2, 4] there and "
        "missing in the model. Build the model as it was when it was saved.",
    ),
    "a layer more": (
        lambda: (nn.Sequential(*make()[0], nn.Linear(2, 2)), None),
        "path must be a checkpoint of this model, got {path!r} with '3.weight', which is missing there and "
        "float32[2, 2] in the model. Build the model as it was when it was saved.",
    ),
    "another optimizer": (
        lambda: make(kind=torch.optim.Adam),
        "path must be a checkpoint of this optimizer, got {path!r} with SGD of 6 parameters, and the optimizer is "
        "Adam of 6 parameters. Make the optimizer as it was, or load(path, model) for the weights alone.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_another_architecture_is_refused(saved, case):
    """The error names the file, the key and both values; model and optimizer stay as they were."""
    build, message = REFUSED[case]
    model, optimizer = build()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(distlab.CheckpointError) as caught:
        checkpoints.load(saved, model, optimizer)
    assert str(caught.value) == message.format(path=str(saved))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_an_optimizer_that_was_not_saved(tmp_path):
    """A checkpoint of weights alone says so when an optimizer is asked for."""
    model, optimizer = make()
    checkpoints.save(tmp_path / "a.pt", model)
    with pytest.raises(distlab.CheckpointError, match="with no optimizer, and the optimizer is SGD"):
        checkpoints.load(tmp_path / "a.pt", model, optimizer)


def test_generators_that_were_not_saved(saved):
    """As many generators are needed as were saved."""
    with pytest.raises(distlab.CheckpointError, match=r"with 0, and 1 of them here\. Give those that were given"):
        checkpoints.load(saved, make()[0], generators=[torch.Generator()])


def test_one_generator_needs_no_list(tmp_path):
    """It goes on where it was, whether it is given alone or in a list."""
    generator = torch.Generator().manual_seed(7)
    checkpoints.save(tmp_path / "a.pt", make()[0], generators=generator)
    drawn = torch.rand(1, generator=generator)
    for again in (generator, [generator]):
        checkpoints.load(tmp_path / "a.pt", make()[0], generators=again)
        assert torch.equal(torch.rand(1, generator=generator), drawn)


@pytest.mark.parametrize("generators", [3, [7], None])
def test_generators_that_are_none(saved, generators):
    """Anything else is refused, by `save` and by `load`; the file stays as it was."""
    before = saved.read_bytes()
    for call in (checkpoints.save, checkpoints.load):
        with pytest.raises(distlab.CheckpointError) as caught:
            call(saved, make()[0], generators=generators)
        assert str(caught.value) == (
            f"generators must be a list of torch.Generator, got {generators}. Give generators=[generator]."
        )
    assert saved.read_bytes() == before


def test_a_missing_file(tmp_path):
    """The error names the path, and the call that makes one."""
    with pytest.raises(distlab.CheckpointError) as caught:
        checkpoints.load(tmp_path / "none.pt", make()[0])
    path = str(tmp_path / "none.pt")
    assert str(caught.value) == (
        f"path must be the file of a checkpoint, got {path!r}, which is not there. "
        "Save one first: checkpoints.save(path, model, optimizer)."
    )


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file(saved, share):
    """Wherever the file ends too early, the error says that it cannot be read and how long it is."""
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(len(whole) * share)])
    length = int(len(whole) * share)
    with pytest.raises(distlab.CheckpointError) as caught:
        checkpoints.load(saved, make()[0])
    words = f"path must be a whole checkpoint, got {str(saved)!r}, whose {length} bytes cannot be read ("
    assert str(caught.value).startswith(words)


def test_a_file_of_another_kind(tmp_path):
    """A file that torch.save wrote by itself is told by its keys."""
    torch.save({"weight": torch.ones(1)}, tmp_path / "plain.pt")
    with pytest.raises(distlab.CheckpointError, match=re.escape("with the keys 'weight'. Load it with torch.load.")):
        checkpoints.load(tmp_path / "plain.pt", make()[0])


def test_values_that_cannot_be_loaded_safely(saved):
    """An object of a class of one's own is refused before anything is written."""
    before = saved.read_bytes()
    with pytest.raises(distlab.CheckpointError, match="epoch must be a number, a text, a tensor, or lists and dicts"):
        checkpoints.save(saved, make()[0], epoch=object())
    assert saved.read_bytes() == before


class Counting(nn.Linear):
    """A layer with more in its state than tensors."""

    def __init__(self, extra):
        super().__init__(3, 2)
        self.extra = extra

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


class Dated(nn.Linear):
    _version = numpy.int64(2)


def scheduled():
    """A model, and an optimizer whose learning rate comes of numpy."""
    model, optimizer = make()
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: numpy.cos(epoch / 10))
    return model, optimizer


LR = "optimizer.state_dict()['param_groups'][0]['lr'] must be {rule}, got {value!r}. It is a numpy.float64: {advice}"
UNSAFE = {
    "a learning rate of numpy": (
        lambda: (model := nn.Linear(3, 2), torch.optim.SGD(model.parameters(), lr=numpy.float64(0.1))),
        LR.replace("{value!r}", repr(numpy.float64(0.1))),
    ),
    "a schedule of numpy": (scheduled, LR.replace("{value!r}", repr(numpy.float64(0.1)))),
    "a number of numpy in a list of the model": (
        lambda: (nn.Sequential(Counting({"seen": [1, numpy.float64(2)]})), None),
        "model.state_dict()['0._extra_state']['seen'][1] must be {rule}, got "
        f"{numpy.float64(2)!r}. It is a numpy.float64: {{advice}}",
    ),
    "a key of numpy": (
        lambda: (Counting({numpy.int64(3): 1}), None),
        f"a key of model.state_dict()['_extra_state'] must be {{rule}}, got {numpy.int64(3)!r}. "
        "It is a numpy.int64: {advice}",
    ),
    "a version of numpy": (
        lambda: (Dated(3, 2), None),
        f"model.state_dict()._metadata['']['version'] must be {{rule}}, got {numpy.int64(2)!r}. "
        "It is a numpy.int64: {advice}",
    ),
}


@pytest.mark.parametrize("case", UNSAFE)
def test_states_that_cannot_be_loaded_safely(saved, case):
    """What `load` would not read is refused by its key before anything is written."""
    build, message = UNSAFE[case]
    before = saved.read_bytes()
    with pytest.raises(distlab.CheckpointError) as caught:
        checkpoints.save(saved, *build())
    assert str(caught.value) == message.format(
        rule="a value that torch.load reads with weights_only=True",
        advice="make it a plain value, for example with float().",
    )
    assert saved.read_bytes() == before


@pytest.mark.parametrize(
    ("extra", "other"),
    [(torch.Size([2]), torch.Size([])), (torch.float16, torch.int8), ({"seen": (1, "a", None)}, {})],
)
def test_states_that_are_no_tensors(tmp_path, extra, other):
    """What torch.load trusts is saved as well, and comes back."""
    checkpoints.save(tmp_path / "a.pt", Counting(extra))
    model = Counting(other)
    checkpoints.load(tmp_path / "a.pt", model)
    assert model.extra == extra


def test_a_full_disk_loses_nothing(saved, monkeypatch):
    """Where the new file cannot be written the old one is whole, nothing lies beside it, and the error says both."""
    before = saved.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(distlab.CheckpointError) as caught:
        checkpoints.save(saved, make()[0])
    assert str(caught.value) == (
        f"path must be a file that rank 0 can write, got {str(saved)!r} (OSError: [Errno 28] No space left on device). "
        "What was there before is unchanged."
    )
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["digits.pt"]


def test_a_disk_that_knows_no_fsync_of_folders(saved, monkeypatch):
    """The new file is in its place by then, so it was saved."""
    fsync = os.fsync

    def files_alone(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(22, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", files_alone)
    checkpoints.save(saved, make()[0], epoch=3)
    assert checkpoints.load(saved, make()[0])["epoch"] == 3


def test_another_number_of_ranks_says_what_changes():
    """Each sentence names what is not as it was."""
    changes = checkpoints._changes(4, 2)
    assert changes[0] == "It was saved by 4 ranks and goes on with 2, so it will not be equal to the last bit."
    assert [text.split(":")[0] for text in changes[1:]] == ["Global batch", "Data", "Random numbers"]
    assert checkpoints._changes(3, 3) == ()
