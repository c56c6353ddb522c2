"""Lab 06: samples on the lanes of ranks, and the gradients of a bucket.

The notebooks call it through `distlab_course.figures`, in their kernel. Lengths are in inches.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from distlab.plotting.canvas import draw_box, draw_lane, draw_text, new_canvas, text_width
from distlab.plotting.style import BLACK, FAINT, INK, LABEL_SIZE, TEXT_SIZE, rank_color, style
from distlab.tables import format_bytes

ITEM_SIDE = 0.62  # of an image, or of a lane of gradients
ITEM_GAP = 0.06  # between two items
LANE_PAD = 0.08  # above and below the items of a lane
CAPTION_HEIGHT = 0.3  # of the texts below a lane's images
BLACK_INK = LinearSegmentedColormap.from_list("ink", ["#00000000", "#000000"])


def images(
    rows: Sequence[Any], captions: Sequence[Any], names: Sequence[str] = (), title: str = ""
) -> Figure:
    """Draw rows of images, each on the lane of its rank, or on a grey lane with a name of its own.

    Args:
        rows: by row, images of one channel, drawn as black ink; each is stretched from its own
            darkest to its brightest value.
        captions: by row, a text or number below each image.
        names: of the rows; without them "rank 0", "rank 1" and so on.
        title: what they are.
    """
    if names:
        colors = [INK] * len(rows)
    else:
        names = [f"rank {rank}" for rank in range(len(rows))]
        colors = [rank_color(rank) for rank in range(len(rows))]
    start = 0.3 + _width_of_widest(names, TEXT_SIZE)
    longest = max(len(row) for row in rows)
    width = start + longest * (ITEM_SIDE + ITEM_GAP)
    height = ITEM_SIDE + CAPTION_HEIGHT + 2 * LANE_PAD
    pitch = height + LANE_PAD
    figure, ax = new_canvas(width, len(rows) * pitch - LANE_PAD, title)
    for place, (row, name, color) in enumerate(zip(rows, names, colors, strict=True)):
        top = place * pitch
        draw_lane(ax, 0, top, width, height, color, name)
        for column, (image, caption) in enumerate(zip(row, captions[place], strict=True)):
            left = start + column * (ITEM_SIDE + ITEM_GAP)
            _draw_image(ax, left, top + LANE_PAD, image, str(caption))
    return figure


def _draw_image(ax: Axes, left: float, top: float, image: Any, caption: str) -> None:
    """Draw one image of one channel as black ink, with its caption below it."""
    bottom = top + ITEM_SIDE
    with style():
        ax.imshow(
            np.asarray(image).squeeze(),
            cmap=BLACK_INK,
            interpolation="nearest",
            extent=(left, left + ITEM_SIDE, bottom, top),
            aspect="auto",
            zorder=2,
        )
    draw_text(ax, left + ITEM_SIDE / 2, bottom + CAPTION_HEIGHT / 2, caption)


def buckets(parts: Sequence[Sequence[tuple[str, int]]], title: str = "") -> Figure:
    """Draw which gradients travel together: a lane a bucket, in the order of backward.

    Args:
        parts: by bucket, the name and the bytes of each gradient.
        title: what is in the buckets.
    """
    texts: list[list[tuple[str, str]]] = []
    for part in parts:
        texts.append([(name, format_bytes(num_bytes)) for name, num_bytes in part])
    names_and_sizes = chain.from_iterable(chain.from_iterable(texts))
    pitch = 0.3 + _width_of_widest(names_and_sizes, LABEL_SIZE)
    start = 0.4 + text_width(f"bucket {len(parts) - 1}", TEXT_SIZE)
    longest = max(len(part) for part in parts)
    width = start + longest * pitch + 0.3 + text_width("→ all-reduce", TEXT_SIZE)
    lane_pitch = ITEM_SIDE + LANE_PAD
    figure, ax = new_canvas(width, len(parts) * lane_pitch - LANE_PAD, title)
    for place, gradients in enumerate(texts):
        top = place * lane_pitch
        draw_lane(ax, 0, top, width, ITEM_SIDE, INK, f"bucket {place}")
        for column, (name, size) in enumerate(gradients):
            left = start + column * pitch
            _draw_gradient(ax, left, top, pitch - ITEM_GAP, name, size)
        x = start + len(gradients) * pitch + 0.1
        draw_text(ax, x, top + ITEM_SIDE / 2, "→ all-reduce", ha="left")
    return figure


def _width_of_widest(texts: Iterable[str], size: float) -> float:
    """The width of the widest text, in a font of this size in points."""
    return max(text_width(text, size) for text in texts)


def _draw_gradient(ax: Axes, left: float, top: float, width: float, name: str, size: str) -> None:
    """Draw the box of a gradient in a lane, with its name above its size."""
    draw_box(ax, left, top + LANE_PAD, width, ITEM_SIDE - 2 * LANE_PAD, "", FAINT, LABEL_SIZE)
    x = left + width / 2
    draw_text(ax, x, top + 0.35 * ITEM_SIDE, name, color=BLACK, fontsize=LABEL_SIZE)
    draw_text(ax, x, top + 0.65 * ITEM_SIDE, size, color=BLACK, fontsize=LABEL_SIZE)
