"""Labs 04 to 20: what a message costs, times and rates by the number of ranks, samples, buckets of
gradients.

Runs in the notebook's kernel. Sizes are in bytes, times in seconds, rates in samples a second;
lengths in inches.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from distlab.plotting.axes import (
    SMALL,
    End,
    Line,
    even_ticks,
    label_ends,
    log_ticks,
    new_axes,
    new_panels,
    short,
)
from distlab.plotting.cells import TEXT, canvas, draw_box, draw_lane, draw_text, text_width
from distlab.plotting.curves import Curve, draw_curves
from distlab.plotting.style import FAINT, HAZE, INK, curve_color, rank_color, style
from distlab.tables import count, format_bytes

Floats = Sequence[float]
# times as many ranks at the right as at the left; beyond that the axis is logarithmic
MOST_EVEN = 16


def latency_bandwidth(
    num_bytes: Floats, seconds: Floats, low: Floats, high: Floats, fit: Any, title: str = ""
) -> Figure:
    """Draw time and bandwidth against message size, one above the other.

    Args:
        num_bytes: sizes of the messages.
        seconds: median time of each.
        low: its lowest (or a low percentile).
        high: its highest (or a high percentile).
        fit: the line alpha + beta m: an object with `alpha` in s and `beta` in s/byte, above 0.
        title: what was measured.
    """
    # the highest time is the lowest bandwidth
    rates = (num_bytes, *(np.divide(num_bytes, part) for part in (seconds, high, low)))
    sizes, color = np.geomspace(min(num_bytes), max(num_bytes), 60), curve_color(5)
    times = fit.alpha + fit.beta * sizes
    with new_panels(5, 5.6, 2, 1, sharex=True) as (figure, (upper, lower)):
        upper.set(title=title, ylabel="time t", xscale="log", yscale="log")
        upper.set_xlim(min(num_bytes) / 1.6, max(num_bytes) * 1.6)
        lower.set(xlabel="message size m", ylabel="bandwidth m/t", yscale="log")
        lower.margins(y=0.12)
        for ax, curve, line in (
            (upper, (num_bytes, seconds, low, high), times),
            (lower, rates, sizes / times),
        ):
            draw_curves(ax, {"fit": curve}, {"fit": (sizes, line)})
            ax.lines[-1].set_color(color)
        label = f"fit: α + βm\nα = {short(fit.alpha, 's')}"
        # times rise with the size, so the left upper corner is free
        behind = {"facecolor": "#FFFFFF", "edgecolor": "none", "alpha": 0.85, "pad": 1}
        upper.text(
            0.03,
            0.97,
            label,
            transform=upper.transAxes,
            color=color,
            va="top",
            fontsize=SMALL,
            bbox=behind,
        )
        lower.axhline(1 / fit.beta, color=color, linewidth=1, linestyle=":")
        knee = fit.alpha / fit.beta
        if min(num_bytes) < knee < max(num_bytes):
            for ax in (upper, lower):
                ax.axvline(knee, color=color, linewidth=1, linestyle=":")
            # rates rise with the size, so the right lower corner is free
            place = {"transform": lower.get_xaxis_transform(), "fontsize": SMALL}
            side = "right" if knee**2 > min(num_bytes) * max(num_bytes) else "left"
            lower.text(knee, 0.04, f" α/β = {short(knee, 'B')} ", color=color, ha=side, **place)
        place = {"transform": lower.get_yaxis_transform(), "va": "bottom", "fontsize": SMALL}
        lower.text(
            0.02, 1.1 / fit.beta, f"1/β = {short(1 / fit.beta, 'B/s')}", color=color, **place
        )
        for axis, unit in ((upper.yaxis, "s"), (lower.yaxis, "B/s"), (lower.xaxis, "B")):
            log_ticks(axis, unit)
    return figure


def time_against_ranks(curves: Mapping[str, Curve], title: str, theory: Mapping[str, Line]) -> Axes:
    """Draw times against the number of ranks, with a label at the end of each curve.

    Args:
        curves: by name, numbers of ranks and the median, low and high time of each.
        title: what was measured.
        theory: by name, numbers of ranks and times, drawn as a thin dashed line. One with the name
            of a curve has its colour, and may go on beyond it.
    """
    with new_axes(5.6, 4, title=title, ylabel="time of one call") as ax:
        ends = draw_against_ranks(ax, curves, theory)
        even_ticks(ax.yaxis, "s")
        label_ends(ax, ends)
    return ax


def speedup(curves: Mapping[str, Curve], title: str = "", cores: int | None = None) -> Axes:
    """Draw how many times the samples of one rank several ranks take in a second, beside the ideal.

    The label of a curve ends with its efficiency at the most ranks: the speed-up divided by the
    number of ranks.

    Args:
        curves: by name, numbers of ranks from 1 up and the median, low and high of the rate.
        title: what was measured.
        cores: of the machine; where there are more ranks than cores is shaded.
    """
    relative = {}
    for name, (ranks, *rates) in curves.items():
        rates = [np.divide(part, curves[name][1][0]) for part in rates]
        relative[f"{name}, {100 * rates[0][-1] / ranks[-1]:.0f}%"] = (ranks, *rates)
    counts = sorted({n for curve in curves.values() for n in curve[0]})
    with new_axes(5.6, 4, title=title, ylabel="speed-up") as ax:
        ends = draw_against_ranks(ax, relative, {"ideal": (counts, counts)})
        left, right = ax.get_xlim()
        if cores is not None and counts[-1] > cores:
            ax.axvspan(max(left, cores + 0.5), right, color=INK, alpha=HAZE, zorder=0, linewidth=0)
            note = f"more ranks than the {count(cores, 'core')}"
            ax.text(
                0.98,
                0.97,
                note,
                transform=ax.transAxes,
                ha="right",
                va="top",
                color=INK,
                fontsize=SMALL,
            )
        label_ends(ax, ends)
    return ax


def draw_against_ranks(
    ax: Axes, curves: Mapping[str, Curve], theory: Mapping[str, Line]
) -> list[End]:
    """Draw curves and theory against the number of ranks, from 0 up, with space at the top; returns
    their ends.
    """
    lines = [*curves.values(), *theory.values()]
    ranks = sorted({n for line in lines for n in line[0]})
    ends = draw_curves(ax, curves, theory)
    left, right = ranks[0] - 0.3, ranks[-1] + 0.3
    if ranks[-1] > MOST_EVEN * ranks[0]:
        left, right = ranks[0] / 1.1, ranks[-1] * 1.1
        ax.set_xscale("log", base=2)
        # the labels of others would touch each other
        ranks = [n for n in ranks if n & (n - 1) == 0]
    highest = max(max(line[-1]) for line in lines)
    ax.set(
        xlabel="ranks",
        xlim=(left, right),
        ylim=(0, 1.2 * highest),
        xticks=ranks,
        xticklabels=map(str, ranks),
    )
    return ends


# inches: of an image, between two, above and below those of a lane
SIDE, GAP, PAD = 0.62, 0.06, 0.08
CAPTION = 0.3  # height of the texts below a lane's images


def images(
    rows: Sequence[Any], captions: Sequence[Any], names: Sequence[str] = (), title: str = ""
) -> Figure:
    """Draw rows of images, the n-th row on the lane of rank n, or on a grey lane with a name of its
    own.

    Args:
        rows: by row, images of one channel, drawn as black ink; each is stretched from its own
            darkest to its brightest value.
        captions: by row, a text or number below each image.
        names: of the rows; without them "rank 0", "rank 1" and so on.
        title: what they are.
    """
    lanes = [(name, INK) for name in names] or [
        (f"rank {n}", rank_color(n)) for n in range(len(rows))
    ]
    start = 0.3 + max(text_width(name, TEXT) for name, _ in lanes)
    height, width = SIDE + CAPTION + 2 * PAD, start + max(map(len, rows)) * (SIDE + GAP)
    figure, ax = canvas(width, len(rows) * (height + PAD) - PAD, title)
    ink = LinearSegmentedColormap.from_list("ink", ["#00000000", "#000000"])
    for place, (row, (name, color)) in enumerate(zip(rows, lanes, strict=True)):
        top = place * (height + PAD)
        draw_lane(ax, 0, top, width, height, color, name)
        for column, (image, caption) in enumerate(zip(row, captions[place], strict=True)):
            left = start + column * (SIDE + GAP)
            pixels = np.asarray(image).squeeze()
            extent = (left, left + SIDE, top + PAD + SIDE, top + PAD)
            with style():
                ax.imshow(
                    pixels,
                    cmap=ink,
                    interpolation="nearest",
                    extent=extent,
                    aspect="auto",
                    zorder=2,
                )
            draw_text(ax, left + SIDE / 2, top + PAD + SIDE + CAPTION / 2, str(caption))
    return figure


def buckets(parts: Sequence[Sequence[tuple[str, int]]], title: str = "") -> Figure:
    """Draw which gradients travel together, a lane for each bucket, in the order in which backward
    brings them.

    Args:
        parts: by bucket, the name and the bytes of each gradient.
        title: what is in the buckets.
    """
    texts = [[(name, format_bytes(num_bytes)) for name, num_bytes in part] for part in parts]
    start = 0.4 + text_width(f"bucket {len(parts) - 1}", TEXT)
    wide = 0.3 + max(text_width(text, SMALL) for part in texts for pair in part for text in pair)
    end = start + max(map(len, parts)) * wide
    width = end + 0.3 + text_width("→ all-reduce", TEXT)
    figure, ax = canvas(width, len(parts) * (SIDE + PAD) - PAD, title)
    for place, part in enumerate(texts):
        top = place * (SIDE + PAD)
        draw_lane(ax, 0, top, width, SIDE, INK, f"bucket {place}")
        for column, (name, size) in enumerate(part):
            left = start + column * wide
            draw_box(ax, left, top + PAD, wide - GAP, SIDE - 2 * PAD, "", FAINT, SMALL)
            for line, text in ((0.35, name), (0.65, size)):
                draw_text(
                    ax,
                    left + (wide - GAP) / 2,
                    top + line * SIDE,
                    text,
                    color="#000000",
                    fontsize=SMALL,
                )
        draw_text(ax, start + len(part) * wide + 0.1, top + SIDE / 2, "→ all-reduce", ha="left")
    return figure
