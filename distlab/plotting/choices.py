"""What ways to share a model cost: the bubble and the memory of pipelines, predictions, and which way is the quickest.

Called by notebook 09, with what was simulated and what a formula gave. Runs in the notebook's process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from distlab.plotting.axes import SMALL, even_ticks, label_ends, log_ticks, new_axes
from distlab.plotting.curves import badge, draw_theory
from distlab.plotting.style import (
    BACKWARD,
    FORWARD,
    INK,
    TRAVELLING,
    curve_color,
    new_figure,
    style,
    text_color,
)
from distlab.text import refuse

MARKERS = "o+s^vD"
SHADES = (FORWARD, BACKWARD, TRAVELLING)  # of the regions of a map: no rank's colour


def bubbles(shares: Mapping[str, Mapping[int, float]], p: int, stages: Sequence[int], simulated: str = "") -> Axes:
    """Draw the idle share of pipelines against the number of micro-batches, on the lines of the theory.

    Runs on: client.

    Args:
        shares: by schedule, and by the number m of micro-batches: the idle share of the time, from 0 to 1.
        p: the number of ranks.
        stages: of each schedule, how many stages v a rank has; the theory's line is (p - 1) / (v m + p - 1).
        simulated: on which machines, as `cluster.simulated` says it.

    Returns:
        The axes of a new figure, which a notebook shows when its cell ends.
    """
    counts = sorted({m for points in shares.values() for m in points})
    labels = {"xlabel": "micro-batches m", "ylabel": "idle share of the time"}
    with new_axes(6, 4, title=f"the bubble of {p} ranks", **labels) as ax:
        ends = []
        for v in dict.fromkeys(stages):
            ours = [m for points, of in zip(shares.values(), stages, strict=True) if of == v for m in points]
            fine = np.geomspace(min(ours), max(ours), 41)
            draw_theory(ax, fine, 100 * (p - 1) / (v * fine + p - 1))
        for place, (name, points) in enumerate(shares.items()):
            marker, color = MARKERS[place % len(MARKERS)], curve_color(place)
            look = {"color": color, "mfc": "none", "mew": 2, "ms": 11 if marker == "+" else 6}
            ax.plot(list(points), [100 * share for share in points.values()], marker, **look)
            ends.append((max(points), 100 * points[max(points)], name, color))
        ax.set_xscale("log", base=2)
        ax.set(xticks=counts, xticklabels=counts, ylim=(0, None))
        even_ticks(ax.yaxis, "%")
        label_ends(ax, ends)
        badge(ax, f"{simulated}; dashed: {p - 1} / (v m + {p - 1})")
    return ax


def alive(over_time: Mapping[str, tuple], most: Mapping[str, Mapping[int, int]], simulated: str = "") -> Figure:
    """Draw how many micro-batches are alive on rank 0 over time, and the most on any rank against their number.

    Runs on: client.

    Args:
        over_time: by schedule, moments in seconds, and how many micro-batches are alive from each of them on.
        most: by schedule, and by the number of micro-batches: the most that are alive on any rank.
        simulated: on which machines, as `cluster.simulated` says it.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell.
    """
    figure = new_figure(7.5, 3.4, layout="constrained")
    with style():
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
        for place, (name, (moments, numbers)) in enumerate(over_time.items()):
            look = {"color": curve_color(place)}
            left.step(moments, numbers, where="post", **look)
            top, words = max(numbers), {"textcoords": "offset points", **look}
            left.annotate(name, (sum(moments[-2:]) / 5, top), xytext=(0, 4), **words)
            right.plot(list(most[name]), list(most[name].values()), "o-", ms=5, **look)
            end = max(most[name])
            right.annotate(name, (end, most[name][end]), xytext=(-4, 8), ha="right", **words)
        highest = max(max(numbers) for _, numbers in over_time.values())
        left.set(title="rank 0 over time", xlabel="time", ylabel="micro-batches alive", ylim=(0, 1.15 * highest))
        even_ticks(left.xaxis, "s")
        badge(left, simulated)
        right.set_title("the most on any rank", pad=19)
        counts = sorted({m for points in most.values() for m in points})
        right.set(xlabel="micro-batches m", xticks=counts, yticks=[0, *counts], ylim=(0, 1.15 * counts[-1]))
    return figure


def predictions(
    predicted: Mapping[str, tuple[float, float]], simulated: Mapping[str, tuple[float, float]], where: str
) -> Figure:
    """Draw what was predicted beside what was simulated: the memory of a rank, and the time of a step.

    Runs on: client.

    Args:
        predicted, simulated: by name of the way, bytes and seconds.
        where: on which machines, as `cluster.simulated` says it.

    Returns:
        The figure; a notebook shows it where it is the last value of a cell.
    """
    figure = new_figure(7.5, 3.2, layout="constrained")
    with style():
        for place, (ax, unit) in enumerate(zip(figure.subplots(1, 2, sharey=True), ("B", "s"), strict=True)):
            for row, name in enumerate(predicted):
                ax.barh(row + 0.2, simulated[name][place], 0.36, color=FORWARD)
                ax.barh(row - 0.2, predicted[name][place], 0.36, fill=False, edgecolor=INK, hatch="////")
            ax.set(yticks=range(len(predicted)), yticklabels=predicted, ylim=(len(predicted) - 0.4, -0.6))
            ax.grid(visible=False, axis="y")
            ax.tick_params(axis="y", length=0)
            even_ticks(ax.xaxis, unit)
            ax.set_title(("memory of a rank", "time of a step")[place], fontsize=12)
        figure.suptitle(f"hatched: predicted; full: {where}", x=0.02, ha="left", fontsize=10, style="italic")
    return figure


def quickest(
    seconds: Mapping[str, Sequence[Sequence[float]]],
    bandwidths: Sequence[float],
    tokens: Sequence[int],
    title: str = "",
    networks: Mapping[str, float] | None = None,
) -> Axes:
    """Draw a map of which way to share a model is the quickest, for each bandwidth and each size of the batch.

    Runs on: client.

    Args:
        seconds: by name of the way, a row for each size of the batch with a time for each bandwidth; infinite where
            the model does not fit.
        bandwidths: of each device, in bytes a second, ascending.
        tokens: in the batch, ascending.
        title: of which model on which devices.
        networks: the bandwidths of well-known networks, by name, drawn as lines.

    Returns:
        The axes, as of `bubbles`.

    Raises:
        ArgumentError: there are more than three ways.
    """
    if not 0 < len(seconds) <= len(SHADES):
        refuse("seconds", f"1 to {len(SHADES)} ways", list(seconds), 'Give {"ZeRO-3": rows_of_seconds}.')
    best, shades = np.argmin(list(seconds.values()), axis=0), SHADES[: len(seconds)]
    with new_axes(7, 4.6, xlabel="bandwidth of each device", ylabel="tokens in the batch") as ax:
        ax.set_title(title, loc="left", pad=24 if networks else 6)
        look = {"cmap": ListedColormap(shades), "vmin": 0, "vmax": len(seconds) - 1}
        ax.pcolormesh(bandwidths, tokens, best, **look)
        ax.set(xscale="log", yscale="log")
        log_ticks(ax.xaxis, "B/s")
        ax.minorticks_off()
        ends = [tokens[0] * 4**k for k in range(20) if tokens[0] * 4**k < tokens[-1] / 2] + [tokens[-1]]
        ax.set_yticks(ends, [f"{end:,}" for end in ends])
        ax.grid(visible=False)
        for place, (name, shade) in enumerate(zip(seconds, shades, strict=True)):
            rows, columns = np.nonzero(best == place)
            if len(rows):
                look = {"ha": "center", "va": "center", "color": text_color(shade), "zorder": 5}
                look["bbox"] = {"facecolor": shade, "edgecolor": "none", "pad": 2}
                ax.text(bandwidths[int(np.median(columns))], tokens[int(np.median(rows))], name, **look)
        for name, bandwidth in (networks or {}).items():
            ax.axvline(bandwidth, color="#FFFFFF", linewidth=1.2, linestyle=":")
            above = {"ha": "center", "transform": ax.get_xaxis_transform(), "fontsize": SMALL - 1}
            ax.text(bandwidth, 1.02, name, **above)
    return ax
