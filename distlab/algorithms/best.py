"""The all-reduce that chooses: the quickest of the others for a size, a group and the place where it runs.

Runs on every rank of the group; `choose` anywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from distlab.algorithms.call import Peers, all_reduce
from distlab.algorithms.doubling import recursive_doubling
from distlab.algorithms.place import place_of
from distlab.algorithms.rings import pipelined_ring
from distlab.algorithms.shared_memory import shared_memory
from distlab.algorithms.trees import tree

SMALL_BYTES = 1 << 18  # up to here the number of messages counts, above it the bytes that each rank sends

CHOICES: dict[str, Callable[..., None]] = {
    "shared memory": shared_memory,
    "recursive doubling": recursive_doubling,
    "tree": tree,
    "pipelined ring": pipelined_ring,
}


@all_reduce
def best(flat: torch.Tensor, combine: Callable[..., torch.Tensor], peers: Peers) -> None:
    """Shared memory on one machine; elsewhere few messages for small tensors, and few bytes for large ones."""
    place = place_of(peers.group)
    num_bytes = flat.numel() * flat.element_size()
    CHOICES[choose(num_bytes, place.segment is not None, place.crowded)].__wrapped__(flat, combine, peers)


def choose(num_bytes: int, one_machine: bool, crowded: bool) -> str:
    """The name of the algorithm that `best` takes.

    Runs on: anywhere.

    Args:
        num_bytes: of the tensor. one_machine: whether the ranks share memory. crowded: whether a machine has more ranks
            than cores, which then take turns: the number of messages in all counts there, not the number of steps.
    """
    if one_machine:
        return "shared memory"
    if num_bytes > SMALL_BYTES:
        return "pipelined ring"
    return "tree" if crowded else "recursive doubling"
