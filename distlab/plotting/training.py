"""The figures of a training: the samples that each rank has, what a loss and an accuracy did, and that as it grows.

Called by the notebooks. Runs in the notebook's process. Of images, lengths are in inches.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from IPython.core.pylabtools import print_figure
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from distlab.compat.frontend import notebook_shell, publish, somebody_watches
from distlab.plotting.axes import End, Line, label_ends
from distlab.plotting.cells import TEXT, canvas, draw_lane, draw_text, text_width
from distlab.plotting.style import INK, curve_color, new_figure, rank_color, style
from distlab.text import refuse

EXAMPLE = 'Give {"loss": {"rank 0": ([1, 2], [2.3, 1.9])}}.'
MOST_MARKERS = 40  # with more points a line has none
PAUSE_SECONDS = 0.5  # between two pictures: a picture takes a tenth of a second, and the ranks want the cores
SIDE, GAP, PAD = 0.62, 0.06, 0.08  # of an image; between two images; above and below a lane's images, and between lanes
CAPTION = 0.3  # height of the texts below a lane's images


def training_curves(panels: Mapping[str, Mapping[str, Line]], title: str = "", xlabel: str = "epoch") -> Figure:
    """Draw what changed during training, a panel for each quantity, with a label at the end of each line.

    The n-th line of a panel has the colour of rank n.

    Runs on: client.

    Args:
        panels: by quantity, for example "loss", by name of the line, its x and y. A quantity whose name ends in "%" is
            drawn from at most 0 to at least 100, another one from at most 0.
        title: what was trained.
        xlabel: what x counts.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell. `plotting.LivePlot` shows it as it grows.

    Raises:
        ArgumentError: if there is no panel, or x and y of a line differ in length.
    """
    if not panels:
        refuse("panels", "at least one panel", panels, EXAMPLE)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(4.8 if columns == 1 else 7.5, 3.4 * rows, layout="constrained")
    with style():
        figure.suptitle(title, x=0.02, ha="left", fontsize=13)
        axes = [figure.add_subplot(rows, columns, place + 1, xlabel=xlabel) for place in range(len(panels))]
        ends = [draw_lines(ax, quantity, lines) for ax, (quantity, lines) in zip(axes, panels.items(), strict=True)]
        for ax, labels in zip(axes, ends, strict=True):
            label_ends(ax, labels)
    return figure


def draw_lines(ax: Axes, quantity: str, lines: Mapping[str, Line]) -> list[End]:
    """Draw the lines of a panel that have points, and choose where its axes begin and end; returns the lines' ends."""
    ends = []
    for place, (name, (x, y)) in enumerate(lines.items()):
        if len(x) != len(y):
            refuse(f"panels[{quantity!r}][{name!r}]", "as many x as y", (x, y), EXAMPLE)
        if len(x):
            look = {"marker": "o", "markersize": 4} if len(x) <= MOST_MARKERS else {}
            ax.plot(x, y, color=curve_color(place), linewidth=1.6, **look)
            ends.append((x[-1], y[-1], name, curve_color(place)))
    low, high = ax.get_ylim()
    ax.set(ylabel=quantity, ylim=(min(0, low), max(105, high) if quantity.endswith("%") else high))
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return ends


class LivePlot:
    """Lines in panels that are drawn again as points are added.

        with plotting.LivePlot("training") as picture:
            for epoch in range(10):
                picture.add("loss", "rank 0", epoch, 0.5)
                picture.update()

    Runs on: client.

    Args:
        title: what is measured. xlabel: what x counts.

    Attributes:
        panels: the points so far, as plotting.training_curves takes them: {panel: {line: (x, y)}}.
    """

    def __init__(self, title: str = "", xlabel: str = "epoch"):
        self.panels: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
        self._title, self._xlabel = title, xlabel
        self._place: Any = None
        self._drawn = float("-inf")

    def add(self, panel: str, line: str, x: float, y: float) -> None:
        """Add a point to a line of a panel; panels and lines appear with their first point."""
        xs, ys = self.panels.setdefault(panel, {}).setdefault(line, ([], []))
        xs.append(x)
        ys.append(y)

    def update(self) -> None:
        """Show what there is, if somebody watches and the last picture is old enough; call it as often as you like."""
        if somebody_watches() and time.monotonic() - self._drawn > PAUSE_SECONDS:
            self._show()

    def __enter__(self) -> LivePlot:
        return self

    def __exit__(self, *_: object) -> None:
        """Show the last picture, whether or not the work came to its end."""
        self._show()

    def _show(self) -> None:
        if notebook_shell() is None or not self.panels:
            return
        figure = training_curves(self.panels, self._title, self._xlabel)
        bundle = {"image/png": print_figure(figure, fmt="png", base64=True), "text/plain": repr(figure)}
        self._place = publish(bundle, handle=True, update=self._place)
        self._drawn = time.monotonic()


def images(
    rows: Sequence[Any], captions: Sequence[Sequence[object]], names: Sequence[str] = (), title: str = ""
) -> Figure:
    """Draw rows of images, the n-th row on the lane of rank n, or on a grey lane with a name of its own.

    Runs on: client.

    Args:
        rows: by row, images of [channels, height, width] or [height, width]; one channel is drawn as ink on the page,
            three as red, green and blue. Each image is stretched from its own darkest to its brightest value.
        captions: by row, a text or number below each image.
        names: of the rows; without them "rank 0", "rank 1" and so on.
        title: what they are.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell.

    Raises:
        ArgumentError: if there is no image, or captions are not as many as images.
    """
    counts = [len(row) for row in rows]
    if not any(counts):
        refuse("rows", "at least one row of images", counts, "Give [x[:8]].")
    if [len(texts) for texts in captions] != counts:
        refuse("captions", f"one for each image, {counts!r} in the rows", captions)
    lanes = [(name, INK) for name in names] or [(f"rank {n}", rank_color(n)) for n in range(len(counts))]
    start = 0.3 + max(text_width(name, TEXT) for name, _ in lanes)
    height = SIDE + CAPTION + 2 * PAD
    width = start + max(counts) * (SIDE + GAP)
    figure, ax = canvas(width, len(counts) * (height + PAD) - PAD, title)
    for place, (row, (name, color)) in enumerate(zip(rows, lanes, strict=True)):
        top = place * (height + PAD)
        draw_lane(ax, 0, top, width, height, color, name)
        for column, (image, caption) in enumerate(zip(row, captions[place], strict=True)):
            left = start + column * (SIDE + GAP)
            draw_image(ax, left, top + PAD, image)
            draw_text(ax, left + SIDE / 2, top + PAD + SIDE + CAPTION / 2, str(caption))
    return figure


def draw_image(ax: Axes, left: float, top: float, image: Any) -> None:
    """Draw an image with its left upper corner there."""
    pixels = np.asarray(image, dtype=float)
    pixels = pixels.transpose(1, 2, 0).squeeze() if pixels.ndim == 3 else pixels
    pixels = (pixels - pixels.min()) / (np.ptp(pixels) or 1)
    ink = LinearSegmentedColormap.from_list("ink", [f"{INK}00", INK])
    place = {"extent": (left, left + SIDE, top + SIDE, top), "aspect": "auto", "zorder": 2}
    with style():
        ax.imshow(pixels, cmap=ink, interpolation="nearest", **place)
