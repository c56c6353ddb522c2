"""The figures of this project: matplotlib's, with words for those who do not see the picture.

JupyterLab shows a figure as a PNG without an alternative text, so a person gets HTML with an image
that has one. What is saved, by programs that execute notebooks, is the PNG alone, with the words in
its metadata, where nbconvert and the site find them.

Called by style.py, which makes all figures. Runs in the notebook's kernel.
"""

import base64
from html import escape
from typing import Any

from matplotlib.figure import Figure

from distlab.compat.ipython import current_shell, notebook_shell, somebody_watches

MOST_WORDS = 60  # of a figure that does not say what is on it


class Drawing(Figure):
    """A figure with an alternative text.

    Attributes:
        alt: the text; "" for the words that are written in the figure.
    """

    alt = ""

    def __repr__(self) -> str:
        return super().__repr__().replace(type(self).__name__, Figure.__name__, 1)

    def in_words(self) -> str:
        """What the figure shows, in a line: its alternative text, or else the words that are
        written in it.
        """
        if self.alt:
            return self.alt
        words = [self.get_suptitle()]
        for ax in self.axes:
            words += [ax.get_title(side) for side in ("left", "center", "right")]
            words += [ax.get_xlabel(), ax.get_ylabel(), *(one.get_text() for one in ax.texts)]
        once = [word for word in dict.fromkeys(" ".join(one.split()) for one in words) if word]
        more = ", ..." if len(once) > MOST_WORDS else ""
        return ", ".join(once[:MOST_WORDS]) + more

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        """What IPython adds to the PNG that it makes itself: HTML for a person, and the words as
        metadata.
        """
        words = self.in_words()
        about = {"image/png": {"alt": words}}
        if not is_for_a_person():
            return {}, about
        return with_alt(
            current_shell().display_formatter.formatters["image/png"](self), words
        ), about


def is_for_a_person() -> bool:
    """Whether what is shown now is seen by a person in a notebook."""
    return notebook_shell() is not None and somebody_watches()


def with_alt(png: Any, words: str) -> dict[str, str]:
    """A picture as HTML with an alternative text; nothing if there is none.

    Args:
        png: its bytes, or those and a dict with its width, as IPython's formatters give them; None.
    """
    png, about = png if isinstance(png, tuple) else (png, {})
    if png is None:
        return {}
    source = png if isinstance(png, str) else base64.b64encode(png).decode()
    width = f'width="{about["width"]}" ' if "width" in about else ""
    return {
        "text/html": f'<img src="data:image/png;base64,{source}" alt="{escape(words)}" {width}style="max-width:100%">'
    }
