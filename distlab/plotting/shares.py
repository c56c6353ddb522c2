"""Where time went, as bars of parts: computing, communicating, waiting.

Called by the notebooks. Runs in the notebook's process. Times in s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from matplotlib.axes import Axes

from distlab.errors import ArgumentError
from distlab.plotting.curves import SMALL, even_ticks, own_axes
from distlab.plotting.style import FAINT, INK, MIXED, blend, rank_color, style, text_color
from distlab.plotting.units import format_seconds

LEAST = 0.09  # of the longest bar: a narrower part has no percentage in it


class Parts(Protocol):
    """Seconds of one bar, as distlab.trace.shares.Shares has them."""

    compute: float
    hidden: float
    communicate: float
    wait: float
    other: float


LOOKS = {
    "compute": ("computes", {"facecolor": rank_color(0)}),
    "hidden": ("computes while data travel", {"facecolor": blend(rank_color(0), "#FFFFFF", 0.45)}),
    "communicate": ("data travel", {"facecolor": rank_color(1)}),
    "wait": ("waits for others", {"facecolor": FAINT, "hatch": "///"}),
    "other": ("other", {"facecolor": MIXED}),
}


def time_shares(bars: Mapping[str, Parts], title: str = "", relative: bool = False, ax: Axes | None = None) -> Axes:
    """Draw where time went, a bar for each name from the top down; its parts add up to its length.

    Runs on: client.

    Args:
        bars: by name, for example "rank 0", seconds in parts: the values of `Trace.shares()`.
        title: what was traced.
        relative: draw each bar as 100 % of its own time, to compare bars of very different lengths.
        ax: axes to draw on; without it, those of a new figure, which a notebook shows when its cell ends.

    Returns:
        The axes.

    Raises:
        ArgumentError: if there is no bar, one has a negative part, or all are empty.
    """
    example = 'Give trace.shares(), by name: {"rank 0": trace.shares()[0]}.'
    lengths = {name: [getattr(parts, part) for part in LOOKS] for name, parts in bars.items()}
    if not bars or min(min(parts) for parts in lengths.values()) < 0:
        raise ArgumentError(f"bars must be at least one bar of parts of 0 s or more, got {bars!r}. {example}")
    longest = max(sum(parts) for parts in lengths.values())
    if longest == 0:
        raise ArgumentError(f"bars must be longer than 0 s, one at least, got {bars!r}. {example}")
    if relative:
        lengths = {name: [100 * part / (sum(parts) or 1) for part in parts] for name, parts in lengths.items()}
        longest = 100.0
    ax = own_axes(6.4, 1.7 + 0.5 * len(bars)) if ax is None else ax
    with style():
        ax.set(
            title=title,
            xlabel="share of the time" if relative else "time",
            xlim=(0, longest * 1.02),
            ylim=(len(bars) - 0.4, -0.6),
        )
        ax.set(yticks=range(len(bars)), yticklabels=bars)
        ax.grid(visible=False, axis="y")
        ax.tick_params(axis="y", length=0)
        even_ticks(ax.xaxis, "{:.0f}%".format if relative else format_seconds)
        for place, parts in enumerate(lengths.values()):
            draw_parts(ax, place, parts, longest)
        seen = [part for i, part in enumerate(LOOKS) if any(parts[i] > 0 for parts in lengths.values())]
        handles = [ax.barh(0, 0, edgecolor=INK, linewidth=0.8, **LOOKS[part][1]) for part in seen]
        words = [LOOKS[part][0] for part in seen]
        ax.figure.legend(handles, words, loc="outside lower center", ncols=3, frameon=False, fontsize=SMALL)
    return ax


def draw_parts(ax: Axes, place: int, parts: list[float], longest: float) -> None:
    """Draw one bar; a part that is wide enough has its percentage in it."""
    left, total = 0.0, sum(parts)
    for (_, look), seconds in zip(LOOKS.values(), parts, strict=True):
        hatched = "hatch" in look
        ax.barh(place, seconds, left=left, height=0.66, edgecolor=INK if hatched else "#FFFFFF", linewidth=0.8, **look)
        if seconds >= LEAST * longest:
            at = {"ha": "center", "va": "center_baseline", "fontsize": SMALL, "color": text_color(look["facecolor"])}
            text = ax.text(left + seconds / 2, place, f"{seconds / total:.0%}", **at)
            if hatched:
                text.set_bbox({"facecolor": FAINT, "edgecolor": "none", "pad": 1.5})
        left += seconds
