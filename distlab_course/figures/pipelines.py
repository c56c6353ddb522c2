"""Labs 52 and 53: schedules of pipelines, what their bubble costs, and which way to divide a model
is the quickest.

Runs in the notebook's kernel. Times are in seconds.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from distlab.plotting.axes import SMALL, even_ticks, label_ends, log_ticks, new_axes, new_panels
from distlab.plotting.curves import badge
from distlab.plotting.lanes import LOOKS, Bar, draw_lanes, height_of, legend_below
from distlab.plotting.style import INK, curve_color, rank_color, text_color

KINDS = {"F": LOOKS["forward"], "B": LOOKS["backward"]}
KINDS["I"] = LOOKS["backward"]._replace(words="backward, input only")
KINDS["W"] = LOOKS["optimizer"]._replace(words="backward, weights only")
MARKERS = "o+s^vD"
# of the regions of a map
SHADES = [LOOKS[what].fill for what in ("forward", "backward", "move", "exposed")]
Floats = Sequence[float]
Times = Mapping[str, Sequence[Floats]]
Action = tuple[str, int, int, float, float]  # kind, stage, micro-batch, begin, end


def pipeline(schedules: Mapping[str, Sequence[Sequence[Action]]], simulated: str = "") -> Figure:
    """Draw schedules of pipelines below each other on one scale: a box for each micro-batch, a row
    for each stage.

    Each title ends with the share of the time, from the first begin to the last end, in which ranks
    are idle.

    Args:
        schedules: by name and by rank, what the rank computed: the kind ("F" forward, "B" backward,
            "I" and "W" its halves for the input and for the weights), the stage, the micro-batch,
            begin and end in seconds.
        simulated: on which machines, as `cluster.simulated` says it; "" for measured times.
    """
    charts = {name: lanes_of(ranks) for name, ranks in schedules.items()}
    heights = [height_of(chart) for chart in charts.values()]
    end = 1.01 * max(idle(ranks)[1] for ranks in schedules.values())
    height = sum(heights) + 0.75 * len(charts) + 0.7
    with new_panels(7.5, height, len(charts), 1, height_ratios=heights) as (figure, axes):
        used = {bar.look for chart in charts.values() for bars in chart.values() for bar in bars}
        legend_below(axes[-1], [look for look in KINDS.values() if look in used], columns=4)
        for ax, (name, chart) in zip(axes, charts.items(), strict=True):
            ax.set_title(f"{name}: idle {idle(schedules[name])[0]:.0%}", fontsize=11, pad=5)
            tops = draw_lanes(
                ax, chart, end, bands=[rank_color(rank) for rank in range(len(chart))], size=8.5
            )
            ax.spines["left"].set_visible(False)
            for rank, actions in enumerate(schedules[name]):
                stages = sorted({action[1] for action in actions})
                for row, stage in enumerate(stages if len(stages) > 1 else ()):
                    beside = {"fontsize": 8.5, "va": "center_baseline"}
                    ax.text(
                        1.01 * end, tops[f"rank {rank}"] + row + 0.5, f"stage {stage}", **beside
                    )
        axes[-1].set_xlabel(f"time ({simulated})" if simulated else "time, measured", fontsize=9.5)
    return figure


def lanes_of(ranks: Sequence[Sequence[Action]]) -> dict[str, list[Bar]]:
    """What each rank computed, as bars from the first begin on, in a row for each of its stages."""
    zero = min(action[3] for rank in ranks for action in rank)
    lanes = {}
    for rank, actions in enumerate(ranks):
        rows = {stage: row for row, stage in enumerate(sorted({action[1] for action in actions}))}
        lanes[f"rank {rank}"] = [
            Bar(begin - zero, end - zero, KINDS[kind], (str(batch),), rows[stage])
            for kind, stage, batch, begin, end in actions
        ]
    return lanes


def idle(ranks: Sequence[Sequence[Action]]) -> tuple[float, float]:
    """The share of the time in which ranks are idle, and the seconds from the first begin to the
    last end.
    """
    actions = [action for rank in ranks for action in rank]
    seconds = max(action[4] for action in actions) - min(action[3] for action in actions)
    return 1 - sum(end - begin for *_, begin, end in actions) / (len(ranks) * seconds), seconds


def bubbles(
    shares: Mapping[str, Mapping[int, float]], p: int, stages: Sequence[int], simulated: str = ""
) -> Axes:
    """Draw the idle share of pipelines against the number of micro-batches, on the lines of the
    theory.

    Args:
        shares: by schedule, and by the number m of micro-batches: the idle share of the time, from
            0 to 1.
        p: the number of ranks.
        stages: of each schedule, how many stages v a rank has; the theory's line is (p - 1) / (v m
            + p - 1).
        simulated: on which machines, as `cluster.simulated` says it.
    """
    labels, ends = {"xlabel": "micro-batches m", "ylabel": "idle share of the time"}, []
    counts = sorted({m for points in shares.values() for m in points})
    with new_axes(6, 4, title=f"the bubble of {p} ranks", **labels) as ax:
        for place, ((name, points), v) in enumerate(zip(shares.items(), stages, strict=True)):
            marker, color = MARKERS[place % len(MARKERS)], curve_color(place)
            fine = np.geomspace(min(points), max(points), 41)
            ax.plot(
                fine, 100 * (p - 1) / (v * fine + p - 1), color=INK, linewidth=1.2, linestyle="--"
            )
            look = {"color": color, "mfc": "none", "mew": 2, "ms": 11 if marker == "+" else 6}
            ax.plot(list(points), [100 * share for share in points.values()], marker, **look)
            ends.append((max(points), 100 * points[max(points)], name, color))
        ax.set_xscale("log", base=2)
        ax.set(xticks=counts, xticklabels=counts, ylim=(0, None))
        even_ticks(ax.yaxis, "%")
        label_ends(ax, ends)
        badge(ax, f"{simulated}; dashed: {p - 1} / (v m + {p - 1})")
    return ax


def quickest(
    seconds: Times, bandwidths: Floats, tokens: Floats, title: str, networks: Mapping[str, float]
) -> Axes:
    """Draw a map of which way to share a model is the quickest, for each bandwidth and each size of
    the batch.

    Args:
        seconds: by name of the way, four at most, a row for each size of the batch with a time for
            each bandwidth; infinite where the model does not fit.
        bandwidths: of each device, in bytes a second, ascending.
        tokens: in the batch, ascending.
        title: of which model on which devices.
        networks: the bandwidths of well-known networks, by name, drawn as lines.
    """
    best, shades = np.argmin(list(seconds.values()), axis=0), SHADES[: len(seconds)]
    with new_axes(7, 4.6, xlabel="bandwidth of each device", ylabel="tokens in the batch") as ax:
        ax.set_title(title, loc="left", pad=24)
        ax.pcolormesh(
            bandwidths, tokens, best, cmap=ListedColormap(shades), vmin=0, vmax=len(seconds) - 1
        )
        ax.set(xscale="log", yscale="log")
        log_ticks(ax.xaxis, "B/s")
        ax.minorticks_off()
        ends = [tokens[0] * 4**k for k in range(20) if tokens[0] * 4**k < tokens[-1] / 2] + [
            tokens[-1]
        ]
        ax.set_yticks(ends, [f"{end:,}" for end in ends])
        ax.grid(visible=False)
        for place, (name, shade) in enumerate(zip(seconds, shades, strict=True)):
            rows, columns = np.nonzero(best == place)
            if len(rows):
                look = {"ha": "center", "va": "center", "color": text_color(shade), "zorder": 5}
                look["bbox"] = {"facecolor": shade, "edgecolor": "none", "pad": 2}
                ax.text(
                    bandwidths[int(np.median(columns))], tokens[int(np.median(rows))], name, **look
                )
        for name, bandwidth in networks.items():
            ax.axvline(bandwidth, color="#FFFFFF", linewidth=1.2, linestyle=":")
            above = {"ha": "center", "transform": ax.get_xaxis_transform(), "fontsize": SMALL - 1}
            ax.text(bandwidth, 1.02, name, **above)
    return ax
