"""What a memory holds over time, as areas on each other.

Called by `Prediction.plot_memory`, on the notebook's kernel. Times are in seconds, sizes in bytes.
"""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from distlab.plotting.axes import even_ticks, new_axes, short
from distlab.plotting.bars import ACTIVITY_LOOKS, legend_below, outline
from distlab.plotting.describing import along, describe
from distlab.plotting.style import BLACK
from distlab.tables import format_bytes

GIBIBYTE = 1 << 30
MEBIBYTE = 1 << 20
FAR = 2.0  # how often what is there fits below a limit that is only named, and not drawn
# from below: what stays, what lives for a while, and what goes with each pass
LOOKS = {
    "parameters": ACTIVITY_LOOKS["compute"],
    "optimizer": ACTIVITY_LOOKS["optimizer"],
    "gradients": ACTIVITY_LOOKS["forward"],
    "unsharded parameters": ACTIVITY_LOOKS["wait"],
    "activations": ACTIVITY_LOOKS["move"],
}


def memory_over_time(
    times: Sequence[float],
    sizes: Mapping[str, Sequence[float]],
    limits: Mapping[str, float],
    title: str = "",
) -> Axes:
    """Draw what a memory holds, an area for each kind on those before it.

    Runs on: the notebook's kernel.

    Args:
        times: in seconds, ascending.
        sizes: bytes at these times by what they are, in the order of LOOKS as far as known.
        limits: bytes by name, such as the size of the memory, drawn as lines across; those far
            above what is there only have their names below, as the areas would be flat.
        title: whose memory it is.

    Returns:
        The axes of a new figure, which a notebook shows when its cell ends.
    """
    known = [kind for kind in LOOKS if kind in sizes]
    kinds = known + [kind for kind in sizes if kind not in LOOKS]
    highest = max(map(sum, zip(*sizes.values(), strict=True)))
    unit, name = _unit(highest)
    with new_axes(7.2, 4.2, title=title, xlabel="time", ylabel=f"memory in {name}") as ax:
        below = [0.0] * len(times)
        looks = []
        for kind in kinds:
            look = LOOKS.get(kind, ACTIVITY_LOOKS["serve"])._replace(words=kind)
            above = [low + size / unit for low, size in zip(below, sizes[kind], strict=True)]
            ax.fill_between(times, below, above, step="post", **outline(look))
            below = above
            looks.append(look)
        lines = _draw_limits(ax, limits, unit, FAR * highest)
        ax.set(xlim=(times[0], times[-1]), ylim=(0, None))
        even_ticks(ax.xaxis, "s")
        even_ticks(ax.yaxis, "")
        ax.tick_params(axis="x", pad=8)  # so that the zeros of both axes stay apart
        legend_below(ax, looks, lines)
        describe(ax, title or "memory over time", _in_words(times, sizes, kinds, limits))
    return ax


def _unit(highest: float) -> tuple[int, str]:
    """The unit that suits the highest size, in bytes, and its name."""
    if highest >= GIBIBYTE / 10:
        return GIBIBYTE, "GiB"
    return MEBIBYTE, "MiB"


def _draw_limits(ax: Axes, limits: Mapping[str, float], unit: int, most: float) -> list[Line2D]:
    """Draw lines across, each with a pattern of its own; one above `most` bytes only has a name."""
    lines = []
    for pattern, (name, size) in zip(("--", ":", "-."), limits.items(), strict=False):
        words = f"{name}, {format_bytes(round(size))}"
        if size > most:
            lines.append(Line2D([], [], linestyle="none", label=f"{words}, is far above"))
        else:
            lines.append(ax.axhline(size / unit, color=BLACK, linestyle=pattern, label=words))
    return lines


def _in_words(
    times: Sequence[float],
    sizes: Mapping[str, Sequence[float]],
    kinds: Sequence[str],
    limits: Mapping[str, float],
) -> list[str]:
    """What the figure says: how each kind goes, and the limits."""
    parts = []
    for kind in kinds:
        how = along(
            times,
            sizes[kind],
            lambda time: short(time, "s"),
            lambda size: format_bytes(round(size)),
        )
        parts.append(f"{kind}: {how}")
    return parts + [f"{name}: {format_bytes(round(size))}" for name, size in limits.items()]
