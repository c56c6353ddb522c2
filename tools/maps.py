"""Draws the two maps, as .svg and .png in figs/. Called by: make figs.

ranks, for notebook 00: the driver, four ranks and what travels between them. house, for CONTRIBUTING.md: the processes
of a cluster, the folders that run in each of them, and what travels between them.
"""

from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from distlab.plotting.style import CYCLE, INK, new_figure, rank_color, style

FIGS = Path(__file__).resolve().parent.parent / "figs"
ONE_WAY, BOTH_WAYS = "-|>", "<|-|>"


class Process(NamedTuple):
    """A box: its lower left corner and size, in a map of 100 x 40; its name, and what stands in it."""

    x: float
    y: float
    width: float
    height: float
    color: str
    name: str
    lines: tuple[str, ...]

    def draw(self, ax: Axes) -> None:
        """Draw it with its text."""
        box(ax, self.x, self.y, self.width, self.height, ec=self.color, lw=1.6)
        top = self.y + self.height
        ax.text(self.x + 1.5, top - 1.4, self.name, color=self.color, weight="bold", va="top", fontsize=9.5)
        for row, line in enumerate(self.lines):
            ax.text(self.x + 1.5, top - 5.2 - 3.2 * row, line, color=INK, va="top", fontsize=7.5)


DRIVER_LINES = ("the notebook's own process,", "which is not a rank", "", "%%px, cluster.run,", "push, pull")
DRIVER = Process(0, 7, 27, 22, INK, "driver", DRIVER_LINES)
CORNERS = ((47, 21), (79, 21), (47, 2), (79, 2))
RANKS = [
    Process(x, y, 17, 12, rank_color(rank), f"rank {rank}", ("own process,", "own memory"))
    for rank, (x, y) in enumerate(CORNERS)
]
KERNEL_LINES = (
    "client/  Cluster, %%px, waiting, display",
    "diagnosis/  who waits for whom",
    "measure/, traces/  times and timelines",
    "plotting/  every figure",
)
RANK_LINES = (
    "rank/  log of calls, status,",
    "the watchdog that frees it",
    "simulated/  virtual clocks",
    "distlab_course/  what",
    "learners read and build",
)
HOUSE = (
    Process(0, 12, 34, 26, CYCLE[0], "the notebook's kernel", KERNEL_LINES),
    Process(44, 29, 21, 9, CYCLE[4], "the controller", ("of ipyparallel",)),
    Process(44, 17, 21, 9, CYCLE[1], "the fork server", ("launch/  imports torch",)),
    Process(75, 12, 25, 26, CYCLE[2], "rank 0 ... rank n - 1", RANK_LINES),
    Process(0, 0, 34, 9, CYCLE[5], "the guard", ("launch/  ends what has lost its notebook",)),
)


def box(ax: Axes, x: float, y: float, width: float, height: float, **options: object) -> None:
    """Draw an empty box with round corners."""
    ax.add_patch(FancyBboxPatch((x, y), width, height, "round,pad=0,rounding_size=1.2", fc="none", **options))


def arrow(ax: Axes, x: float, y: float, to_x: float, to_y: float, heads: str = ONE_WAY) -> None:
    """Draw an arrow from a point to another."""
    ends = {"arrowstyle": heads, "color": INK, "lw": 1, "shrinkA": 1, "shrinkB": 1}
    ax.annotate("", (to_x, to_y), (x, y), arrowprops=ends)


def words(ax: Axes, x: float, y: float, text: str, va: str = "bottom") -> None:
    """Write what travels, or what a group is, in the middle of a place."""
    ax.text(x, y, text, color=INK, ha="center", va=va, fontsize=7.5)


def draw_ranks(ax: Axes) -> None:
    """The driver and a process group of four ranks, each of which sends to each."""
    DRIVER.draw(ax)
    box(ax, 42, -0.5, 58, 40, ec=INK, lw=1, linestyle="--")
    words(ax, 71, 38, "process group: world_size 4, backend gloo", va="top")
    arrow(ax, 27, 20, 42, 20)
    words(ax, 34.5, 20.8, "code,\nvalues")
    arrow(ax, 42, 16, 27, 16)
    words(ax, 34.5, 15.2, "output,\nerrors", va="top")
    for one, other in combinations(RANKS, 2):
        side, up = (other.x > one.x) - (other.x < one.x), (other.y > one.y) - (other.y < one.y)
        half_x, half_y = one.width / 2, one.height / 2
        from_x, from_y = one.x + half_x * (1 + side), one.y + half_y * (1 + up)  # from box to box, not from its middle
        arrow(ax, from_x, from_y, other.x + half_x * (1 - side), other.y + half_y * (1 - up), BOTH_WAYS)
    for rank in RANKS:
        rank.draw(ax)
    words(ax, 71.5, 30, "messages")


def draw_house(ax: Axes) -> None:
    """The processes of a cluster, with the folders of the package that run there."""
    for process in HOUSE:
        process.draw(ax)
    arrow(ax, 34, 33.5, 44, 33.5, BOTH_WAYS)
    words(ax, 39, 34.5, "cells")
    arrow(ax, 65, 33.5, 75, 33.5, BOTH_WAYS)
    words(ax, 70, 34.5, "output,\nvalues")
    arrow(ax, 34, 21.5, 44, 21.5)
    words(ax, 39, 22.5, "orders")
    arrow(ax, 65, 21.5, 75, 21.5)
    words(ax, 70, 22.5, "forks")
    arrow(ax, 34, 14.2, 75, 14.2, BOTH_WAYS)
    words(ax, 54.5, 12, "wire/  what does the rank do?  free it")
    arrow(ax, 17, 9, 17, 12)
    ax.text(44, 4, "in all of them: wire/  errors.py  compat/", color=INK, fontsize=7.5)


def main() -> None:
    """Draw both."""
    for name, draw in (("ranks", draw_ranks), ("house", draw_house)):
        with style():
            figure = new_figure(7.4, 3.1)
            ax = figure.add_axes((0, 0, 1, 1))
            ax.set(xlim=(-1, 101), ylim=(-1.5, 41))
            ax.axis("off")
            draw(ax)
            for kind, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
                figure.savefig(FIGS / f"{name}.{kind}", transparent=True, dpi=150, metadata=metadata)


if __name__ == "__main__":
    main()
