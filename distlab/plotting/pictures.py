"""Small images on the lanes of the ranks: which samples a rank has, or what it took them for.

Called by the notebooks. Runs in the notebook's process, on tensors or arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from distlab.errors import ArgumentError
from distlab.plotting.cells import TEXT, TITLE, UNIT, draw_text, text_width
from distlab.plotting.style import HAZE, INK, new_figure, rank_color, style

SIDE = 0.62  # inches of an image
GAP = 0.06  # inches between two images
CAPTION = 0.3  # inches of the texts below a lane's images


def images(
    rows: Sequence[Any], captions: Sequence[Sequence[object]] | None = None, names: Sequence[str] = (), title: str = ""
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
    if not counts or max(counts) == 0:
        raise ArgumentError(f"rows must be at least one row of images, got {len(counts)} empty ones. Give [x[:8]].")
    if captions is not None and [len(texts) for texts in captions] != counts:
        got = [len(texts) for texts in captions]
        raise ArgumentError(f"captions must be one for each image, {counts!r} in the rows, got {got!r}.")
    lanes = [(name, INK) for name in names] or [(f"rank {n}", rank_color(n)) for n in range(len(counts))]
    start = 0.4 + UNIT * max(text_width(name, TEXT) for name, _ in lanes)
    lane = SIDE + (CAPTION if captions is not None else 0) + 0.16
    head = 0.45 if title else 0.1
    width = start + max(max(counts) * (SIDE + GAP) + 0.1, UNIT * text_width(title, TITLE) - start + 0.2)
    height = head + len(counts) * (lane + 0.08) + 0.04
    figure = new_figure(width, height)
    with style():
        canvas = figure.add_axes((0, 0, 1, 1))
        canvas.set(xlim=(0, width), ylim=(height, 0))
        canvas.set_axis_off()
        draw_text(canvas, 0.1, 0.22, title, ha="left", fontsize=TITLE)
        for place, row in enumerate(rows):
            top = head + place * (lane + 0.08)
            draw_lane(canvas, top, lane, width, *lanes[place])
            for column, image in enumerate(row):
                left = start + column * (SIDE + GAP)
                draw_image(figure, (width, height), left, top + 0.08, image)
                if captions is not None:
                    draw_text(canvas, left + SIDE / 2, top + 0.08 + SIDE + CAPTION / 2, str(captions[place][column]))
    return figure


def draw_lane(ax: Any, top: float, height: float, width: float, name: str, color: str) -> None:
    """Draw a band in a colour, with its name at the left; lengths in inches."""
    ax.add_patch(Rectangle((0.05, top), width - 0.1, height, facecolor=color, alpha=HAZE, edgecolor="none"))
    ax.add_patch(Rectangle((0.05, top), 0.065, height, facecolor=color, edgecolor="none"))
    draw_text(ax, 0.2, top + height / 2, name, ha="left", va="center_baseline")


def draw_image(figure: Figure, size: tuple[float, float], left: float, top: float, image: Any) -> None:
    """Draw an image on a figure of that size in inches."""
    import numpy as np

    pixels = np.asarray(image, dtype=float)
    pixels = pixels.transpose(1, 2, 0).squeeze() if pixels.ndim == 3 else pixels
    low, high = pixels.min(), pixels.max()
    pixels = (pixels - low) / (high - low) if high > low else pixels * 0
    width, height = size
    ax = figure.add_axes((left / width, 1 - (top + SIDE) / height, SIDE / width, SIDE / height))
    ink = LinearSegmentedColormap.from_list("ink", [f"{INK}00", INK])
    ax.imshow(pixels, cmap=ink, interpolation="nearest", aspect="auto")
    ax.set_axis_off()
