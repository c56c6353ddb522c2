"""Draws figs/ranks.svg and .png for notebook 00: the driver, four ranks and what travels between them.

Called by: make figs.
"""

from itertools import combinations
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from distlab.plotting.style import INK, new_figure, rank_color, style

FIGS = Path(__file__).resolve().parent.parent / "figs"
WIDTH, HEIGHT = 17, 12  # of a rank's box
CORNERS = ((47, 21), (79, 21), (47, 2), (79, 2))  # of the ranks' boxes, lower left
DRIVER = ("the notebook's own process,", "which is not a rank", "", "%%px, cluster.run,", "push, pull")


def box(ax: Axes, x: float, y: float, width: float, height: float, color: str, **options: object) -> None:
    """Draw an empty box with round corners."""
    shape = "round,pad=0,rounding_size=1.2"
    ax.add_patch(FancyBboxPatch((x, y), width, height, shape, fc="none", ec=color, **{"lw": 1.6, **options}))


def main() -> None:
    """Draw the picture."""
    with style():
        figure = new_figure(7.4, 3.1)
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set(xlim=(-1, 101), ylim=(-1.5, 41))
        ax.axis("off")
        box(ax, 0, 7, 27, 22, INK)
        ax.text(1.5, 27.6, "driver", color=INK, weight="bold", va="top", fontsize=10)
        for row, line in enumerate(DRIVER):
            ax.text(1.5, 23 - 3.1 * row, line, color=INK, va="top", fontsize=8)
        box(ax, 42, -0.5, 58, 40, INK, lw=1, linestyle="--")
        ax.text(71, 38, "process group: world_size 4, backend gloo", color=INK, ha="center", va="top", fontsize=8)
        arrow = {"arrowstyle": "-|>", "color": INK, "lw": 1, "shrinkA": 1, "shrinkB": 1}
        for y, start, end, words, at in (
            (20, 27, 42, "code,\nvalues", "bottom"),
            (16, 42, 27, "output,\nerrors", "top"),
        ):
            ax.annotate("", (end, y), (start, y), arrowprops=arrow)
            ax.text(34.5, y + (0.8 if at == "bottom" else -0.8), words, color=INK, ha="center", va=at, fontsize=8)
        centers = [(x + WIDTH / 2, y + HEIGHT / 2) for x, y in CORNERS]
        for (x, y), (to_x, to_y) in combinations(centers, 2):
            side, up = (to_x > x) - (to_x < x), (to_y > y) - (to_y < y)  # from box to box, not from middle to middle
            gap_x, gap_y = side * WIDTH / 2, up * HEIGHT / 2
            link = {**arrow, "arrowstyle": "<|-|>"}
            ax.annotate("", (to_x - gap_x, to_y - gap_y), (x + gap_x, y + gap_y), arrowprops=link)
        for rank, (x, y) in enumerate(CORNERS):
            box(ax, x, y, WIDTH, HEIGHT, rank_color(rank))
            name = {"color": rank_color(rank), "weight": "bold", "va": "top", "fontsize": 10}
            ax.text(x + 1.5, y + HEIGHT - 1.4, f"rank {rank}", **name)
            for row, line in enumerate(("own process,", "own memory")):
                ax.text(x + 1.5, y + HEIGHT - 5.4 - 3.2 * row, line, color=INK, va="top", fontsize=7.5)
        ax.text(71.5, 30, "messages", color=INK, ha="center", va="bottom", fontsize=8)
        for kind, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
            figure.savefig(FIGS / f"ranks.{kind}", transparent=True, dpi=150, metadata=metadata)


if __name__ == "__main__":
    main()
