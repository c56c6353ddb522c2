"""State pictures from the tensors of real ranks: before and after each collective, and a ring step by step."""

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


def ring_with_snapshots(rank, n):
    """The chunked ring on one number a chunk; what this rank held before each step and at the end."""
    chunks = torch.full((n,), 10**rank)
    snapshots = [chunks.tolist()]
    for step in range(2 * (n - 1)):
        first = rank - step if step < n - 1 else rank + 1 - (step - n + 1)
        sent, got = first % n, (first - 1) % n
        arrived = torch.zeros(1, dtype=chunks.dtype)
        work = dist.isend(chunks[sent : sent + 1].clone(), (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        work.wait()
        chunks[got] = chunks[got] + arrived if step < n - 1 else arrived
        snapshots.append(chunks.tolist())
    return snapshots


def test_a_ring_step_by_step_from_the_ranks_own_tensors(usable):
    """States that the ranks report are drawn with their values: each rank's own at first, the sum at last."""
    states = list(zip(*usable.run(ring_with_snapshots), strict=True))
    messages = [[(r, (r + 1) % 4, (r - step if step < 3 else r + 4 - step) % 4) for r in range(4)] for step in range(6)]
    texts = [text.get_text() for text in plotting.steps(states, messages).axes[0].texts]
    assert texts[texts.index("end") :].count("1111") == 16
    assert [texts[: texts.index("step 2")].count(str(10**rank)) for rank in (1, 2, 3)] == [4] * 3
