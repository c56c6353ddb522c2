"""Draws the maps among the diagrams. Called by: diagrams.py.

ranks, for lab 00: the driver, four ranks and what travels between them. agents and
launched_twice, for lab 08: two torchrun and their ranks, and a script that spawns, started without
and with torchrun. init_methods, for lab 30: who serves the store. backends, for lab 31: from
a call to the wire. house, for CONTRIBUTING.md: the processes of a cluster, the folders that run in
each of them, and what travels between them.

A map is 100 wide and 40 high.
"""

from itertools import combinations
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from distlab.plotting.style import INK, RANK_COLORS, new_figure, rank_color, style

ONE_WAY = "-|>"
BOTH_WAYS = "<|-|>"


class Process(NamedTuple):
    """A box in a map: its lower left corner and size, its name, and what is in it."""

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
    "checking/, comparison/  verdicts",
    "plotting/  every figure",
    "scripts/  the launcher, in its place",
)
RANK_LINES = (
    "rank/  log of calls, status,",
    "the watchdog that frees it",
    "simulated/  virtual clocks",
    "distlab_course/  what",
    "learners read and build",
)
HOUSE = (
    Process(0, 12, 34, 26, RANK_COLORS[0], "the notebook's kernel", KERNEL_LINES),
    Process(44, 29, 21, 9, RANK_COLORS[4], "the controller", ("launch/  ipyparallel's",)),
    Process(44, 17, 21, 9, RANK_COLORS[1], "the fork server", ("launch/  imports torch",)),
    Process(75, 12, 25, 26, RANK_COLORS[2], "rank 0 ... rank n - 1", RANK_LINES),
    Process(
        0, 0, 34, 9, RANK_COLORS[5], "the guard", ("launch/  ends what has lost its notebook",)
    ),
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


def draw_link(ax: Axes, one: Process, other: Process) -> None:
    """Draw an arrow with two heads from box to box, and not from middle to middle."""
    from_x, to_x = near_ends(one.x, other.x, one.width)
    from_y, to_y = near_ends(one.y, other.y, one.height)
    arrow(ax, from_x, from_y, to_x, to_y, BOTH_WAYS)


def near_ends(one: float, other: float, size: float) -> tuple[float, float]:
    """Where two boxes of a size, which begin at these places, are nearest to each other.

    Boxes that begin at the same place are nearest at their middles.
    """
    if one < other:
        return one + size, other
    if other < one:
        return one, other + size
    return one + size / 2, other + size / 2


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
        draw_link(ax, one, other)
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


def draw_agent(ax: Axes, x: float, group_rank: int, machine: str, part: str) -> None:
    """Draw a machine with its torchrun, which takes this part in the store, and its two ranks."""
    box(ax, x, -0.5, 46, 40, ec=INK, lw=1, linestyle="--")
    words(ax, x + 23, 38.6, f"machine {machine}", va="top")
    lines = (f"GROUP_RANK {group_rank}", part)
    Process(x + 3, 21, 40, 13, INK, "torchrun, an agent", lines).draw(ax)
    for local_rank in (0, 1):
        rank = 2 * group_rank + local_rank
        left = x + 3 + 22 * local_rank
        inside = (f"LOCAL_RANK {local_rank},", f"uses cuda:{local_rank}")
        Process(left, 1, 18, 13, rank_color(rank), f"RANK {rank}", inside).draw(ax)
        arrow(ax, left + 9, 21, left + 9, 14)
    words(ax, x + 23, 16.8, "starts")


def draw_agents(ax: Axes) -> None:
    """Two machines, on each a torchrun and the two ranks that it has started."""
    draw_agent(ax, 0, 0, "node-a", "serves the store")
    draw_agent(ax, 54, 1, "node-b", "a client of the store")
    arrow(ax, 57, 27.5, 43, 27.5)
    words(ax, 50, 28.2, "rendez-\nvous")


def draw_spawning(ax: Axes, x: float, name: str, line: str) -> None:
    """Draw a process of spawning.py and the two that it spawns, each with its own rank 0 or 1."""
    Process(x, 15, 27, 9.5, INK, name, (line,)).draw(ax)
    for rank in (0, 1):
        left = x + 14 * rank
        Process(left, 0, 13, 9.5, rank_color(rank), f"rank {rank}", ("calls demo",)).draw(ax)
        arrow(ax, left + 6.5, 15, left + 6.5, 9.5)


def draw_launched_twice(ax: Axes) -> None:
    """One script that spawns two ranks, started by python and started by torchrun."""
    words(ax, 13.5, 39.5, "python spawning.py", va="top")
    draw_spawning(ax, 0, "spawning.py", "spawns 2 ranks")
    words(ax, 70, 39.5, "torchrun --nproc-per-node 2 spawning.py", va="top")
    Process(56.5, 29.5, 27, 6.5, INK, "torchrun", ()).draw(ax)
    for number, x in enumerate((40.5, 73)):
        draw_spawning(ax, x, f"spawning.py, RANK {number}", "spawns 2 ranks")
        arrow(ax, 70, 29.5, x + 13.5, 24.5)


class InitMethod(NamedTuple):
    """An init method: who serves the store, and who tells a rank its number, and how."""

    left: float
    url: str
    store: str
    served: tuple[str, ...]
    number: str
    told_by: str


INIT_METHODS = (
    InitMethod(
        left=0,
        url="env://",
        store="the store",
        served=("MASTER_ADDR:MASTER_PORT,", "served by rank 0, or", "by the agent of torchrun"),
        number="RANK={}",
        told_by="a variable",
    ),
    InitMethod(
        left=34.5,
        url="tcp://10.0.0.7:29500",
        store="the store",
        served=("host and port are in the URL,", "served by rank 0"),
        number="rank={}",
        told_by="an argument",
    ),
    InitMethod(
        left=69,
        url="file:///shared/name",
        store="the file",
        served=("all ranks open it;", "nobody serves it"),
        number="rank={}",
        told_by="an argument",
    ),
)


def draw_init_methods(ax: Axes) -> None:
    """For each init method: where the store is, who serves it, and who numbers the ranks."""
    for method in INIT_METHODS:
        x = method.left
        words(ax, x + 15.5, 39.5, method.url, va="top")
        Process(x, 19, 31, 17, INK, method.store, method.served).draw(ax)
        for rank, left in enumerate((x, x + 17)):
            told = (method.number.format(rank), method.told_by)
            Process(left, 0, 14, 12.5, rank_color(rank), f"rank {rank}", told).draw(ax)
            arrow(ax, left + 7, 12.5, left + 7, 19)


def draw_backend(ax: Axes, y: float, name: str, work: str, transport: str) -> None:
    """Draw a backend with its work, between the process group and what carries the bytes."""
    Process(57, y, 23, 11, INK, name, (work,)).draw(ax)
    box(ax, 86, y, 14, 11, ec=INK, lw=1.6)
    words(ax, 93, y + 5.5, transport, va="center")
    arrow(ax, 48, 18.5, 57, y + 5.5)
    arrow(ax, 80, y + 5.5, 86, y + 5.5)


def draw_backends(ax: Axes) -> None:
    """From dist.all_reduce to what carries the bytes."""
    Process(0, 11.5, 20, 14, INK, "dist.all_reduce", ("(tensor, group=...)", "your call")).draw(ax)
    has = ("a list of ranks, and", "a backend for each", "kind of device")
    Process(27, 10, 21, 17, INK, "ProcessGroup", has).draw(ax)
    draw_backend(ax, 27, "ProcessGroupGloo", "allreduce, in C++", "TCP,\nby the CPU")
    nccl_transports = "NVLink, PCIe,\nInfiniBand, TCP"
    draw_backend(ax, 13, "ProcessGroupNCCL", "allreduce, in C++", nccl_transports)
    draw_backend(ax, -1, "a class of yours", "allreduce, in Python", "MPI, a store,\nanything else")
    arrow(ax, 20, 18.5, 27, 18.5)
    words(ax, 68.5, 41, "backends", va="top")
    words(ax, 93, 41, "transports", va="top")
    words(ax, 51, 26.5, "cpu")
    words(ax, 53.2, 18.9, "cuda")


ALL = (draw_ranks, draw_agents, draw_launched_twice, draw_init_methods, draw_backends, draw_house)
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
