"""An algorithm step by step, one picture at a time: the player that notebooks show.

It runs in the browser, in any notebook viewer, without a kernel or a network: it is the figure that
`steps` draws, the places of its pictures, and player.js, which shows one of them at a time, with a
slider and a play button. Where scripts do not run, as on GitHub and in notebooks that JupyterLab
does not trust, the whole figure is seen instead; where HTML is not shown at all, it is a PNG.

Called by the notebooks, on the kernel, with what stepping.py takes. Lengths are in inches; y points
down.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from IPython.core.pylabtools import print_figure
from matplotlib.figure import Figure

from distlab.plotting.drawing import Drawing
from distlab.plotting.stepping import (
    CELL_HEIGHT,
    NAMES_WIDTH,
    MessagesByStep,
    Pictures,
    Point,
    SentChunk,
    State,
    draw_steps,
)
from distlab.plotting.style import style
from distlab.tables import count

SCRIPT = Path(__file__).with_name("player.js").read_text(encoding="utf-8")
DPI = 200  # of the figure in the player, which shows its pictures larger


@dataclass(frozen=True, repr=False)
class Player:
    """Pictures of steps that a notebook shows one at a time.

    Attributes:
        figure: all the pictures.
        html: the player, with all that it needs.
        text: says in one line what is shown.
    """

    figure: Figure
    html: str
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {
            "text/plain": repr(self),
            "text/html": self.html,
            "image/png": png_text(self.figure, 100),
        }


def play(states: Sequence[State], messages: MessagesByStep, title: str = "") -> Player:
    """Like `steps`, one picture at a time, with a slider and buttons; messages move when it plays.

    Runs on: the notebook's kernel.

    Args:
        states, messages, title: see `steps`.

    Returns:
        The `Player`; a notebook shows it if it is the last value of a cell.
    """
    shown = Pictures(states, messages)
    figure = draw_steps(shown, title)
    image = _image(figure, _script_data(shown, figure, title))
    text = f"{count(len(messages), 'step')} to play"
    if title:
        text = f"{title}: {text}"
    return Player(figure, html=f'<div style="padding:4px">{image}</div>', text=f"<{text}>")


def _script_data(shown: Pictures, figure: Figure, title: str) -> dict[str, Any]:
    """What player.js must know of the figure, in inches of it."""
    (ax,) = figure.axes
    left, _ = ax.get_xlim()
    _, top = ax.get_ylim()
    pictures = []
    for picture, step in enumerate(shown.messages):
        about = {
            "heading": shown.headings[picture],
            "corner": shown.place(picture),
            "moves": [_move(shown, picture, sent) for sent in step],
        }
        pictures.append(about)
    return {
        "title": title,
        "key": shown.key,
        "dpi": DPI,
        "names": NAMES_WIDTH,
        "cell": [shown.cell, CELL_HEIGHT],
        "origin": [left, top],
        "size": [NAMES_WIDTH + shown.width, shown.height],
        "pictures": pictures,
    }


def _move(shown: Pictures, picture: int, sent: SentChunk) -> dict[str, Point]:
    """The corners of the cell that a message looks like, of its sender's and of its receiver's."""
    message, chunk = sent
    start = shown.corner(picture, message.src, chunk)
    end = shown.corner(picture, message.dst, chunk)
    looks = start
    if message.origin is not None:  # its numbers are still as that rank had them in the beginning
        looks = shown.corner(0, message.origin, chunk)
    return {"looks": looks, "start": start, "end": end}


def _image(figure: Drawing, data: dict[str, Any]) -> str:
    """The figure as HTML: an image that turns into the player where scripts run."""
    script = escape(f"({SCRIPT})(this)")
    attributes = [
        f'src="data:image/png;base64,{png_text(figure, DPI)}"',
        f'alt="{escape(figure.in_words())}"',
        f'width="{100 * figure.get_figwidth():.0f}"',
        'style="max-width:100%"',
        f'data-steps="{escape(json.dumps(data))}"',
        f'onload="{script}"',
    ]
    return f"<img {' '.join(attributes)}>"


def png_text(figure: Figure, dpi: int) -> str:
    """A figure as PNG, in base64; the same bytes on every run."""
    with style():
        return print_figure(
            figure, base64=True, bbox_inches=None, dpi=dpi, metadata={"Software": None}
        )
