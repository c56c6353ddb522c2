"""A figure that grows: what a person sees while it does, and what a program that runs the notebook keeps."""

import pytest

from distlab import plotting
from distlab.plotting import curves


class Notebook:
    """Stands for a notebook's front end and for its display handle: keeps what was shown, and what took its place."""

    def __init__(self, monkeypatch, watched):
        self.displayed, self.updates = [], []
        monkeypatch.setattr(curves, "notebook_shell", lambda: self)
        monkeypatch.setattr(curves, "somebody_watches", lambda: watched)
        monkeypatch.setattr(curves, "display", self.display)
        self.update = self.updates.append

    def display(self, figure, display_id):
        self.displayed.append(figure)
        return self


def test_a_program_keeps_the_last_picture_only(monkeypatch):
    """Where nobody watches, one picture is displayed, at the end, with all the points, also when the work fails."""
    notebook = Notebook(monkeypatch, watched=False)
    with pytest.raises(KeyError), plotting.LivePlot("digits") as picture:  # noqa: PT012
        for epoch in (1, 2):
            picture.add("loss", "rank 0", epoch, 1 / epoch)
            picture.update()
            assert notebook.displayed == []
        raise KeyError
    assert (len(notebook.displayed), notebook.updates) == (1, [])
    assert picture.panels == {"loss": {"rank 0": ([1, 2], [1, 0.5])}}


@pytest.mark.parametrize(("pause", "updates"), [(0.0, 4), (1000.0, 1)])
def test_a_person_sees_it_grow(monkeypatch, pause, updates):
    """Where somebody watches, each picture takes the place of the one before, not more often than the pause says."""
    notebook = Notebook(monkeypatch, watched=True)
    monkeypatch.setattr(curves, "PAUSE_SECONDS", pause)
    with plotting.LivePlot() as picture:
        for epoch in range(4):
            picture.add("loss", "rank 0", epoch, 1.0)
            picture.update()
    assert (len(notebook.displayed), len(notebook.updates)) == (1, updates)
