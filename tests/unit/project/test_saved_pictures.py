"""Pictures that are saved in notebooks: smaller, and in the colours in which they were drawn."""

import base64
import io

from PIL import Image, ImageDraw

from distlab.plotting import style
from tools.notebooks import fewer_colors


def drawn():
    """A picture with an area of each colour, and 10,000 others, as smooth edges make them."""
    picture = Image.new("RGBA", (600, 400), "white")
    pen = ImageDraw.Draw(picture)
    for number in range(10_000):
        shade = (number % 256, number // 256, 128)
        pen.point((number % 100, 300 + number // 100), shade)
    colors = [*style.RANK_COLORS, style.FAINT, "#A3B1BC"]
    for place, color in enumerate(colors):
        pen.rectangle((60 * place, 0, 60 * place + 50, 200), color)
    return picture, colors


def test_areas_keep_their_colours():
    """Two greys that a legend tells apart are told apart in the saved picture, too."""
    picture, colors = drawn()
    content = io.BytesIO()
    picture.save(content, "PNG")
    png = base64.b64encode(content.getvalue()).decode()
    smaller = fewer_colors(png)
    assert len(smaller) < len(png)
    saved = Image.open(io.BytesIO(base64.b64decode(smaller))).convert("RGB")
    found = [saved.getpixel((60 * place + 25, 100)) for place in range(len(colors))]
    assert found == [style.channels(color) for color in colors]
