"""The look of every figure: a colour for each rank, and settings that no user setting can change.

A figure has its own white page, in a light theme and in a dark one, because no colour has a
contrast above 4.35 both on white and on JupyterLab's dark page (#111111), and a word needs 7. What
is written on a filled shape is black or white.

Called by every module of `distlab.plotting`, and wherever else ranks are drawn. Runs on the
notebook's kernel.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from distlab.plotting.drawing import Drawing

# Okabe and Ito, "Color Universal Design" (2008), in an order that keeps neighbours apart. Its
# yellow is lost on white paper and its black is too near to the grey of reduced values, so indigo
# and sand of P. Tol, "Colour Schemes" (2021), take their places.
RANK_COLORS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#332288",
    "#DDCC77",
)
PAGE = "#FFFFFF"
INK = "#4D4D4D"  # texts and axes
BLACK = "#000000"
WHITE = "#FFFFFF"
WORD_CONTRAST = 7  # the least contrast of a word with the page
SHAPE_CONTRAST = 3  # and of a filled shape, or of its edge
# for what is not a rank: algorithms, settings, quantities
CURVE_COLORS = (
    "#1A1A1A",
    "#8F1D5A",
    "#00626B",
    "#6B4400",
    "#5B2DA8",
    "#4F5A00",
    "#8A1F11",
    "#2B4A6F",
)
FAINT = "#B4B4B4"  # what several ranks have alike, and waiting
MIXED = "#62626A"  # what is made from several ranks' values
HAZE = 0.13  # opacity of a tint of the page
FONT = "DejaVu Sans"
# sizes of fonts, in points
TITLE_SIZE = 13
TEXT_SIZE = 12
LABEL_SIZE = 11  # names of lanes, and labels in axes
NAME_SIZE = 10  # names in boxes and in legends
SMALL_SIZE = 9.5  # bars of timelines, pictures of steps, numbers in matrices
NOTE_SIZE = 9  # lines below a title, keys in a store
TINY_SIZE = 8.5  # what would not fit otherwise


def channels(color: str) -> tuple[int, int, int]:
    """Red, green and blue of a `#rrggbb` colour, each from 0 to 255. Runs on: anywhere."""
    red = int(color[1:3], 16)
    green = int(color[3:5], 16)
    blue = int(color[5:7], 16)
    return red, green, blue


def blend(color: str, other: str, share: float) -> str:
    """Mix two `#rrggbb` colours: `share` of `other`, the rest of `color`.

    Runs on: anywhere.
    """
    code = "#"
    for own, others in zip(channels(color), channels(other), strict=True):
        channel = round(own + (others - own) * share)
        code += f"{channel:02X}"
    return code


def rank_color(rank: int) -> str:
    """The colour of a rank, the same in every figure.

    Ranks 0-7 have the plain colours, 8-15 darker and 16-23 lighter ones; then they repeat.

    Runs on: anywhere.

    Args:
        rank: a rank in the world, 0 or more.

    Returns:
        A colour as `#rrggbb`.
    """
    turn, place = divmod(rank, len(RANK_COLORS))
    plain = RANK_COLORS[place]
    shades = (plain, blend(plain, BLACK, 0.4), blend(plain, WHITE, 0.5))
    return shades[turn % len(shades)]


def luminance(color: str) -> float:
    """Relative luminance of a `#rrggbb` colour, 0 (black) to 1 (white).

    Runs on: anywhere.

    Source: WCAG 2.1, definition of relative luminance.
    """
    red, green, blue = channels(color)
    return (
        0.2126 * _intensity(red / 255)
        + 0.7152 * _intensity(green / 255)
        + 0.0722 * _intensity(blue / 255)
    )


def _intensity(value: float) -> float:
    """The intensity of light, 0 to 1, for a value of an sRGB channel, 0 to 1."""
    if value <= 0.04045:
        return value / 12.92
    return ((value + 0.055) / 1.055) ** 2.4


def contrast(one: str, other: str) -> float:
    """The contrast of two `#rrggbb` colours, from 1 to 21.

    Runs on: anywhere.

    Source: WCAG 2.1, definition of contrast ratio.
    """
    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


def text_color(background: str) -> str:
    """White or black, whichever has the higher contrast on `background`: 4.58 or more.

    Where nothing is filled, `background` is "none", and the text has the colour of the ink.

    Runs on: anywhere.
    """
    if background == "none":
        return INK
    if contrast(WHITE, background) >= contrast(BLACK, background):
        return WHITE
    return BLACK


def line_color(rank: int, least: float = 4) -> str:
    """The colour of a rank, darkened until its contrast with the page is `least`, as a line needs.

    Runs on: anywhere.
    """
    return _darkened(rank_color(rank), least)


def edge_color(fill: str) -> str:
    """The colour of the edge of a shape: of its fill, but darker where the fill is light.

    Runs on: anywhere.
    """
    return _darkened(fill, SHAPE_CONTRAST)


def filled(color: str) -> dict[str, Any]:
    """The colours of a shape as matplotlib's options; it has an edge where its fill is light.

    Runs on: anywhere.
    """
    edge = edge_color(color)
    if edge == color:
        return {"facecolor": color, "edgecolor": "none"}
    return {"facecolor": color, "edgecolor": edge, "linewidth": 0.8}


def _darkened(color: str, least: float) -> str:
    """A colour, or the lightest shade of it whose contrast with the page is `least`."""
    for twentieth in range(20):
        shade = blend(color, BLACK, twentieth / 20)
        if contrast(shade, PAGE) >= least:
            return shade
    return BLACK


def curve_color(place: int) -> str:
    """The colour of a curve by its place, which belongs to no rank; palette.py has names.

    Runs on: anywhere.
    """
    return CURVE_COLORS[place % len(CURVE_COLORS)]


def new_figure(
    width: float,
    height: float,
    layout: Literal["none", "constrained"] = "none",
    shown: bool = False,
) -> Drawing:
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
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from distlab.plotting.drawing import Drawing

    engine: ConstrainedLayoutEngine | Literal["none"] = "none"
    if layout == "constrained":
        engine = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    # Not inside style(): pyplot's first figure turns the notebook's display on, and the end of
    # style() would undo it.
    made = plt.figure(
        FigureClass=Drawing,
        figsize=(width, height),
        dpi=100,
        facecolor=PAGE,
        layout=engine,
    )
    figure = cast(Drawing, made)  # pyplot's types do not say that it makes a `FigureClass`
    if not shown:
        plt.close(figure)  # pyplot forgets it; it stays usable
    return figure


def style() -> AbstractContextManager[None]:
    """Matplotlib's settings for a figure of this project, for a block: `with style(): ...`.

    They start from matplotlib's defaults, so that a figure looks the same whatever the user's own
    settings are. Those are restored at the end. The block gives this look to a figure that you draw
    yourself, too.

    Runs on: the notebook's kernel.
    """
    import matplotlib.style  # rank_color must not need this import

    # the settings are in the file distlab.mplstyle
    return matplotlib.style.context("distlab.plotting.distlab", after_reset=True)
