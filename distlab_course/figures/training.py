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
        lanes = [(name, INK) for name in names]
    else:
        lanes = [(f"rank {rank}", rank_color(rank)) for rank in range(len(rows))]
    start = 0.3 + max(text_width(name, TEXT_SIZE) for name, _ in lanes)
    width = start + max(map(len, rows)) * (ITEM_SIDE + ITEM_GAP)
    height = ITEM_SIDE + CAPTION_HEIGHT + 2 * LANE_PAD
    figure, ax = new_canvas(width, len(rows) * (height + LANE_PAD) - LANE_PAD, title)
    for place, (row, (name, color)) in enumerate(zip(rows, lanes, strict=True)):
        top = place * (height + LANE_PAD)
        draw_lane(ax, 0, top, width, height, color, name)
        caption_y = top + LANE_PAD + ITEM_SIDE + CAPTION_HEIGHT / 2
        for column, (image, caption) in enumerate(zip(row, captions[place], strict=True)):
            left = start + column * (ITEM_SIDE + ITEM_GAP)
            _draw_image(ax, left, top + LANE_PAD, image)
            draw_text(ax, left + ITEM_SIDE / 2, caption_y, str(caption))
    return figure


def _draw_image(ax: Axes, left: float, top: float, image: Any) -> None:
    """Draw one image of one channel as black ink."""
    with style():
        ax.imshow(
            np.asarray(image).squeeze(),
            cmap=BLACK_INK,
            interpolation="nearest",
            extent=(left, left + ITEM_SIDE, top + ITEM_SIDE, top),
            aspect="auto",
            zorder=2,
        )


def buckets(parts: Sequence[Sequence[tuple[str, int]]], title: str = "") -> Figure:
    """Draw which gradients travel together: a lane a bucket, in the order of backward.

    Args:
        parts: by bucket, the name and the bytes of each gradient.
        title: what is in the buckets.
    """
    buckets_of_texts = []
    for part in parts:
        buckets_of_texts.append([(name, format_bytes(num_bytes)) for name, num_bytes in part])
    start = 0.4 + text_width(f"bucket {len(parts) - 1}", TEXT_SIZE)
    pitch = 0.3 + _width_of_widest(chain.from_iterable(buckets_of_texts))
    end = start + max(map(len, parts)) * pitch
    width = end + 0.3 + text_width("→ all-reduce", TEXT_SIZE)
    figure, ax = new_canvas(width, len(parts) * (ITEM_SIDE + LANE_PAD) - LANE_PAD, title)
    for place, gradients in enumerate(buckets_of_texts):
        top = place * (ITEM_SIDE + LANE_PAD)
        draw_lane(ax, 0, top, width, ITEM_SIDE, INK, f"bucket {place}")
        for column, (name, size) in enumerate(gradients):
            left = start + column * pitch
            _draw_gradient(ax, left, top, pitch - ITEM_GAP, name, size)
        x = start + len(gradients) * pitch + 0.1
        draw_text(ax, x, top + ITEM_SIDE / 2, "→ all-reduce", ha="left")
    return figure


def _width_of_widest(gradients: Iterable[tuple[str, str]]) -> float:
    """The width of the widest name or size."""
    return max(text_width(text, LABEL_SIZE) for text in chain.from_iterable(gradients))


def _draw_gradient(ax: Axes, left: float, top: float, width: float, name: str, size: str) -> None:
    """Draw the box of a gradient in a lane, with its name above its size."""
    draw_box(ax, left, top + LANE_PAD, width, ITEM_SIDE - 2 * LANE_PAD, "", FAINT, LABEL_SIZE)
    x = left + width / 2
    draw_text(ax, x, top + 0.35 * ITEM_SIDE, name, color=BLACK, fontsize=LABEL_SIZE)
    draw_text(ax, x, top + 0.65 * ITEM_SIDE, size, color=BLACK, fontsize=LABEL_SIZE)
