"""Draws figs/house.svg and .png for CONTRIBUTING.md: the processes of a cluster, the folders that run in each of them,
and what travels between them. Called by: make figs.
"""

from pathlib import Path

from matplotlib.patches import FancyBboxPatch

from distlab.plotting.style import CYCLE, INK, new_figure, style

FIGS = Path(__file__).resolve().parent.parent / "figs"
NO_DATE = {"Date": None}
# a process: x, y, width, height of its box, colour, name, what runs in it
PROCESSES = (
    (0, 12, 34, 26, 0, "the notebook's kernel", (
        "client/  Cluster, %%px, waiting, display",
        "diagnosis/  who waits for whom",
        "measure/  timing, sweeps, traces",
        "plotting/  every figure",
    )),
    (44, 29, 21, 9, 4, "the controller", ("of ipyparallel",)),
    (44, 17, 21, 9, 1, "the fork server", ("launch/  imports torch",)),
    (75, 12, 25, 26, 2, "rank 0 ... rank n - 1", (
        "rank/  log of calls, status,",
        "the watchdog that frees it",
        "simulated/  virtual clocks",
        "course/  what learners",
        "read and build",
    )),
    (0, 0, 34, 9, 5, "the reaper", ("launch/  ends what has lost its notebook",)),
)  # fmt: skip
# what travels: from x, y, to x, y, heads of the arrow, words, their x, y
MESSAGES = (
    (34, 33.5, 44, 33.5, "<|-|>", "cells", 39, 34.5),
    (65, 33.5, 75, 33.5, "<|-|>", "output,\nvalues", 70, 34.5),
    (34, 21.5, 44, 21.5, "-|>", "orders", 39, 22.5),
    (65, 21.5, 75, 21.5, "-|>", "forks", 70, 22.5),
    (34, 14.2, 75, 14.2, "<|-|>", "wire/  what does the rank do?  free it", 54.5, 12.0),
    (17, 9, 17, 12, "-|>", "", 0, 0),
)


def main() -> None:
    """Draw the picture."""
    with style():
        figure = new_figure(7.4, 3.1)
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set(xlim=(-1, 101), ylim=(-1.5, 41))
        ax.axis("off")
        for x, y, width, height, color, name, lines in PROCESSES:
            outline = {"fc": "none", "ec": CYCLE[color], "lw": 1.6}
            box = FancyBboxPatch((x, y), width, height, "round,pad=0,rounding_size=1.2", **outline)
            ax.add_patch(box)
            ax.text(x + 1.5, y + height - 1.4, name, color=CYCLE[color], weight="bold", va="top", fontsize=9)
            for row, line in enumerate(lines):
                ax.text(x + 1.5, y + height - 5.4 - 3.4 * row, line, color=INK, va="top", fontsize=7.5)
        for x, y, to_x, to_y, heads, words, at_x, at_y in MESSAGES:
            arrow = {"arrowstyle": heads, "color": INK, "lw": 1, "shrinkA": 1, "shrinkB": 1}
            ax.annotate("", (to_x, to_y), (x, y), arrowprops=arrow)
            ax.text(at_x, at_y, words, color=INK, ha="center", va="bottom", fontsize=7.5)
        ax.text(44, 4, "in all of them: wire/  errors.py  compat/", color=INK, fontsize=7.5)
        for name in ("house.svg", "house.png"):
            figure.savefig(FIGS / name, transparent=True, dpi=150, metadata=NO_DATE if name == "house.svg" else {})


if __name__ == "__main__":
    main()
