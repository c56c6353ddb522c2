"""Draws the maps among the diagrams. Called by: diagrams.py.

ranks, for lab 00: the driver, four ranks and what travels between them. agents, for lab 08: two
torchrun and their ranks. init_methods, for lab 30: who serves the store. backends, for lab 31: from
a call to the wire. house, for CONTRIBUTING.md: the processes of a cluster, the folders that run in
each of them, and what travels between them.
"""

from itertools import combinations
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from distlab.plotting.style import CYCLE, INK, new_figure, rank_color, style

ONE_WAY = "-|>"
BOTH_WAYS = "<|-|>"


class Process(NamedTuple):
    """A box in a map of 100 x 40: its lower left corner and size, its name, and what is in it."""

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
        ax.text(
            self.x + 1.5,
            top - 1.4,
            self.name,
            color=self.color,
            weight="bold",
            va="top",
            fontsize=9.5,
        )
        for row, line in enumerate(self.lines):
            ax.text(self.x + 1.5, top - 5.2 - 3.2 * row, line, color=INK, va="top", fontsize=7.5)


DRIVER_LINES = (
    "the notebook's own process,",
    "which is not a rank",
    "",
    "%%px, cluster.run,",
    "push, pull",
)
DRIVER = Process(0, 7, 27, 22, INK, "driver", DRIVER_LINES)
CORNERS = ((47, 21), (79, 21), (47, 2), (79, 2))
RANKS = [
    Process(x, y, 17, 12, rank_color(rank), f"rank {rank}", ("own process,", "own memory"))
    for rank, (x, y) in enumerate(CORNERS)
]
KERNEL_LINES = (
    "notebook/  Cluster, %%px, waiting, display",
    "diagnosis/  who waits for whom",
    "measure/, traces/  times and timelines",
    "checking/  answers and verdicts",
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
    Process(44, 29, 21, 9, CYCLE[4], "the controller", ("launch/  ipyparallel's",)),
    Process(44, 17, 21, 9, CYCLE[1], "the fork server", ("launch/  imports torch",)),
    Process(75, 12, 25, 26, CYCLE[2], "rank 0 ... rank n - 1", RANK_LINES),
    Process(0, 0, 34, 9, CYCLE[5], "the guard", ("launch/  ends what has lost its notebook",)),
)


def box(ax: Axes, x: float, y: float, width: float, height: float, **options: object) -> None:
    """Draw an empty box with round corners."""
    ax.add_patch(
        FancyBboxPatch((x, y), width, height, "round,pad=0,rounding_size=1.2", fc="none", **options)
    )


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
        side = (other.x > one.x) - (other.x < one.x)
        up = (other.y > one.y) - (other.y < one.y)
        half_x = one.width / 2
        half_y = one.height / 2
        # from box to box, not from its middle
        from_x = one.x + half_x * (1 + side)
        from_y = one.y + half_y * (1 + up)
        arrow(
            ax,
            from_x,
            from_y,
            other.x + half_x * (1 - side),
            other.y + half_y * (1 - up),
            BOTH_WAYS,
        )
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


def draw_agents(ax: Axes) -> None:
    """Two machines, on each a torchrun and the two ranks that it has started."""
    for number, (x, machine) in enumerate(((0, "node-a"), (54, "node-b"))):
        box(ax, x, -0.5, 46, 40, ec=INK, lw=1, linestyle="--")
        words(ax, x + 23, 38.6, f"machine {machine}", va="top")
        lines = (
            f"GROUP_RANK {number}",
            "serves the store" if number == 0 else "a client of the store",
        )
        Process(x + 3, 21, 40, 13, INK, "torchrun, an agent", lines).draw(ax)
        for local in (0, 1):
            rank = 2 * number + local
            left = x + 3 + 22 * local
            inside = (f"LOCAL_RANK {local},", f"uses cuda:{local}")
            Process(left, 1, 18, 13, rank_color(rank), f"RANK {rank}", inside).draw(ax)
            arrow(ax, left + 9, 21, left + 9, 14)
        words(ax, x + 23, 16.8, "starts")
    arrow(ax, 57, 27.5, 43, 27.5)
    words(ax, 50, 28.2, "rendez-\nvous")


def draw_init_methods(ax: Axes) -> None:
    """For each init method: where the store is, who serves it, and who numbers the ranks."""
    for x, method, store, number in (
        (
            0,
            "env://",
            ("MASTER_ADDR:MASTER_PORT,", "served by rank 0, or", "by the agent of torchrun"),
            "RANK=1",
        ),
        (
            34.5,
            "tcp://10.0.0.7:29500",
            ("host and port are in the URL,", "served by rank 0"),
            "rank=1",
        ),
        (69, "file:///shared/name", ("all ranks open it;", "nobody serves it"), "rank=1"),
    ):
        words(ax, x + 15.5, 39.5, method, va="top")
        Process(x, 19, 31, 17, INK, "the file" if "file" in method else "the store", store).draw(ax)
        for rank, left in enumerate((x, x + 17)):
            told = (
                number.replace("1", str(rank)),
                "a variable" if number[0] == "R" else "an argument",
            )
            Process(left, 0, 14, 12.5, rank_color(rank), f"rank {rank}", told).draw(ax)
            arrow(ax, left + 7, 12.5, left + 7, 19)


def draw_backends(ax: Axes) -> None:
    """From dist.all_reduce to what carries the bytes."""
    Process(0, 11.5, 20, 14, INK, "dist.all_reduce", ("(tensor, group=...)", "your call")).draw(ax)
    has = ("a list of ranks, and", "a backend for each", "kind of device")
    Process(27, 10, 21, 17, INK, "ProcessGroup", has).draw(ax)
    for y, name, work, carrier in (
        (27, "ProcessGroupGloo", "allreduce, in C++", "TCP,\nby the CPU"),
        (13, "ProcessGroupNCCL", "allreduce, in C++", "NVLink, PCIe,\nInfiniBand, TCP"),
        (-1, "a class of yours", "allreduce, in Python", "MPI, a store,\nanything else"),
    ):
        Process(57, y, 23, 11, INK, name, (work,)).draw(ax)
        box(ax, 86, y, 14, 11, ec=INK, lw=1.6)
        words(ax, 93, y + 5.5, carrier, va="center")
        arrow(ax, 48, 18.5, 57, y + 5.5)
        arrow(ax, 80, y + 5.5, 86, y + 5.5)
    arrow(ax, 20, 18.5, 27, 18.5)
    words(ax, 68.5, 41, "backends", va="top")
    words(ax, 93, 41, "transports", va="top")
    words(ax, 51, 26.5, "cpu")
    words(ax, 53.2, 18.9, "cuda")


ALL = (draw_ranks, draw_agents, draw_init_methods, draw_backends, draw_house)
MAPS = {function.__name__.removeprefix("draw_"): function for function in ALL}


def draw(name: str) -> Figure:
    """Draw the map of that name."""
    with style():
        figure = new_figure(7.4, 3.1)
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set(xlim=(-1, 101), ylim=(-1.5, 41))
        ax.axis("off")
        MAPS[name](ax)
    return figure
