"""The figures of this project: matplotlib's, with words for those who do not see the picture.

JupyterLab shows a figure as a PNG without an alternative text, so a person gets HTML with an image
that has one. What is saved, by programs that execute notebooks, is the PNG alone, with the words in
its metadata, where nbconvert and the site find them.

Called by style.py, which makes all figures. Runs on the notebook's kernel.
"""

import base64
from collections.abc import Iterator
from html import escape
from typing import Any

from matplotlib.figure import Figure

from distlab.compat.ipython import current_shell, notebook_shell, somebody_watches

MOST_TEXTS = 60  # written in a figure that has no alternative text: what comes after is left out


class Drawing(Figure):
    """A figure with an alternative text.

    Attributes:
        alt: the text; "" for the words that are written in the figure.
    """

    alt = ""

    def __repr__(self) -> str:
        return super().__repr__().replace(type(self).__name__, Figure.__name__, 1)

    def in_words(self) -> str:
        """Say in a line what the figure shows: its alternative text, or the words written in it."""
        if self.alt:
            return self.alt
        texts: list[str] = []
        for written in self._written():
            text = " ".join(written.split())
            if text and text not in texts:
                texts.append(text)
        line = ", ".join(texts[:MOST_TEXTS])
        if len(texts) > MOST_TEXTS:
            line += ", ..."
        return line

    def _written(self) -> Iterator[str]:
        """Titles, labels and other texts of the figure and its axes, without those of ticks."""
        yield self.get_suptitle()
        for ax in self.axes:
            yield ax.get_title("left")
            yield ax.get_title("center")
            yield ax.get_title("right")
            yield ax.get_xlabel()
            yield ax.get_ylabel()
            for text in ax.texts:
                yield text.get_text()

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        """What IPython adds to the PNG that it makes itself: HTML for a person, and metadata."""
        words = self.in_words()
        metadata = {"image/png": {"alt": words}}
        if not is_for_a_person():
            return {}, metadata
        as_png = current_shell().display_formatter.formatters["image/png"]
        return with_alt(as_png(self), words), metadata


def is_for_a_person() -> bool:
    """Whether what is shown now is seen by a person in a notebook."""
    return notebook_shell() is not None and somebody_watches()


def with_alt(png: Any, words: str) -> dict[str, str]:
    """A picture as HTML with an alternative text; nothing if there is no picture.

    Args:
        png: as IPython's formatters give it: the bytes, or a text in base64, or None; or one of
            these and a dict with the width.
        words: the alternative text.
    """
    about: dict[str, Any] = {}
    if isinstance(png, tuple):
        png, about = png
    if png is None:
        return {}
    source = png if isinstance(png, str) else base64.b64encode(png).decode()
    attributes = [f'src="data:image/png;base64,{source}"', f'alt="{escape(words)}"']
    if "width" in about:
        attributes.append(f'width="{about["width"]}"')
    attributes.append('style="max-width:100%"')
    return {"text/html": f"<img {' '.join(attributes)}>"}
