"""Labs 04 to 20: costs of messages, times and rates by number of ranks, samples, gradient buckets.

The notebooks call it through `distlab_course.figures`, in their kernel. Sizes are in bytes,
times in seconds, rates in samples a second, lengths in inches.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

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
from distlab.plotting.canvas import TEXT, canvas, draw_box, draw_lane, draw_text, text_width
from distlab.plotting.curves import Curve, draw_curves
from distlab.plotting.style import FAINT, HAZE, INK, curve_color, rank_color, style
from distlab.tables import count, format_bytes

Floats = Sequence[float]
# times as many ranks at the right as at the left; beyond that the axis is logarithmic
MOST_EVEN = 16
FIT_COLOR = curve_color(5)


class Fit(Protocol):
    """The cost of a message of m bytes, alpha + beta m: in seconds, and in seconds a byte."""

    @property
    def alpha(self) -> float: ...

    @property
    def beta(self) -> float: ...


def latency_bandwidth(
    num_bytes: Floats, seconds: Floats, low: Floats, high: Floats, fit: Fit, title: str = ""
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
    with new_panels(5, 5.6, 2, 1, sharex=True) as (figure, (upper, lower)):
        upper.set(title=title, ylabel="time t", xscale="log", yscale="log")
        upper.set_xlim(min(num_bytes) / 1.6, max(num_bytes) * 1.6)
        lower.set(xlabel="message size m", ylabel="bandwidth m/t", yscale="log")
        lower.margins(y=0.12)

        sizes = np.geomspace(min(num_bytes), max(num_bytes), 60)
        times = fit.alpha + fit.beta * sizes
        _draw_measured_and_fit(upper, (num_bytes, seconds, low, high), (sizes, times))
        # the highest time is the lowest bandwidth
        rates = [np.divide(num_bytes, times_of) for times_of in (seconds, high, low)]
        _draw_measured_and_fit(lower, (num_bytes, *rates), (sizes, sizes / times))

        _write_alpha(upper, fit.alpha)
        lower.axhline(1 / fit.beta, color=FIT_COLOR, linewidth=1, linestyle=":")
        _draw_knee(upper, lower, fit.alpha / fit.beta, num_bytes)
        _write_beta(lower, fit.beta)
        log_ticks(upper.yaxis, "s")
        log_ticks(lower.yaxis, "B/s")
        log_ticks(lower.xaxis, "B")
    return figure


def _draw_measured_and_fit(ax: Axes, curve: Any, line: Any) -> None:
    """Draw a measured curve and the line that was fitted to it."""
    draw_curves(ax, {"fit": curve}, {"fit": line})
    ax.lines[-1].set_color(FIT_COLOR)


def _write_alpha(ax: Axes, alpha: float) -> None:
    """Write the latency of the fit into the left upper corner, which is free: times rise."""
    ax.text(
        0.03,
        0.97,
        f"fit: α + βm\nα = {short(alpha, 's')}",
        transform=ax.transAxes,
        color=FIT_COLOR,
        va="top",
        fontsize=SMALL,
        bbox={"facecolor": "#FFFFFF", "edgecolor": "none", "alpha": 0.85, "pad": 1},
    )


def _write_beta(ax: Axes, beta: float) -> None:
    """Write the bandwidth of the fit above its line."""
    ax.text(
        0.02,
        1.1 / beta,
        f"1/β = {short(1 / beta, 'B/s')}",
        color=FIT_COLOR,
        transform=ax.get_yaxis_transform(),
        va="bottom",
        fontsize=SMALL,
    )


def _draw_knee(upper: Axes, lower: Axes, knee: float, num_bytes: Floats) -> None:
    """Draw the size at which latency and bandwidth cost the same, where it is one of the sizes."""
    smallest, largest = min(num_bytes), max(num_bytes)
    if not smallest < knee < largest:
        return
    for ax in (upper, lower):
        ax.axvline(knee, color=FIT_COLOR, linewidth=1, linestyle=":")
    # rates rise with the size, so the right lower corner is free
    in_right_half = knee**2 > smallest * largest
    lower.text(
        knee,
        0.04,
        f" α/β = {short(knee, 'B')} ",
        color=FIT_COLOR,
        ha="right" if in_right_half else "left",
        transform=lower.get_xaxis_transform(),
        fontsize=SMALL,
    )


def time_against_ranks(curves: Mapping[str, Curve], title: str, theory: Mapping[str, Line]) -> Axes:
    """Draw times against the number of ranks, with a label at the end of each curve.

    Args:
        curves: by name, numbers of ranks and the median, low and high time of each.
        title: what was measured.
        theory: by name, numbers of ranks and times, drawn as a thin dashed line. One with the name
            of a curve has its colour, and may go on beyond it.
    """
    with new_axes(5.6, 4, title=title, ylabel="time of one call") as ax:
        ends = _draw_against_ranks(ax, curves, theory)
        even_ticks(ax.yaxis, "s")
        label_ends(ax, ends)
    return ax


def speedup(curves: Mapping[str, Curve], title: str = "", cores: int | None = None) -> Axes:
    """Draw the speed-up of several ranks over one rank, in samples a second, beside the ideal.

    The label of a curve ends with its efficiency at the most ranks: the speed-up divided by the
    number of ranks.

    Args:
        curves: by name, numbers of ranks from 1 up and the median, low and high of the rate.
        title: what was measured.
        cores: of the machine; where there are more ranks than cores is shaded.
    """
    relative = {}
    counts: set[float] = set()
    for name, (ranks, *rates) in curves.items():
        alone = rates[0][0]
        medians, lows, highs = (np.divide(rate, alone).tolist() for rate in rates)
        efficiency = medians[-1] / ranks[-1]
        relative[f"{name}, {100 * efficiency:.0f}%"] = (ranks, medians, lows, highs)
        counts.update(ranks)
    ideal = sorted(counts)
    with new_axes(5.6, 4, title=title, ylabel="speed-up") as ax:
        ends = _draw_against_ranks(ax, relative, {"ideal": (ideal, ideal)})
        if cores is not None and ideal[-1] > cores:
            _shade_beyond(ax, cores)
        label_ends(ax, ends)
    return ax


def _shade_beyond(ax: Axes, cores: int) -> None:
    """Shade where there are more ranks than cores, and say so."""
    left, right = ax.get_xlim()
    ax.axvspan(max(left, cores + 0.5), right, color=INK, alpha=HAZE, zorder=0, linewidth=0)
    note = f"more ranks than the {count(cores, 'core')}"
    place = ax.transAxes
    ax.text(0.98, 0.97, note, transform=place, ha="right", va="top", color=INK, fontsize=SMALL)


def _draw_against_ranks(
    ax: Axes, curves: Mapping[str, Curve], theory: Mapping[str, Line]
) -> list[End]:
    """Draw curves and theory against the number of ranks, and return their ends.

    The axis of the values begins at 0 and leaves space at the top.
    """
    lines = [*curves.values(), *theory.values()]
    numbers: set[int] = set()
    for line in lines:
        numbers.update(int(number) for number in line[0])
    ranks = sorted(numbers)
    ends = draw_curves(ax, curves, theory)
    if ranks[-1] > MOST_EVEN * ranks[0]:
        limits = ranks[0] / 1.1, ranks[-1] * 1.1
        ax.set_xscale("log", base=2)
        # the labels of others would touch each other
        ranks = [number for number in ranks if _is_power_of_two(number)]
    else:
        limits = ranks[0] - 0.3, ranks[-1] + 0.3
    highest = max(max(line[-1]) for line in lines)
    ax.set(xlabel="ranks", xlim=limits, ylim=(0, 1.2 * highest))
    ax.set(xticks=ranks, xticklabels=map(str, ranks))
    return ends


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


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
    start = 0.3 + max(text_width(name, TEXT) for name, _ in lanes)
    width = start + max(map(len, rows)) * (SIDE + GAP)
    height = SIDE + CAPTION + 2 * PAD
    figure, ax = canvas(width, len(rows) * (height + PAD) - PAD, title)
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
    start = 0.4 + text_width(f"bucket {len(parts) - 1}", TEXT)
    wide = 0.3 + _width_of_widest(texts)
    end = start + max(map(len, parts)) * wide
    width = end + 0.3 + text_width("→ all-reduce", TEXT)
    figure, ax = canvas(width, len(parts) * (SIDE + PAD) - PAD, title)
    for place, part in enumerate(texts):
        top = place * (SIDE + PAD)
        draw_lane(ax, 0, top, width, SIDE, INK, f"bucket {place}")
        for column, (name, size) in enumerate(part):
            left = start + column * wide
            draw_box(ax, left, top + PAD, wide - GAP, SIDE - 2 * PAD, "", FAINT, SMALL)
            x = left + (wide - GAP) / 2
            draw_text(ax, x, top + 0.35 * SIDE, name, color="#000000", fontsize=SMALL)
            draw_text(ax, x, top + 0.65 * SIDE, size, color="#000000", fontsize=SMALL)
        draw_text(ax, start + len(part) * wide + 0.1, top + SIDE / 2, "→ all-reduce", ha="left")
    return figure


def _width_of_widest(parts: Sequence[Sequence[tuple[str, str]]]) -> float:
    """The width of the widest name or size."""
    widths = []
    for part in parts:
        for name, size in part:
            widths += [text_width(name, SMALL), text_width(size, SMALL)]
    return max(widths)
