"""The pictures of an algorithm's steps one after another, with a slider and a play button, in any notebook viewer.

Called by the notebooks. Runs in the notebook's process; what it gives out runs in the browser, with no kernel and no
network: the figure that `steps` draws, where its pictures stand, and player.js, which shows one of them at a time.
Where scripts are not run, as on GitHub and in notebooks that JupyterLab does not trust, the whole figure is seen
instead; where HTML is not shown at all, the same as PNG.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from IPython.core.pylabtools import print_figure
from matplotlib.figure import Figure

from distlab.plotting.stepping import CELL, NAMES, Layout, Move, check_steps, draw_steps
from distlab.plotting.style import style

SCRIPT = Path(__file__).with_name("player.js").read_text(encoding="utf-8")
DPI = 200  # of the figure in the HTML, where its pictures are seen larger


@dataclass(frozen=True, repr=False)
class Player:
    """Pictures of steps that a notebook shows one at a time.

    Attributes:
        figure: all the pictures. html: the player, with all that it needs. title: what is shown. count: of pictures.
    """

    figure: Figure
    html: str
    title: str
    count: int

    def __repr__(self) -> str:
        named = f"{self.title}: " if self.title else ""
        return f"<{named}{self.count - 1} step{'s' if self.count != 2 else ''} to play>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self.html, "image/png": png_text(self.figure, 100)}


def play(states: Sequence[object], messages: Sequence[object], title: str = "") -> Player:
    """As `steps`, one picture at a time: with a slider, buttons, and the messages moving when it is played.

    Runs on: client.

    Args:
        states, messages, title: see `steps`.

    Returns:
        The `Player`; a notebook shows it where it is the last value of a cell.

    Raises:
        ArgumentError: see `steps`.
    """
    shown = check_steps(states, messages)
    figure, layout = draw_steps(shown, title)
    (ax,) = figure.axes
    pictures = [
        {
            "heading": heading,
            "corner": [layout.left(number), layout.row_top(number)],
            "moves": [flight(layout, number, move) for move in step],
        }
        for number, (step, heading) in enumerate(zip(shown.moves, shown.headings, strict=True))
    ]
    data = {
        "title": title,
        "key": shown.key,
        "dpi": DPI,
        "origin": [ax.get_xlim()[0], ax.get_ylim()[1]],
        "size": [NAMES + layout.width, layout.height],
        "names": NAMES,
        "cell": [layout.cell, CELL],
        "pictures": pictures,
    }
    attributes = {
        "src": f"data:image/png;base64,{png_text(figure, DPI)}",
        "alt": f"{title or 'An algorithm'}, step by step: {', '.join(shown.headings)}",
        "width": f"{100 * figure.get_figwidth():.0f}",
        "style": "max-width:100%",
        "data-steps": json.dumps(data),
        "onload": f"({SCRIPT})(this)",
    }
    image = " ".join(f'{name}="{escape(value, quote=True)}"' for name, value in attributes.items())
    return Player(figure, f'<div style="padding:4px"><img {image}></div>', title, len(pictures))


def flight(layout: Layout, picture: int, move: Move) -> dict[str, tuple[float, float]]:
    """A message that moves: the corners of the cell that it looks like, of its sender's and of its receiver's."""
    start, end = (layout.corner(picture, rank, move.chunk) for rank in (move.src, move.dst))
    looks = start if move.origin is None else layout.corner(0, move.origin, move.chunk)
    return {"looks": looks, "start": start, "end": end}


def png_text(figure: Figure, dpi: int) -> str:
    """A figure as PNG, in base64; the same bytes on every run."""
    with style():
        return print_figure(figure, base64=True, bbox_inches=None, dpi=dpi, metadata={"Software": None})
