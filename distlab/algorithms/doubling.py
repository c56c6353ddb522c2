"""All-reduce between partners whose distance doubles or halves: few steps, between 2^k ranks.

Runs on every rank. Source: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in
MPICH (2005); halving and doubling of the buffer is Rabenseifner's algorithm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from distlab.algorithms.call import Core, Peers, all_reduce


def power_of_two(core: Callable[..., None]) -> Core:
    """For a core that needs 2^k ranks: each rank beyond the largest 2^k lends its tensor to a partner before it."""

    @functools.wraps(core)
    def fold(flat: torch.Tensor, combine: Callable[..., torch.Tensor], peers: Peers) -> None:
        power = 1 << (peers.size.bit_length() - 1)
        if peers.rank >= power:
            peers.send(flat, peers.rank - power)
            peers.recv(flat, peers.rank - power)
            return
        folded = peers.rank + power < peers.size
        if folded:
            received = torch.empty_like(flat)
            peers.recv(received, peers.rank + power)
            combine(flat, received, out=flat)
        core(flat, combine, peers, power)
        if folded:
            peers.send(flat, peers.rank + power)

    return fold


@all_reduce
@power_of_two
def recursive_doubling(flat: torch.Tensor, combine: Callable[..., torch.Tensor], peers: Peers, power: int) -> None:
    """Partners at distance 1, 2, 4 ... exchange their whole sums: log2(n) steps, the fewest, for small tensors."""
    received = torch.empty_like(flat)
    distance = 1
    while distance < power:
        partner = peers.rank ^ distance
        peers.exchange(flat, partner, received, partner)
        # the lower rank's sum first, on both: the same bits, also for MIN of 0.0 and -0.0
        first, second = (flat, received) if peers.rank < partner else (received, flat)
        combine(first, second, out=flat)
        distance *= 2


@all_reduce
@power_of_two
def halving_doubling(flat: torch.Tensor, combine: Callable[..., torch.Tensor], peers: Peers, power: int) -> None:
    """Reduce-scatter by halves, then all-gather by doubling: 2 log2(n) steps that send 2(n - 1)/n of the data."""
    block, history = flat, []
    distance = power // 2
    while distance:
        partner = peers.rank ^ distance
        lower, upper = block.tensor_split(2)
        keep, give = (upper, lower) if peers.rank & distance else (lower, upper)
        received = torch.empty_like(keep)
        peers.exchange(give, partner, received, partner)
        combine(keep, received, out=keep)
        history.append((partner, keep, give))
        block = keep
        distance //= 2
    for partner, keep, give in reversed(history):
        peers.exchange(keep, partner, give, partner)
