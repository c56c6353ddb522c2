"""distlab.plotting's figures of training: what they say, that they are tidy, and how one of them grows."""

import base64
import re

import matplotlib.pyplot as plt
import pytest
import torch

from distlab import plotting
from distlab.plotting import live
from tests.unit.test_plotting import assert_tidy, headless, visible_texts  # noqa: F401 - headless is a fixture

EPOCHS = list(range(1, 21))


def losses(ranks, epochs=EPOCHS):
    return {f"rank {rank}": (epochs, [2.3 / epoch + 0.01 * rank for epoch in epochs]) for rank in range(ranks)}


def accuracies(ranks, epochs=EPOCHS):
    return {f"rank {rank}": (epochs, [100 - 80 / epoch - rank for epoch in epochs]) for rank in range(ranks)}


# --- curves of training


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_training_curves(ranks):
    """Every line has a label at its end, a percentage is drawn from 0 to over 100, and a loss from 0."""
    figure = plotting.training_curves({"loss": losses(ranks), "accuracy, %": accuracies(ranks)}, "digits")
    left, right = figure.axes
    assert sorted(text.get_text() for text in left.texts) == [f"rank {rank}" for rank in range(ranks)]
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
    assert ax.get_xlim() == (0.5, 1.5)
    assert_tidy(figure)
    assert_tidy(plotting.training_curves({"loss": {}}))


# --- speed-up and steps


def test_speedup():
    """Rates become multiples of one rank's; each curve ends with its efficiency; more ranks than cores are shaded."""
    curves = {
        "small": ([1, 2, 4], [100, 120, 80], [90, 100, 70], [110, 130, 90]),
        "large": ([1, 2, 4], [10, 19, 20], [9, 18, 17], [11, 20, 21]),
    }
    ax = plotting.speedup(curves, "digits", cores=2)
    texts = [text.get_text() for text in ax.texts]
    assert sorted(texts) == ["ideal", "large, 50%", "more ranks than the 2 cores", "small, 20%"]
    assert list(ax.containers[1].lines[0].get_ydata()) == [1, 1.9, 2]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "4"]
    assert_tidy(ax.figure)
    assert_tidy(plotting.speedup({"one": ([1], [5], [4], [6])}).figure)


def test_step_times():
    """Each way has its bar, from the top down, with its median beside it."""
    ax = plotting.step_times({"none": (0.05, 0.04, 0.06), "buckets": (0.1, 0.09, 0.3)}, "one step")
    assert [text.get_text() for text in ax.texts] == ["50 ms", "100 ms"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["none", "buckets"]
    assert ax.yaxis_inverted()
    assert [bar.patches[0].get_width() for bar in ax.containers] == [0.05, 0.1]
    assert_tidy(ax.figure)


def test_axes_that_are_given_are_used():
    """A figure is drawn on the axes that are given, and no other is made."""
    figure, (one, two) = plt.subplots(2, layout="constrained")
    assert plotting.speedup({"a": ([1, 2], [1, 2], [1, 2], [1, 2])}, ax=one) is one
    assert plotting.step_times({"a": (1, 1, 1)}, ax=two) is two
    assert plt.get_fignums() == [figure.number]


# --- images


def test_images():
    """Each image is there with its caption on the lane of its rank; grey and coloured ones are drawn alike."""
    rows = [torch.rand(3, 1, 8, 8), torch.rand(2, 3, 32, 32)]
    figure = plotting.images(rows, [[7, 1, 0], ["cat", "dog"]], title="samples")
    shown = [text.get_text() for text in visible_texts(figure)]
    assert shown == ["samples", "rank 0", "7", "1", "0", "rank 1", "cat", "dog"]
    assert [ax.images[0].get_array().shape for ax in figure.axes[1:]] == [(8, 8)] * 3 + [(32, 32, 3)] * 2
    assert_tidy(figure)
    figure = plotting.images([torch.zeros(2, 8, 8)], names=["blank"])
    assert [text.get_text() for text in visible_texts(figure)] == ["blank"]
    assert_tidy(figure)


def test_images_are_stretched():
    """The darkest pixel of each image is white and its brightest black, whatever its normalisation."""
    figure = plotting.images([torch.tensor([[[-0.8, 1.0], [0.1, 2.8]]])])
    assert figure.axes[1].images[0].get_array().flatten().tolist() == pytest.approx([0, 0.5, 0.25, 1])


# --- what is refused

EXAMPLE = 'Give {"loss": {"rank 0": ([1, 2], [2.3, 1.9])}}.'


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plotting.training_curves({}), f"panels must be at least one panel, got {{}}. {EXAMPLE}"),
        (
            lambda: plotting.training_curves({"loss": {"rank 0": ([1, 2], [1])}}),
            f"panels['loss']['rank 0'] must be as many x as y, got 2 and 1. {EXAMPLE}",
        ),
        (
            lambda: plotting.speedup({}),
            'curves must be at least one curve, got {}. Give {"digits": ([1, 2], medians, lows, highs)}.',
        ),
        (
            lambda: plotting.speedup({"a": ([2], [1], [1], [1])}),
            "curves['a'] must begin with 1 rank, got 2. Give {\"digits\": ([1, 2], medians, lows, highs)}.",
        ),
        (
            lambda: plotting.speedup({"a": ([1], [0], [1], [1])}),
            "curves['a'] must be positive numbers, got 0. Measure a longer time, or leave this point out.",
        ),
        (
            lambda: plotting.step_times({}),
            'steps must be at least one way, with times above 0, got {}. Give {"buckets": (median, low, high)}, '
            "in seconds.",
        ),
        (
            lambda: plotting.images([]),
            "rows must be at least one row of images, got 0 empty ones. Give [x[:8]].",
        ),
        (
            lambda: plotting.images([torch.zeros(2, 8, 8)], [[1]]),
            "captions must be one for each image, [2] in the rows, got [1].",
        ),
    ],
)
def test_training_figures_refuse(call, message):
    """What cannot be drawn is refused with the rule, the value and what to give, and leaves no figure."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()
    assert plt.get_fignums() == []


# --- a figure that grows


class Notebook:
    """Stands for a notebook's front end: keeps what was displayed, and what took its place."""

    def __init__(self, monkeypatch, watched):
        self.displayed, self.updates = [], []
        monkeypatch.setattr(live, "notebook_shell", lambda: self)
        monkeypatch.setattr(live, "somebody_watches", lambda: watched)
        monkeypatch.setattr(live, "publish", self.publish)

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
    monkeypatch.setattr(live, "PAUSE_SECONDS", 0.0)
    with plotting.LivePlot() as picture:
        picture.update()
        for epoch in range(4):
            picture.add("loss", "rank 0", epoch, 1.0)
            picture.update()
    assert (len(notebook.displayed), len(notebook.updates)) == (1, 4)
    monkeypatch.setattr(live, "PAUSE_SECONDS", 1000.0)
    with plotting.LivePlot() as picture:
        picture.update()
        for epoch in range(4):
            picture.add("loss", "rank 0", epoch, 1.0)
            picture.update()
    assert (len(notebook.displayed), len(notebook.updates)) == (2, 5)


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


def test_any_figure_can_grow(monkeypatch):
    """Another function draws the figure when one is given, with its own options."""
    notebook = Notebook(monkeypatch, watched=False)
    seen = []

    def draw(panels, title, unit):
        seen.append((dict(panels), title, unit))
        return plt.figure()

    with plotting.LivePlot("times", draw, unit="s") as picture:
        picture.add("gloo", "all_reduce", 1024, 0.5)
    assert seen == [({"gloo": {"all_reduce": ([1024], [0.5])}}, "times", "s")]
    assert len(notebook.displayed) == 1


def test_in_a_terminal_nothing_is_drawn():
    """Outside a notebook the points are collected and no figure is made."""
    with plotting.LivePlot() as picture:
        picture.add("loss", "rank 0", 1, 1.0)
        picture.update()
    assert picture.panels == {"loss": {"rank 0": ([1], [1.0])}}
    assert plt.get_fignums() == []
