"""Labs 49 to 51 and 55: what lies in the memory of ranks.

The notebooks call it through `distlab_course.figures`, in their kernel.
"""

from collections.abc import Iterable, Mapping

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from distlab.plotting.axes import new_axes
from distlab.plotting.bars import (
    ACTIVITY_LOOKS,
    Bar,
    Look,
    draw_lanes,
    height_of,
    legend_below,
    outline,
    stacked,
)
from distlab.plotting.describing import describe
from distlab.plotting.style import INK, LABEL_SIZE, MIXED

UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "GB": 1e9}
# Greys from light to dark, and sand, so that no part looks like a rank; what is there for a
# while is hatched.
PART_LOOKS = {
    "parameters": ACTIVITY_LOOKS["compute"],
    "gathered parameters": ACTIVITY_LOOKS["wait"],
    "gradients": ACTIVITY_LOOKS["forward"],
    "optimizer states": ACTIVITY_LOOKS["optimizer"],
    "activations": ACTIVITY_LOOKS["move"],
    "temporary": ACTIVITY_LOOKS["wait"],
    "batch": ACTIVITY_LOOKS["load"],
}
Parts = Mapping[str, float]  # bytes by name of a part


def memory(
    bars: Mapping[str, Parts], title: str = "", unit: str = "MiB", limit: float | None = None
) -> Axes:
    """Draw what lies in memory: a bar for each name from the top down, made of its parts.

    Args:
        bars: by name, for example "rank 0", bytes in parts:
            {"parameters": 8 * 2**20, "gradients": 8 * 2**20}.
        title: whose memory.
        unit: "KiB", "MiB", "GiB" or "GB".
        limit: the bytes that a device has, drawn as a line.
    """
    unit_bytes = UNITS[unit]
    sums = {}
    lanes = {}
    for name, parts in bars.items():
        sums[name] = sum(parts.values()) / unit_bytes
        lanes[name] = _stacked(parts, unit_bytes)
    end = 1.13 * max(sums.values())
    if limit is not None:
        end = max(end, 1.1 * limit / unit_bytes)
    with new_axes(6.8, height_of(lanes) + 1.4, title=title, xlabel=f"memory, {unit}") as ax:
        lines = []
        if limit is not None:
            size = limit / unit_bytes
            label = f"device: {size:g} {unit}"
            lines.append(ax.axvline(size, color=INK, linestyle="--", label=label))
        looks = looks_in(bars.values())
        if len(looks) > 1 or lines:
            legend_below(ax, looks, lines, columns=4)
        tops = draw_lanes(ax, lanes, end, "")
        for name, total in sums.items():
            ax.annotate(
                f"{total:.3g}",
                (total, tops[name] + 0.5),
                xytext=(6, 0),
                textcoords="offset points",
                va="center_baseline",
                fontsize=LABEL_SIZE,
            )
        words = _in_words(bars, unit)
        if limit is not None:
            words.append(f"a device has {limit / unit_bytes:g} {unit}")
        describe(ax, title or "memory", words)
    return ax


def _in_words(bars: Mapping[str, Parts], unit: str) -> list[str]:
    """The sum of each bar and its parts, in words."""
    words = []
    for name, parts in bars.items():
        sizes = [f"{size / UNITS[unit]:.3g} {part}" for part, size in parts.items()]
        whole = sum(parts.values()) / UNITS[unit]
        words.append(f"{name} {whole:.3g} {unit} ({', '.join(sizes) or 'nothing'})")
    return words


def _stacked(parts: Parts, unit_bytes: float) -> list[Bar]:
    """The bars of a lane, one for each part, with the size of the part on it."""
    lengths = []
    texts = []
    for part, num_bytes in parts.items():
        size = num_bytes / unit_bytes
        lengths.append((look_of(part), size))
        texts.append(f"{size:.3g}")
    if len(parts) == 1:
        texts = [""]  # the sum beside the bar says the same
    return stacked(lengths, texts)


def memory_at(moments: Mapping[str, Parts], title: str = "") -> Axes:
    """Draw what lies in the memory of one rank at each moment, as columns from left to right.

    Args:
        moments: by name, the bytes in parts.
        title: whose memory.
    """
    most_bytes = max(sum(parts.values()) for parts in moments.values())
    top = most_bytes / UNITS["MiB"]
    with new_axes(7.5, 3.9, title=title, ylabel="memory, MiB") as ax:
        ax.set_xlim(-0.6, len(moments) - 0.4)
        ax.set_ylim(0, 1.06 * top)
        ax.grid(visible=False, axis="x")
        ax.yaxis.set_major_locator(MaxNLocator(6, steps=(1, 2, 4, 5, 10)))
        for place, parts in enumerate(moments.values()):
            _draw_column(ax, place, parts)
        names = list(moments)
        ax.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
        ax.tick_params(axis="x", length=0)
        legend_below(ax, looks_in(moments.values()), columns=4)
        describe(ax, title or "memory", _in_words(moments, "MiB"))
    return ax


def _draw_column(ax: Axes, place: int, parts: Parts) -> None:
    """Draw the parts of a memory one above the other."""
    bottom = 0.0
    for part, num_bytes in parts.items():
        look = look_of(part)
        size = num_bytes / UNITS["MiB"]
        ax.bar(place, size, 0.8, bottom, **outline(look))
        bottom += size


def look_of(part: str) -> Look:
    """How a part of the memory is drawn; one that is not known has the colour of mixed values."""
    return PART_LOOKS.get(part, Look(MIXED))._replace(words=part)


def looks_in(bars: Iterable[Parts]) -> list[Look]:
    """The looks of all parts that are not empty, in the order in which they come first."""
    looks: dict[str, Look] = {}
    for parts in bars:
        for part, size in parts.items():
            if size:
                looks[part] = look_of(part)
    return list(looks.values())
