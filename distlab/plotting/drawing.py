"""The figures of this project: matplotlib's, with words for those who do not see the picture.

JupyterLab shows a figure as a PNG without an alternative text, so a person gets HTML with an image
that has one. What is saved, by programs that execute notebooks, is the PNG alone, with the words in
its metadata, where nbconvert and the site find them.

Called by style.py, which makes all figures. Runs on the notebook's kernel.
"""

import base64
import io
from collections.abc import Iterator
from html import escape
from typing import Any

from IPython.core.pylabtools import print_figure
from matplotlib.figure import Figure
from PIL import Image  # matplotlib comes with it

from distlab.compat.ipython import notebook_shell, somebody_watches

SHARPNESS = 1.5  # pixels of the picture for each pixel of a page
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
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """What IPython adds to the PNG that it makes itself: HTML for a person, and metadata."""
        words = self.in_words()
        metadata = {"image/png": {"alt": words}}
        shell = notebook_shell()
        if shell is None or not _draws_sharp(shell):
            return {}, metadata
        if not is_for_a_person():
            return {}, metadata
        drawn = sharp_png(self)
        return {} if drawn is None else with_alt(drawn, words), metadata


def _draws_sharp(shell: Any) -> bool:
    """Have IPython draw our figures by `sharp_png`, if it draws figures as PNG, and say whether.

    IPython asks for a figure's HTML and metadata first, so this is in time for the PNG.
    """
    png_formatter = shell.display_formatter.formatters["image/png"]
    try:
        png_formatter.lookup_by_type(Figure)
    except KeyError:  # the person has chosen another format
        png_formatter.pop(Drawing, None)
        return False
    png_formatter.for_type(Drawing, sharp_png)
    return True


def sharp_png(figure: Drawing) -> tuple[bytes, dict[str, Any]] | None:
    """A figure with more pixels than its place on the page has; None if it is empty.

    Returns:
        The PNG, and metadata: its width and height on the page, and the figure in words.
    """
    png = print_figure(figure, dpi=figure.dpi * SHARPNESS)
    if png is None:
        return None
    width, height = Image.open(io.BytesIO(png)).size
    about = {
        "width": round(width / SHARPNESS),
        "height": round(height / SHARPNESS),
        "alt": figure.in_words(),
    }
    return png, about


def is_for_a_person() -> bool:
    """Whether what is shown now is seen by a person in a notebook."""
    return notebook_shell() is not None and somebody_watches()


def with_alt(picture: tuple[bytes, dict[str, Any]], words: str) -> dict[str, str]:
    """A picture as HTML with an alternative text.

    Args:
        picture: a PNG, and its width on the page.
        words: the alternative text.
    """
    png, about = picture
    source = base64.b64encode(png).decode()
    attributes = [f'src="data:image/png;base64,{source}"', f'alt="{escape(words)}"']
    attributes.append(f'width="{about["width"]}"')
    attributes.append('style="max-width:100%"')
    return {"text/html": f"<img {' '.join(attributes)}>"}
