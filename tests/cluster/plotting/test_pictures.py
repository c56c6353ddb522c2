"""State pictures from the tensors of real ranks: before and after each collective."""

import matplotlib
import pytest
import torch
import torch.distributed as dist
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch

from distlab import plotting
from distlab.plotting.style import MIXED, rank_color


@pytest.fixture(autouse=True, scope="module")
def headless():
    """Draw without a screen."""
    before = matplotlib.get_backend()
    matplotlib.use("agg")
    yield
    matplotlib.use(before)


def collectives(rank, n):
    """What this rank held before and after each collective, by name; None where it holds nothing."""
    own, many = torch.tensor([10**rank]), [torch.tensor([100 * (rank + 1) + k]) for k in range(n)]
    found = {}

    def note(name, before, after):
        found[name] = before, after

    for name, call in (("broadcast", lambda t: dist.broadcast(t, 1)), ("all_reduce", dist.all_reduce)):
        tensor = own.clone()
        call(tensor)
        note(name, own, tensor)
    tensor = own.clone()
    dist.reduce(tensor, 2)
    note("reduce", own, tensor if rank == 2 else "?")  # the others hold partial sums
    tensor = torch.zeros_like(own)
    dist.scatter(tensor, many if rank == 0 else None, 0)
    note("scatter", many if rank == 0 else None, tensor)
    parts = [torch.zeros_like(own) for _ in range(n)]
    dist.gather(own, parts if rank == 3 else None, 3)
    note("gather", own, parts if rank == 3 else None)
    parts = [torch.zeros_like(own) for _ in range(n)]
    dist.all_gather(parts, own)
    note("all_gather", own, parts)
    tensor, mine = torch.zeros_like(own), [k + own for k in range(n)]
    dist.reduce_scatter(tensor, [t.clone() for t in mine])
    note("reduce_scatter", mine, tensor)
    tensor, mine = torch.zeros(n, dtype=own.dtype), torch.cat(many)
    dist.all_to_all_single(tensor, mine)
    note("all_to_all", mine, tensor)
    return found


def fills(figure):
    """The colours of the cells, in the order of drawing."""
    cells = [patch for patch in figure.axes[0].patches if isinstance(patch, FancyBboxPatch)]
    return [to_hex(cell.get_facecolor(), keep_alpha=True).upper()[:9] for cell in cells]


def test_before_and_after_of_every_collective(usable):
    """After each collective, a cell has the colour of the rank that its value came from, dark where it is a sum."""
    own, empty, unknown, dark = [rank_color(r) for r in range(4)], "#00000000", "#00000000", f"{MIXED}FF"
    own = [f"{color}FF" for color in own]
    each = [color for color in own for _ in range(4)]
    expected = {
        "broadcast": own + [own[1]] * 4,
        "all_reduce": own + [dark] * 4,
        "reduce": [*own, unknown, unknown, dark, unknown],
        "scatter": [own[0]] * 4 + [empty] * 12 + [own[0]] * 4,
        "gather": own + [empty] * 12 + own,
        "all_gather": own + own * 4,
        "reduce_scatter": each + [dark] * 4,
        "all_to_all": each + own * 4,
    }
    found = usable.run(collectives)
    assert set(found[0]) == set(expected)
    for name, colors in expected.items():
        figure = plotting.before_after([row[name][0] for row in found], [row[name][1] for row in found], name)
        assert fills(figure) == colors, name
