"""The look of every figure: a colour for each rank, and matplotlib settings that no user setting
can change.

A figure has its own white page, in a light theme and in a dark one: no colour has a contrast above
4.35 both on white and on JupyterLab's dark page (#111111), and a word needs 7. What is written on a
filled shape is black or white.

Called by every module of `distlab.plotting`, and wherever else ranks are drawn. Runs in the
notebook's kernel.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distlab.plotting.drawing import Drawing

# Okabe and Ito, "Color Universal Design" (2008), in an order that keeps neighbours apart. Its
# yellow is lost on white paper and its black is too near to the grey of reduced values: indigo and
# sand of P. Tol, "Colour Schemes" (2021).
CYCLE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#332288", "#DDCC77")
PAGE = "#FFFFFF"
INK = "#4D4D4D"
WORD = 7  # the contrast that a word on the page has at least
# of what is not a rank: algorithms, settings, quantities
CURVES = ("#1A1A1A", "#8F1D5A", "#00626B", "#6B4400", "#5B2DA8", "#4F5A00", "#8A1F11", "#2B4A6F")
FAINT = "#B4B4B4"
MIXED = "#62626A"
HAZE = 0.13  # how opaque a tint of the page is


def blend(color: str, other: str, share: float) -> str:
    """Mix two `#rrggbb` colours: `share` of `other`, the rest of `color`.

    Runs on: anywhere.
    """
    pairs = ((int(color[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in pairs)


def rank_color(rank: int) -> str:
    """The colour of a rank, the same in every figure.

    Ranks 0-7 have the plain colours, 8-15 darker and 16-23 lighter ones; then they repeat.

    Runs on: anywhere.

    Args:
        rank: a rank in the world, 0 or more.

    Returns:
        A colour as `#rrggbb`.
    """
    turn, place = divmod(rank, len(CYCLE))
    plain = CYCLE[place]
    return (plain, blend(plain, "#000000", 0.4), blend(plain, "#FFFFFF", 0.5))[turn % 3]


def luminance(color: str) -> float:
    """Relative luminance of a `#rrggbb` colour, 0 (black) to 1 (white).

    Runs on: anywhere.

    Source: WCAG 2.1, definition of relative luminance.
    """
    parts = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The contrast of two `#rrggbb` colours, from 1 to 21.

    Runs on: anywhere.

    Source: WCAG 2.1, definition of contrast ratio.
    """
    dark, light = sorted(luminance(color) + 0.05 for color in (one, other))
    return light / dark


def text_color(background: str) -> str:
    """White or black, whichever has the higher contrast on `background`: 4.58 or more; the ink on
    the page, "none".

    Runs on: anywhere.
    """
    return (
        INK
        if background == "none"
        else max("#FFFFFF", "#000000", key=lambda color: contrast(color, background))
    )


def line_color(rank: int, least: float = 4) -> str:
    """The colour of a rank, dark enough for a line on the page: `least` is its contrast with it.

    Runs on: anywhere.
    """
    shades = (blend(rank_color(rank), "#000000", share / 20) for share in range(20))
    return next(shade for shade in shades if contrast(shade, PAGE) >= least)


def curve_color(place: int, name: str = "") -> str:
    """The colour of a curve and of its name, by its place in the figure: not a rank's, unless its
    name is "rank 2".

    Runs on: anywhere.
    """
    is_rank = name.startswith("rank ") and name[5:].isdigit()
    return line_color(int(name[5:]), WORD) if is_rank else CURVES[place % len(CURVES)]


def new_figure(width: float, height: float, layout: str = "none", shown: bool = False) -> Drawing:
    """An empty figure on a white page.

    Runs on: the notebook's kernel.

    Args:
        width: in inches.
        height: in inches.
        layout: "none", or "constrained" where labels must make room for themselves.
        shown: whether a notebook shows it when its cell ends. If not, it is shown only as the last
            value of a cell, or by `display`.
    """
    import matplotlib.pyplot as plt

    from distlab.plotting.drawing import Drawing

    # Not inside style(): pyplot's first figure turns the notebook's display on, and the end of
    # style() would undo it.
    options = {"figsize": (width, height), "dpi": 100, "facecolor": PAGE, "layout": layout}
    figure = plt.figure(FigureClass=Drawing, **options)
    if layout == "constrained":
        figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
    if not shown:
        plt.close(figure)  # pyplot forgets it; it stays usable
    return figure


def style() -> AbstractContextManager[None]:
    """Matplotlib's settings for a figure of this project, as a context manager: `with style():
    ...`.

    It starts from matplotlib's defaults, so that a figure looks the same whatever the user's own
    settings are, and restores those at the end. It also gives the look to a figure that you draw
    yourself.

    Runs on: the notebook's kernel.
    """
    import matplotlib.style  # rank_color must not need this import

    # distlab.mplstyle
    return matplotlib.style.context("distlab.plotting.distlab", after_reset=True)
