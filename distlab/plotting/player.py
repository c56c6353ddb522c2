"""The pictures of an algorithm's steps one after another, with a slider and a play button, in any notebook viewer.

Called by the notebooks. Runs in the notebook's process; what it gives out runs in the browser, with no kernel and no
network. Where scripts are not run, as on GitHub and in notebooks that JupyterLab does not trust, the row of all
pictures is seen instead; where HTML is not shown at all, that row as PNG.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO

from matplotlib.figure import Figure

from distlab.plotting.frames import NAMES, cell_width, picture_height, picture_width
from distlab.plotting.moves import check_steps
from distlab.plotting.script import SCRIPT
from distlab.plotting.shapes import svg_text
from distlab.plotting.stepping import key, layout, steps
from distlab.plotting.style import style

ASIDE = 14  # pixels beside its arrow that a moving cell needs, as in the script


@dataclass(frozen=True, repr=False)
class Player:
    """Pictures of steps that a notebook shows one at a time.

    Attributes:
        figure: the row of all pictures. html: the player, with all that it needs. title: what is shown.
    """

    figure: Figure
    html: str
    title: str
    count: int

    def __repr__(self) -> str:
        named = f"{self.title}: " if self.title else ""
        return f"<{named}{self.count - 1} step{'s' if self.count != 2 else ''} to play>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        image = BytesIO()
        with style():
            self.figure.savefig(image, format="png", metadata={"Software": None})
        return {"text/plain": repr(self), "text/html": self.html, "image/png": b64encode(image.getvalue()).decode()}


def play(
    states: Sequence[object],
    messages: Sequence[object],
    title: str = "",
    headings: Sequence[str] | None = None,
) -> Player:
    """As `steps`, one picture at a time: with a slider, buttons, and the messages moving when it is played.

    Runs on: client.

    Args:
        states, messages, title, headings: see `steps`.

    Returns:
        The `Player`; a notebook shows it where it is the last value of a cell.

    Raises:
        ArgumentError: see `steps`.
    """
    checked = check_steps(states, messages, headings)
    parts, width, height = layout(*checked, title)
    row = b64encode(svg_text(parts, width, height).encode("ascii")).decode("ascii")
    wide = NAMES + picture_width(checked[0][0], cell_width(checked[0])) + ASIDE
    data = {
        "src": f"data:image/svg+xml;base64,{row}",
        "alt": f"{title or 'An algorithm'}, step by step: {', '.join(checked[2])}",
        "data-title": title,
        "data-key": key(*checked[:2]),
        "data-size": f"{wide:g} {picture_height(checked[0][0]):g} {NAMES}",
        "style": "max-width:100%",
        "onload": f"({SCRIPT})(this)",
    }
    attributes = " ".join(f'{name}="{escape(value, quote=True)}"' for name, value in data.items())
    html = f'<div style="padding:4px"><img {attributes}></div>'
    return Player(steps(states, messages, title, headings), html, title, len(checked[0]))
