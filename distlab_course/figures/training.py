"""Labs 06 and 07: samples on the lanes of ranks, gradients of buckets, and images a second.

The notebooks call it through `distlab_course.figures`, in their kernel. Lengths are in inches.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from distlab.plotting.axes import even_ticks, label_ends, new_axes
from distlab.plotting.canvas import draw_box, draw_lane, draw_text, new_canvas, text_width
from distlab.plotting.curves import badge, draw_curves
from distlab.plotting.describing import counted, describe, of_curves
from distlab.plotting.style import BLACK, FAINT, INK, LABEL_SIZE, TEXT_SIZE, rank_color, style
from distlab.tables import count, format_bytes

ITEM_SIDE = 0.62  # of an image, or of a lane of gradients
ITEM_GAP = 0.06  # between two items
LANE_PAD = 0.08  # above and below the items of a lane
INCHES_A_DOUBLING = 0.1  # of the box of a gradient
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
    parts = []
    for name, row, below in zip(names, rows, captions, strict=True):
        words = ", ".join(str(caption) for caption in below if str(caption))
        parts.append(f"{name}, {count(len(row), 'image')}{': ' if words else ''}{words}")
    describe(figure, title or "images", parts)
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

    Each doubling of the bytes makes a box wider by the same length.

    Args:
        parts: by bucket, the name and the bytes of each gradient.
        title: what is in the buckets.
    """
    texts: list[list[tuple[str, str]]] = []
    for part in parts:
        texts.append([(name, format_bytes(num_bytes)) for name, num_bytes in part])
    names_and_sizes = chain.from_iterable(chain.from_iterable(texts))
    narrowest = 0.3 + _width_of_widest(names_and_sizes, LABEL_SIZE)
    fewest = min(num_bytes for _, num_bytes in chain.from_iterable(parts))
    widths: list[list[float]] = []
    for part in parts:
        widths.append([narrowest + _doublings(fewest, num_bytes) for _, num_bytes in part])
    start = 0.4 + text_width(f"bucket {len(parts) - 1}", TEXT_SIZE)
    longest = max(sum(row) for row in widths)
    width = start + longest + 0.3 + text_width("→ all-reduce", TEXT_SIZE)
    lane_pitch = ITEM_SIDE + LANE_PAD
    figure, ax = new_canvas(width, len(parts) * lane_pitch - LANE_PAD, title)
    for place, gradients in enumerate(texts):
        top = place * lane_pitch
        draw_lane(ax, 0, top, width, ITEM_SIDE, INK, f"bucket {place}")
        left = start
        for (name, size), box in zip(gradients, widths[place], strict=True):
            _draw_gradient(ax, left, top, box - ITEM_GAP, name, size)
            left += box
        draw_text(ax, left + 0.1, top + ITEM_SIDE / 2, "→ all-reduce", ha="left")
    parts_in_words = []
    for place, gradients in enumerate(texts):
        words = ", ".join(f"{name} of {size}" for name, size in gradients)
        parts_in_words.append(f"bucket {place} all-reduces {words}")
    describe(figure, title or "buckets", parts_in_words)
    return figure


def _doublings(fewest: int, num_bytes: int) -> float:
    """How much wider a box is than that of the fewest bytes: the same for each doubling."""
    return INCHES_A_DOUBLING * math.log2(num_bytes / fewest)


def _width_of_widest(texts: Iterable[str], size: float) -> float:
    """The width of the widest text, in a font of this size in points."""
    return max(text_width(text, size) for text in texts)


def _draw_gradient(ax: Axes, left: float, top: float, width: float, name: str, size: str) -> None:
    """Draw the box of a gradient in a lane, with its name above its size."""
    draw_box(ax, left, top + LANE_PAD, width, ITEM_SIDE - 2 * LANE_PAD, "", FAINT, LABEL_SIZE)
    x = left + width / 2
    draw_text(ax, x, top + 0.35 * ITEM_SIDE, name, color=BLACK, fontsize=LABEL_SIZE)
    draw_text(ax, x, top + 0.65 * ITEM_SIDE, size, color=BLACK, fontsize=LABEL_SIZE)


def throughput(
    ranks: Sequence[int], rates: Mapping[str, Sequence[float]], title: str, where: str = ""
) -> Axes:
    """Draw images a second against the number of ranks, below as many times the rate of one rank.

    The label of a curve ends with its speedup on the most ranks. Both axes are linear, so that the
    ideal is a straight line.

    Args:
        ranks: rising, from 1.
        rates: by name, images a second on each number of ranks.
        title: what was trained.
        where: on which machines, for what was not measured.
    """
    most = ranks[-1]
    curves = {}
    for name, values in rates.items():
        label = f"{name}: {values[-1] / values[0]:.0f} times"
        curves[label] = (ranks, values, values, values)
        alone = values[0]
    ideal = [alone * count for count in ranks]
    with new_axes(6.2, 4, title=title, xlabel="ranks", ylabel="images a second") as ax:
        ends = draw_curves(ax, curves, {f"ideal: {most} times": (ranks, ideal)})
        ax.set(xlim=(0, most * 1.02), ylim=(0, 1.05 * ideal[-1]))
        ax.set_xticks([count for count in ranks if count == 1 or count * 8 >= most])
        even_ticks(ax.yaxis, "")
        ax.yaxis.set_major_formatter("{x:,.0f}")
        label_ends(ax, ends)
        parts = of_curves(curves, counted("ranks"), lambda rate: f"{rate:,.0f}")
        describe(ax, f"{title}, images a second", [*parts, f"ideal: {most} times"])
    badge(ax, where)
    return ax
