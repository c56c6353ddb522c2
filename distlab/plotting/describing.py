"""What figures show, in words, for those who do not see them: made of the data that are drawn.

Called by the functions that draw figures. Runs on the notebook's kernel.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distlab.plotting.axes import short
from distlab.plotting.bars import Bar, Lanes
from distlab.plotting.drawing import Drawing
from distlab.tables import count

MOST_BARS = 4  # of a lane that are described each
MOST_PARTS = 12  # of a description: nobody listens to more
Words = Callable[[float], str]


def describe(drawn: Figure | Axes, title: str, parts: Iterable[str]) -> None:
    """Give a figure its alternative text.

    Args:
        drawn: the figure, or axes of it.
        title: what it shows.
        parts: what it says, with its main numbers; those after the first twelve are counted.
    """
    figure = cast(Drawing, drawn if isinstance(drawn, Figure) else drawn.figure)
    listed = [" ".join(part.split()) for part in parts]
    said = listed[:MOST_PARTS]
    if len(listed) > MOST_PARTS:
        said.append(f"and {len(listed) - MOST_PARTS} more")
    heading = " ".join(title.split()).rstrip(".:")
    figure.alt = ": ".join(text for text in (heading, "; ".join(said)) if text)


def add_words(drawn: Axes, words: str) -> None:
    """Add to a description what was added to its figure; nothing where there is none."""
    figure = cast(Drawing, drawn.figure)
    if figure.alt and words not in figure.alt:
        figure.alt += f" ({words})"


def along(xs: Sequence[float], ys: Sequence[float], x_words: Words, y_words: Words) -> str:
    """A curve in words: where it begins and ends, and where it is lowest and highest.

    Args:
        xs: ascending or not; the same number as of `ys`.
        ys: the values.
        x_words: says an x with its unit.
        y_words: says a y with its unit.
    """
    points = sorted(zip(xs, ys, strict=True))
    if not points:
        return "no points"
    shown = {points[0]: "", points[-1]: ""}
    by_value = sorted(points, key=lambda point: point[1])
    for word, point in (("at least ", by_value[0]), ("at most ", by_value[-1])):
        shown.setdefault(point, word)
    return ", ".join(f"{word}{y_words(y)} at {x_words(x)}" for (x, y), word in shown.items())


def of_curves(
    curves: Mapping[str, Sequence[Sequence[float]]], x_words: Words, y_words: Words
) -> list[str]:
    """Curves in words, each with its name; of a measured curve, its medians."""
    parts = []
    for name, (xs, ys, *_) in curves.items():
        parts.append(f"{name}: {along(xs, ys, x_words, y_words)}")
    return parts


def of_lanes(lanes: Lanes) -> list[str]:
    """What was done in each lane, and how long, in words; its bars where no legend says what."""
    parts = []
    for name, bars in lanes.items():
        seconds: dict[str, float] = {}
        for bar in bars:
            if bar.look.words:
                so_far = seconds.get(bar.look.words, 0.0)
                seconds[bar.look.words] = so_far + bar.end - bar.start
        told = [f"{what} {short(total, 's')}" for what, total in seconds.items()]
        if not told:
            told = [f"{bar.texts[0]} {_from_to(bar)}".strip() for bar in bars[:MOST_BARS]]
        if not seconds and len(bars) > MOST_BARS:
            told.append(f"and {len(bars) - MOST_BARS} more until {short(bars[-1].end, 's')}")
        parts.append(f"{name}: {', '.join(told) or 'nothing'}")
    return parts


def _from_to(bar: Bar) -> str:
    return f"from {short(bar.start, 's')} to {short(bar.end, 's')}"


def number(value: float) -> str:
    """A number with at most three digits."""
    return f"{value:.3g}"


def counted(word: str) -> Words:
    """Says a number with a word, "step 3", or of ranks "4 ranks"."""
    if word == "ranks":
        return lambda value: count(round(value), "rank")
    return lambda value: f"{word} {value:g}"
