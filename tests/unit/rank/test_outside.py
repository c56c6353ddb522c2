"""The advice about a peer that is no rank depends on the rank that calls."""

import pytest
import torch
import torch.distributed as dist

from distlab.errors import ArgumentError

NEXT = "The last rank has no next one: use (rank + 1) % world_size, or skip it."
PREVIOUS = "Rank 0 has no previous one: use (rank - 1) % world_size, or skip it."
COUNTED = "Ranks are counted from 0, and the last one is world_size - 1."
BELOW = "Use a rank below the number of ranks, which is 4 here."


@pytest.mark.parametrize(
    ("caller", "peer", "advice"),
    [
        (3, 4, NEXT),
        (0, 4, COUNTED),
        (0, -1, PREVIOUS),
        (2, -1, COUNTED),
        (3, 5, BELOW),
        (0, -2, BELOW),
    ],
)
def test_only_a_neighbour_is_called_one(layer, caller, peer, advice):
    dist.init_process_group("fake", store=dist.HashStore(), rank=caller, world_size=4)
    with pytest.raises(ArgumentError) as refused:
        dist.send(torch.ones(1), dst=peer)
    assert str(refused.value) == f"dst must be a rank from 0 to 3, got {peer}. {advice}"
