"""Notebooks 04 and 08: the samples that each rank has, and how old gradients were. Runs in the notebook's kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from distlab.plotting.axes import SMALL, new_panels
from distlab.plotting.cells import TEXT, canvas, draw_lane, draw_text, text_width
from distlab.plotting.style import INK, rank_color, style

SIDE, GAP, PAD = 0.62, 0.06, 0.08  # inches: of an image, between two, above and below those of a lane
CAPTION = 0.3  # height of the texts below a lane's images


def images(
    rows: Sequence[Any], captions: Sequence[Sequence[object]], names: Sequence[str] = (), title: str = ""
) -> Figure:
    """Draw rows of images, the n-th row on the lane of rank n, or on a grey lane with a name of its own.

    Args:
        rows: by row, images of one channel, drawn as ink on the page; each is stretched from its own darkest to its
            brightest value.
        captions: by row, a text or number below each image.
        names: of the rows; without them "rank 0", "rank 1" and so on.
        title: what they are.
    """
    lanes = [(name, INK) for name in names] or [(f"rank {n}", rank_color(n)) for n in range(len(rows))]
    start = 0.3 + max(text_width(name, TEXT) for name, _ in lanes)
    height, width = SIDE + CAPTION + 2 * PAD, start + max(map(len, rows)) * (SIDE + GAP)
    figure, ax = canvas(width, len(rows) * (height + PAD) - PAD, title)
    ink = LinearSegmentedColormap.from_list("ink", [f"{INK}00", INK])
    for place, (row, (name, color)) in enumerate(zip(rows, lanes, strict=True)):
        top = place * (height + PAD)
        draw_lane(ax, 0, top, width, height, color, name)
        for column, (image, caption) in enumerate(zip(row, captions[place], strict=True)):
            left = start + column * (SIDE + GAP)
            pixels = np.asarray(image, dtype=float).squeeze()
            pixels = (pixels - pixels.min()) / (np.ptp(pixels) or 1)
            extent = (left, left + SIDE, top + PAD + SIDE, top + PAD)
            with style():
                ax.imshow(pixels, cmap=ink, interpolation="nearest", extent=extent, aspect="auto", zorder=2)
            draw_text(ax, left + SIDE / 2, top + PAD + SIDE + CAPTION / 2, str(caption))
    return figure


def staleness(panels: Mapping[str, Mapping[int, Sequence[int]]], title: str = "") -> Figure:
    """Draw how many gradients had which staleness, in a panel for each run, the trainers' bars one on top of the other.

    Args:
        panels: by name of the run, for each trainer's rank the staleness of its gradients.
        title: what was measured.
    """
    with new_panels(3.75 * len(panels), 3.2, 1, len(panels), title) as (figure, axes):
        for ax, (name, trainers) in zip(axes, panels.items(), strict=True):
            below: Counter[int] = Counter()
            for rank, ages in trainers.items():
                counts = Counter(ages)
                look = {"color": rank_color(rank), "label": f"rank {rank}"}
                ax.bar([*counts], [*counts.values()], bottom=[below[age] for age in counts], **look)
                below += counts
            ax.set_title(name, fontsize=SMALL)
            ax.set_xlabel("staleness")
            for axis, most in ((ax.xaxis, 6), (ax.yaxis, 5)):
                axis.set_major_locator(MaxNLocator(most, integer=True))
            ax.grid(visible=False, axis="x")
        axes[0].set_ylabel("gradients")
        axes[-1].legend(frameon=False, fontsize=SMALL)
    return figure
