"""A few plain shapes that are drawn alike by matplotlib and as SVG text.

Called by `stepping` and `player`. Runs in the notebook's process. Lengths in pixels, y points down.
The SVG text is made here and not by matplotlib: the same shapes give the same bytes under every version of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from matplotlib import patches
from matplotlib.axes import Axes
from matplotlib.path import Path

from distlab.plotting.style import INK

DPI = 100  # pixels per inch
FONT = "DejaVu Sans"
Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A rectangle with round corners; a `fill` or an `edge` of "none" is not drawn."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    edge: str = "none"
    radius: float = 0.0
    opacity: float = 1.0

    def svg(self) -> str:
        corner = f' rx="{_n(self.radius)}"' if self.radius else ""
        outline = f' stroke="{self.edge}"' if self.edge != "none" else ""
        tint = f' opacity="{self.opacity}"' if self.opacity < 1 else ""
        place = f'x="{_n(self.x)}" y="{_n(self.y)}" width="{_n(self.width)}" height="{_n(self.height)}"'
        return f'<rect {place}{corner} fill="{self.fill}"{outline}{tint}/>'

    def draw(self, ax: Axes, dx: float, dy: float) -> None:
        style = f"round,pad=0,rounding_size={self.radius}" if self.radius else "square,pad=0"
        corner, look = (self.x + dx, self.y + dy), {"facecolor": self.fill, "edgecolor": self.edge, "linewidth": 0.72}
        alpha = self.opacity if self.opacity < 1 else None  # a number would make "none" opaque
        ax.add_patch(patches.FancyBboxPatch(corner, self.width, self.height, boxstyle=style, alpha=alpha, **look))


@dataclass(frozen=True)
class Curve:
    """A cubic Bézier curve from the first point to the last."""

    points: tuple[Point, Point, Point, Point]
    color: str
    width: float = 1.6

    def svg(self) -> str:
        (x0, y0), *rest = self.points
        path = f"M{_n(x0)} {_n(y0)}C{' '.join(f'{_n(x)} {_n(y)}' for x, y in rest)}"
        return f'<path d="{path}" fill="none" stroke="{self.color}" stroke-width="{_n(self.width)}"/>'

    def draw(self, ax: Axes, dx: float, dy: float) -> None:
        path = Path([(x + dx, y + dy) for x, y in self.points], [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
        look = {"facecolor": "none", "edgecolor": self.color, "linewidth": self.width * 72 / DPI}
        ax.add_patch(patches.PathPatch(path, capstyle="butt", **look))


@dataclass(frozen=True)
class Polygon:
    """A filled polygon."""

    points: tuple[Point, ...]
    fill: str

    def svg(self) -> str:
        return f'<polygon points="{" ".join(f"{_n(x)},{_n(y)}" for x, y in self.points)}" fill="{self.fill}"/>'

    def draw(self, ax: Axes, dx: float, dy: float) -> None:
        ax.add_patch(patches.Polygon([(x + dx, y + dy) for x, y in self.points], facecolor=self.fill, edgecolor="none"))


@dataclass(frozen=True)
class Disc:
    """A filled circle."""

    x: float
    y: float
    radius: float
    fill: str

    def svg(self) -> str:
        return f'<circle cx="{_n(self.x)}" cy="{_n(self.y)}" r="{_n(self.radius)}" fill="{self.fill}"/>'

    def draw(self, ax: Axes, dx: float, dy: float) -> None:
        ax.add_patch(patches.Circle((self.x + dx, self.y + dy), self.radius, facecolor=self.fill, edgecolor="none"))


@dataclass(frozen=True)
class Label:
    """A line of text, its middle at y; `anchor` is "start", "middle" or "end"."""

    x: float
    y: float
    text: str
    size: float = 13.0
    color: str = INK
    anchor: str = "start"
    bold: bool = False

    def svg(self) -> str:
        weight = ' font-weight="bold"' if self.bold else ""
        place = f'x="{_n(self.x)}" y="{_n(self.y)}" dy=".35em" text-anchor="{self.anchor}"'
        return f'<text {place} font-size="{_n(self.size)}"{weight} fill="{self.color}">{escape(self.text)}</text>'

    def draw(self, ax: Axes, dx: float, dy: float) -> None:
        # All that the user's settings could change is given.
        look = {"family": FONT, "fontsize": self.size * 72 / DPI, "weight": "bold" if self.bold else "normal"}
        side = {"start": "left", "middle": "center", "end": "right"}[self.anchor]
        look |= {"ha": side, "va": "center_baseline", "color": self.color, "usetex": False, "parse_math": False}
        ax.text(self.x + dx, self.y + dy, self.text, **look)


@dataclass(frozen=True)
class Group:
    """Shapes, or groups of them, moved together; `marks` are attributes by which a script finds them in the SVG."""

    parts: Sequence[Box | Curve | Polygon | Disc | Label | Group]
    x: float = 0.0
    y: float = 0.0
    marks: dict[str, str] = field(default_factory=dict)

    def svg(self) -> str:
        marks = "".join(f' {name}="{escape(value)}"' for name, value in self.marks.items())
        move = f' transform="translate({_n(self.x)} {_n(self.y)})"' if self.x or self.y else ""
        return f"<g{marks}{move}>{''.join(part.svg() for part in self.parts)}</g>"

    def draw(self, ax: Axes, dx: float, dy: float) -> None:
        for part in self.parts:
            part.draw(ax, dx + self.x, dy + self.y)


def svg_text(parts: Iterable[Group | Label | Box], width: float, height: float) -> str:
    """A whole SVG file, in ASCII."""
    size = f'width="{_n(width)}" height="{_n(height)}" viewBox="0 0 {_n(width)} {_n(height)}"'
    body = "".join(part.svg() for part in parts)
    font = f'font-family="{FONT},Verdana,sans-serif"'
    text = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>'
    return f"{text}{body}</svg>".encode("ascii", "xmlcharrefreplace").decode("ascii")


def _n(number: float) -> str:
    """A number with at most two decimals."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
