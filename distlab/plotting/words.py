"""Texts in a figure that is measured in pixels: how wide they are, and where there is room for them.

Called by `captions`. Runs in the notebook's process. A figure has 100 pixels an inch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from matplotlib.axes import Axes
from matplotlib.textpath import TextPath

DPI = 100
TEXT, SMALL = 9.5, 8.5  # font sizes in points


@lru_cache(maxsize=4096)
def text_pixels(text: str, size: float) -> float:
    """Width of a text in pixels, at a font size in points.

    Runs on: anywhere.
    """
    if not text.strip():
        return 0.0
    return TextPath((0, 0), text, size=size, prop={"family": "DejaVu Sans"}).get_extents().x1 / 72 * DPI


def line_pixels(size: float) -> float:
    """Height of a line of text in pixels."""
    return size * 1.25 / 72 * DPI


@dataclass
class Words:
    """The texts on axes; each keeps clear of those before it.

    Args:
        ax: whose y is in pixels, downwards. width: of it in pixels; texts do not leave it.
    """

    ax: Axes
    width: float
    taken: list[tuple[float, float, float, float]] = field(default_factory=list)  # left, top, right, bottom

    def keep_clear(self, left: float, y: float, width: float) -> None:
        """No text shall be written there, on a line with its middle at y."""
        half = line_pixels(SMALL) / 2
        self.taken.append((left, y - half, left + width, y + half))

    def write(
        self,
        x: float,
        y: float,
        text: str,
        color: str,
        size: float = SMALL,
        ha: str = "left",
        box: str = "",
    ) -> bool:
        """Write a text at the middle of its height, if there is room; returns whether there was.

        Args:
            x: pixels from the left. y: the same from the top.
            ha: whether x is its "left", "center" or "right". box: colour of a background.
        """
        wide, high = text_pixels(text, size), line_pixels(size)
        left = x - wide * {"left": 0, "center": 0.5, "right": 1}[ha]
        place = (left - 2, y - high / 2, left + wide + 2, y + high / 2)
        bottom, top = self.ax.get_ylim()
        outside = place[0] < 0 or place[2] > self.width or place[1] < top or place[3] > bottom
        if outside or any(_overlap(place, other) for other in self.taken):
            return False
        self.taken.append(place)
        low, high = self.ax.get_xlim()
        look = {"bbox": {"facecolor": box, "edgecolor": "none", "pad": 1.2}} if box else {}
        self.ax.text(
            *(low + left / self.width * (high - low), y, text),
            fontsize=size,
            color=color,
            va="center_baseline",
            zorder=9,
            parse_math=False,
            **look,
        )
        return True


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
