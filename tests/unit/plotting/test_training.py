"""distlab.plotting's figures of training: what they say, that they are tidy, and how one of them grows."""

import base64

import matplotlib.pyplot as plt
import pytest
import torch

from distlab import plotting
from distlab.plotting import training
from tests.unit.plotting.conftest import assert_tidy, labels, texts

EPOCHS = list(range(1, 21))


def losses(ranks, epochs=EPOCHS):
    return {f"rank {rank}": (epochs, [2.3 / epoch + 0.01 * rank for epoch in epochs]) for rank in range(ranks)}


def accuracies(ranks, epochs=EPOCHS):
    return {f"rank {rank}": (epochs, [100 - 80 / epoch - rank for epoch in epochs]) for rank in range(ranks)}


# --- curves of training


@pytest.mark.parametrize("ranks", [1, 8])
def test_training_curves(ranks):
    """Every line has a label at its end, a percentage is drawn from 0 to over 100, and a loss from 0."""
    figure = plotting.training_curves({"loss": losses(ranks), "accuracy, %": accuracies(ranks)}, "digits")
    left, right = figure.axes
    assert labels(left) == [f"rank {rank}" for rank in range(ranks)]
    assert left.get_ylim()[0] == 0
    assert right.get_ylim() == (0, 105)
    assert (left.get_ylabel(), right.get_ylabel(), left.get_xlabel()) == ("loss", "accuracy, %", "epoch")
    assert list(left.lines[0].get_ydata()) == losses(1)["rank 0"][1]
    assert_tidy(figure)


def test_training_curves_that_begin():
    """One point, a line without one and values below zero are drawn; a line's colour does not wait for its points."""
    figure = plotting.training_curves({"loss": {"rank 0": ([], []), "rank 1": ([1], [-2.0])}})
    (ax,) = figure.axes
    assert [text.get_text() for text in ax.texts] == ["rank 1"]
    assert ax.lines[0].get_color() == plotting.training_curves({"a": losses(2)}).axes[0].lines[1].get_color()
    assert ax.get_ylim()[0] < -2
    assert_tidy(figure)
    assert_tidy(plotting.training_curves({"loss": {}}))


# --- images


def test_images():
    """Each image is there with its caption on the lane of its rank; grey and coloured ones are drawn alike."""
    rows = [torch.rand(3, 1, 8, 8), torch.rand(2, 3, 32, 32)]
    figure = plotting.images(rows, [[7, 1, 0], ["cat", "dog"]], title="samples")
    assert texts(figure) == ["samples", "rank 0", "7", "1", "0", "rank 1", "cat", "dog"]
    assert [image.get_array().shape for image in figure.axes[0].images] == [(8, 8)] * 3 + [(32, 32, 3)] * 2
    assert_tidy(figure)
    figure = plotting.images([torch.zeros(2, 8, 8)], [["a", "b"]], names=["blank"])
    assert texts(figure) == ["blank", "a", "b"]
    assert_tidy(figure)


def test_images_are_stretched():
    """The darkest pixel of each image is white and its brightest black, whatever its normalisation."""
    figure = plotting.images([torch.tensor([[[-0.8, 1.0], [0.1, 2.8]]])], [[0]])
    assert figure.axes[0].images[0].get_array().flatten().tolist() == pytest.approx([0, 0.5, 0.25, 1])


# --- a figure that grows


class Notebook:
    """Stands for a notebook's front end: keeps what was displayed, and what took its place."""

    def __init__(self, monkeypatch, watched):
        self.displayed, self.updates = [], []
        monkeypatch.setattr(training, "notebook_shell", lambda: self)
        monkeypatch.setattr(training, "somebody_watches", lambda: watched)
        monkeypatch.setattr(training, "publish", self.publish)

    def publish(self, bundle, handle=False, update=None):
        assert handle
        if update is None:
            self.displayed.append(bundle)
            return "the handle"
        assert update == "the handle"
        self.updates.append(bundle)
        return update


def test_a_program_sees_the_last_picture_only(monkeypatch):
    """Where nobody watches, one picture is displayed, at the end, with all the points."""
    notebook = Notebook(monkeypatch, watched=False)
    with plotting.LivePlot("digits") as picture:
        for epoch in EPOCHS:
            picture.add("loss", "rank 0", epoch, 1 / epoch)
            picture.update()
            assert notebook.displayed == []
    (bundle,) = notebook.displayed
    assert notebook.updates == []
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert bundle["text/plain"] == "<Figure size 480x340 with 1 Axes>"
    assert picture.panels == {"loss": {"rank 0": (EPOCHS, [1 / epoch for epoch in EPOCHS])}}


def test_a_person_sees_it_grow(monkeypatch):
    """Where somebody watches, each picture takes the place of the one before, not more often than the pause says."""
    notebook = Notebook(monkeypatch, watched=True)
    for pause, shown in ((0.0, (1, 4)), (1000.0, (2, 5))):
        monkeypatch.setattr(training, "PAUSE_SECONDS", pause)
        with plotting.LivePlot() as picture:
            picture.update()
            for epoch in range(4):
                picture.add("loss", "rank 0", epoch, 1.0)
                picture.update()
        assert (len(notebook.displayed), len(notebook.updates)) == shown


def test_work_that_fails_leaves_its_picture(monkeypatch):
    """An error in the middle is not hidden, and what was measured until then is shown."""
    notebook = Notebook(monkeypatch, watched=False)

    def failing_work():
        with plotting.LivePlot() as picture:
            picture.add("loss", "rank 0", 1, 1.0)
            raise KeyError

    with pytest.raises(KeyError):
        failing_work()
    assert len(notebook.displayed) == 1
    with plotting.LivePlot():
        pass
    assert len(notebook.displayed) == 1


def test_in_a_terminal_nothing_is_drawn():
    """Outside a notebook the points are collected and no figure is made."""
    with plotting.LivePlot() as picture:
        picture.add("loss", "rank 0", 1, 1.0)
        picture.update()
    assert picture.panels == {"loss": {"rank 0": ([1], [1.0])}}
    assert plt.get_fignums() == []
