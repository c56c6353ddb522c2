"""What `Plan.plot` draws: the best layout for each pair of values of the two arguments that matter.

Runs on the notebook's kernel; imports matplotlib.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from distlab.plotting.maps import Axis, Cell, State, cell_map
from distlab.words import grouped
from distlab_predict.layouts import Layout

DOES_NOT_FIT = math.log(2)  # matters as much as half of the rate


def draw_map(
    layouts: Sequence[Layout], names: Sequence[str], best: Layout | None, on: str
) -> Figure:
    """Draw the layouts over two of these arguments.

    Args:
        layouts: all of them.
        names: the arguments that have several values.
        best: the layout that gets the ring.
        on: what they would run on, "8 ranks".
    """
    across, down = _axes_of(layouts, names)
    columns = _axis(layouts, across)
    rows = Axis("", [""])
    if down:
        rows = _axis(layouts, down)
    others = [name for name in names if name not in (across, down)]
    places = []
    for layout in layouts:
        column = columns.values.index(str(layout.choice[across]))
        row = 0
        if down:
            row = rows.values.index(str(layout.choice[down]))
        places.append(((column, row), layout))
    cells = {}
    for place, members in grouped(places).items():
        cells[place] = _cell(members, others, best)
    title = f"predicted, not measured: layouts on {on}"
    has_tokens = any(one.step is not None and one.step.tokens for one in layouts)
    unit = "tokens/s of each rank" if has_tokens else "steps/s"
    return cell_map(columns, rows, cells, title, unit)


def _axes_of(layouts: Sequence[Layout], names: Sequence[str]) -> tuple[str, str]:
    """The two arguments that matter most; the one with more values goes across."""
    effects = {name: _effect(layouts, name) for name in names}
    first, second, *_ = [*sorted(names, key=effects.__getitem__, reverse=True), "", ""]
    if second and len(_values(layouts, second)) > len(_values(layouts, first)):
        return second, first
    return first, second


def _effect(layouts: Sequence[Layout], name: str) -> float:
    """How much an argument matters: the mean effect of changing nothing else, as a logarithm."""
    by_others = []
    for layout in layouts:
        if layout.step is not None:
            others = {key: value for key, value in layout.choice.items() if key != name}
            by_others.append((repr(others), layout))
    effects = [0.0]
    for members in grouped(by_others).values():
        for one, other in itertools.combinations(members, 2):
            effect = abs(math.log(one.rate / other.rate))
            if one.fits != other.fits:
                effect = max(effect, DOES_NOT_FIT)
            effects.append(effect)
    return statistics.mean(effects)


def _values(layouts: Sequence[Layout], name: str) -> list[str]:
    return list(dict.fromkeys(str(layout.choice[name]) for layout in layouts))


def _axis(layouts: Sequence[Layout], name: str) -> Axis:
    return Axis(name, _values(layouts, name))


def _cell(members: Sequence[Layout], others: Sequence[str], best: Layout | None) -> Cell:
    """The cell of the layouts that share two values."""
    shown = max(members, key=_order)
    state: State = "refused"
    if shown.step is not None:
        state = "fits" if shown.fits else "too large"
    elif shown.is_left_out:
        state = "left out"
    words = [_short(name, shown.choice[name]) for name in others]
    return Cell(state, shown.rate, words, shown is best)


def _order(layout: Layout) -> tuple[bool, bool, bool, float]:
    """By what a cell's layout is chosen: one that fits, was predicted, or was left out, by rate."""
    return layout.fits, layout.step is not None, layout.is_left_out, layout.rate


def _short(name: str, value: Any) -> str:
    """An argument in few letters: a text as it is, a number with its name."""
    if isinstance(value, str):
        return value
    return f"{name} {value}"
