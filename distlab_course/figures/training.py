"""Lab 06: samples on the lanes of ranks, and the gradients of a bucket.

The notebooks call it through `distlab_course.figures`, in their kernel. Lengths are in inches.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from distlab.plotting.canvas import draw_box, draw_lane, draw_text, new_canvas, text_width
from distlab.plotting.style import FAINT, INK, LABEL_SIZE, TEXT_SIZE, rank_color, style
from distlab.tables import format_bytes

# inches: of an image, between two, above and below those of a lane
SIDE = 0.62
GAP = 0.06
PAD = 0.08
CAPTION = 0.3  # height of the texts below a lane's images


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
    lanes = [(name, INK) for name in names]
    if not lanes:
        lanes = [(f"rank {rank}", rank_color(rank)) for rank in range(len(rows))]
    start = 0.3 + max(text_width(name, TEXT_SIZE) for name, _ in lanes)
    width = start + max(map(len, rows)) * (SIDE + GAP)
    height = SIDE + CAPTION + 2 * PAD
    figure, ax = new_canvas(width, len(rows) * (height + PAD) - PAD, title)
    for place, (row, (name, color)) in enumerate(zip(rows, lanes, strict=True)):
        top = place * (height + PAD)
        draw_lane(ax, 0, top, width, height, color, name)
        for column, (image, caption) in enumerate(zip(row, captions[place], strict=True)):
            left = start + column * (SIDE + GAP)
            _draw_image(ax, left, top + PAD, image)
            draw_text(ax, left + SIDE / 2, top + PAD + SIDE + CAPTION / 2, str(caption))
    return figure


BLACK_INK = LinearSegmentedColormap.from_list("ink", ["#00000000", "#000000"])


def _draw_image(ax: Axes, left: float, top: float, image: Any) -> None:
    """Draw one image of one channel as black ink."""
    with style():
        ax.imshow(
            np.asarray(image).squeeze(),
            cmap=BLACK_INK,
            interpolation="nearest",
            extent=(left, left + SIDE, top + SIDE, top),
            aspect="auto",
            zorder=2,
        )


def buckets(parts: Sequence[Sequence[tuple[str, int]]], title: str = "") -> Figure:
    """Draw which gradients travel together: a lane a bucket, in the order of backward.

    Args:
        parts: by bucket, the name and the bytes of each gradient.
        title: what is in the buckets.
    """
    texts = [[(name, format_bytes(num_bytes)) for name, num_bytes in part] for part in parts]
    start = 0.4 + text_width(f"bucket {len(parts) - 1}", TEXT_SIZE)
    wide = 0.3 + _width_of_widest(texts)
    end = start + max(map(len, parts)) * wide
    width = end + 0.3 + text_width("→ all-reduce", TEXT_SIZE)
    figure, ax = new_canvas(width, len(parts) * (SIDE + PAD) - PAD, title)
    for place, part in enumerate(texts):
        top = place * (SIDE + PAD)
        draw_lane(ax, 0, top, width, SIDE, INK, f"bucket {place}")
        for column, (name, size) in enumerate(part):
            left = start + column * wide
            draw_box(ax, left, top + PAD, wide - GAP, SIDE - 2 * PAD, "", FAINT, LABEL_SIZE)
            x = left + (wide - GAP) / 2
            draw_text(ax, x, top + 0.35 * SIDE, name, color="#000000", fontsize=LABEL_SIZE)
            draw_text(ax, x, top + 0.65 * SIDE, size, color="#000000", fontsize=LABEL_SIZE)
        draw_text(ax, start + len(part) * wide + 0.1, top + SIDE / 2, "→ all-reduce", ha="left")
    return figure


def _width_of_widest(parts: Sequence[Sequence[tuple[str, str]]]) -> float:
    """The width of the widest name or size."""
    widths = []
    for part in parts:
        for name, size in part:
            widths += [text_width(name, LABEL_SIZE), text_width(size, LABEL_SIZE)]
    return max(widths)
