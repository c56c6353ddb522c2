"""Labs 00 and 02: which rank waits for which, as the report of a deadlock says.

Runs in the notebook's kernel. Lengths are in inches.
"""

import re

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from distlab.arguments import refuse
from distlab.plotting.cells import canvas, draw_box, draw_text
from distlab.plotting.style import line_color, rank_color, style

WIDTH, HEIGHT, APART = 0.86, 0.36, 1.5  # of a rank's box; from one to the next
# from the middle of a box to an arrow; how far it bends, as a share of its length
ASIDE, BOW = 0.18, 0.24


def who_waits(report: object, title: str = "who waits for whom") -> Figure:
    """Draw an arrow from each rank to the rank that it waits for; ranks that have finished are
    outlines.

    Arrows to the right run above the ranks, those to the left below them.

    Args:
        report: a DeadlockError about messages between two ranks.
        title: of the figure.
    """
    waiting, finished = getattr(report, "failures", ()), getattr(report, "finished", ())
    peers = {one.rank: re.search(r"\b(?:src|dst)=(\d+)", one.message) for one in waiting}
    waits = {rank: int(peer[1]) for rank, peer in peers.items() if peer}
    if not waits:
        refuse(
            "report",
            "the report of ranks that wait for messages",
            report,
            "Run the cell that deadlocks once more.",
        )
    lefts = {
        rank: place * APART
        for place, rank in enumerate(sorted({*waits, *waits.values(), *finished}))
    }
    reach = {
        sign: [sign * (lefts[other] - lefts[rank]) for rank, other in waits.items()]
        for sign in (1, -1)
    }
    above = not any(span > 0 for span in reach[1])  # where no arrow is, there is room for a word
    top = max(0.3 * above, 0.1 + BOW / 2 * max(0.0, *reach[1], 0.0))
    below = max(0.3 * (not above), 0.1 + BOW / 2 * max(0.0, *reach[-1], 0.0))
    figure, ax = canvas(max(lefts.values()) + WIDTH, top + HEIGHT + below, title)
    rows = [f"rank {rank} waits for rank {other}" for rank, other in sorted(waits.items())]
    rows += [f"rank {rank} has finished" for rank in sorted(finished)]
    figure.alt = f"{title}: {', '.join(rows)}"
    with style():
        for rank, left in lefts.items():
            fill = "none" if rank in finished else rank_color(rank)
            draw_box(ax, left, top, WIDTH, HEIGHT, f"rank {rank}", fill, 12)
            if rank in finished:
                ax.patches[-1].set(edgecolor=line_color(rank), linestyle=(0, (3, 2)), linewidth=1.4)
                place = top - 0.14 if above else top + HEIGHT + 0.16
                draw_text(ax, left + WIDTH / 2, place, "finished", fontsize=10)
        for rank, other in waits.items():
            side = 1 if other > rank else -1
            ends = [lefts[rank] + WIDTH / 2 + side * ASIDE, lefts[other] + WIDTH / 2 - side * ASIDE]
            points = [(x, top if side > 0 else top + HEIGHT) for x in ends]
            look = {
                "arrowstyle": "-|>",
                "mutation_scale": 14,
                "linewidth": 1.8,
                "color": line_color(rank),
            }
            ax.add_patch(
                FancyArrowPatch(
                    *points, connectionstyle=f"arc3,rad={-BOW}", shrinkA=1, shrinkB=1, **look
                )
            )
    return figure
