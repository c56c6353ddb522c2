"""The colours of curves and bars: an algorithm has the same one in every figure.

Called by every figure that names what it compares. Runs on the notebook's kernel.
"""

from collections.abc import Iterable

from distlab.plotting.style import WORD_CONTRAST, line_color

MODEL_COLOR = "#4F5A00"  # what a formula says beside what was measured
# algorithm: its colour, and words of which a curve's name has all of one row
ALGORITHMS = {
    "whole ring": ("#5B2DA8", ("whole ring",)),
    "segmented ring": ("#5D1049", ("segmented ring", "gloo's ring")),
    "ring": ("#8F1D5A", ("ring",)),
    "naive": ("#6B4400", ("naive",)),
    "tree": ("#1B5E20", ("tree",)),
    "halving and doubling": ("#1A3FA8", ("halving",)),
    "recursive doubling": ("#00626B", ("doubling",)),
    "by hosts": ("#8A1F11", ("by hosts", "host by host", "two levels")),
    "shared memory": ("#2B4A6F", ("shared memory",)),
    "library": ("#1A1A1A", ("gloo", "library", "nccl", "all reduce", "dist.all reduce")),
    "model": (MODEL_COLOR, ("the law", "the model", "the formula")),
}
# for other curves: the colours of algorithms that are drawn most often come last
OTHERS = (
    "#1A1A1A",
    "#8A1F11",
    "#2B4A6F",
    "#4F5A00",
    "#5D1049",
    "#1A3FA8",
    "#1B5E20",
    "#00626B",
    "#6B4400",
    "#5B2DA8",
    "#8F1D5A",
)


def curve_colors(names: Iterable[str]) -> dict[str, str]:
    """The colours of the curves of one figure, by name.

    A known algorithm has its own colour in every figure, and "rank 2" has the rank's. Any other
    curve has a colour by its place among those that are left. No two curves have the same, as long
    as the colours last.

    Runs on: anywhere.

    Args:
        names: of all curves of the figure, in their order.
    """
    names = list(dict.fromkeys(names))
    colors: dict[str, str] = {}
    for name in names:
        known = known_color(name)
        if known and known not in colors.values():
            colors[name] = known
    others = [name for name in names if name not in colors]
    free = [color for color in OTHERS if color not in colors.values()] or OTHERS
    for place, name in enumerate(others):
        colors[name] = free[place % len(free)]
    return {name: colors[name] for name in names}


def known_color(name: str) -> str:
    """The colour of a rank or of an algorithm; "" for what is neither.

    Runs on: anywhere.
    """
    first, _, number = name.partition(" ")
    if first == "rank" and number.isdigit():
        return line_color(int(number), WORD_CONTRAST)
    padded = " " + " ".join(name.lower().replace("_", " ").replace(",", " ").split()) + " "
    for color, phrases in ALGORITHMS.values():
        if any(f" {phrase} " in padded for phrase in phrases):
            return color
    return ""
