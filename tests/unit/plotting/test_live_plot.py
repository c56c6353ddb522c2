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


@pytest.mark.parametrize(("watched", "pause", "updates"), [(False, 0.0, 0), (True, 0.0, 4), (True, 1000.0, 1)])
def test_a_person_sees_it_grow(monkeypatch, watched, pause, updates):
    """Each picture takes the place of the one before, not more often than the pause says; a program gets the last one.

    That is shown with all the points, also when the work fails.
    """
    notebook = Notebook(monkeypatch, watched)
    monkeypatch.setattr(curves, "PAUSE_SECONDS", pause)
    with pytest.raises(KeyError), plotting.LivePlot("digits") as picture:  # noqa: PT012
        for epoch in range(4):
            picture.add("loss", "rank 0", epoch, 1.0)
            picture.update()
            assert bool(notebook.displayed) == watched
        raise KeyError
    assert (len(notebook.displayed), len(notebook.updates)) == (1, updates)
    assert picture.panels == {"loss": {"rank 0": ([0, 1, 2, 3], [1.0] * 4)}}
