"""A figure that grows while its numbers come in, and stays as one picture.

Called by the notebooks. Runs in the notebook's process, in Jupyter, Colab and VS Code alike: each new picture takes the
place of the one before. A program that runs the notebook shows the last picture only, which is what is saved.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from matplotlib.figure import Figure

from distlab.frontend import notebook_shell, publish, somebody_watches
from distlab.plotting.training import training_curves

PAUSE_SECONDS = 0.5  # between two pictures: a picture takes a tenth of a second, and the ranks want the cores


class LivePlot:
    """Lines in panels that are drawn again as points are added.

        with plotting.LivePlot("training") as picture:
            for epoch in range(10):
                picture.add("loss", "rank 0", epoch, 0.5)
                picture.update()

    Runs on: client.

    Args:
        title: what is measured; given to `draw`.
        draw: makes a figure of {panel: {line: (x, y)}}; plotting.training_curves unless another is given.
        options: more for `draw`, for example xlabel="step".
    """

    def __init__(self, title: str = "", draw: Callable[..., Figure] = training_curves, **options: Any):
        self.panels: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
        self._draw, self._options = draw, {"title": title, **options}
        self._place: Any = None
        self._drawn = float("-inf")

    def add(self, panel: str, line: str, x: float, y: float) -> None:
        """Add a point to a line of a panel; panels and lines appear with their first point."""
        xs, ys = self.panels.setdefault(panel, {}).setdefault(line, ([], []))
        xs.append(x)
        ys.append(y)

    def update(self) -> None:
        """Show what there is, if somebody watches and the last picture is old enough; call it as often as you like."""
        if self.panels and somebody_watches() and time.monotonic() - self._drawn > PAUSE_SECONDS:
            self._show()

    def __enter__(self) -> LivePlot:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Show the last picture, whether or not the work came to its end."""
        if self.panels:
            self._show()

    def _show(self) -> None:
        if notebook_shell() is None:
            return
        figure = self._draw(self.panels, **self._options)
        self._place = publish(picture(figure), handle=True, update=self._place)
        self._drawn = time.monotonic()


def picture(figure: Figure) -> dict[str, str]:
    """A figure as a MIME bundle, as a notebook shows and saves it."""
    from IPython.core.pylabtools import print_figure

    return {"image/png": print_figure(figure, fmt="png", base64=True), "text/plain": repr(figure)}
