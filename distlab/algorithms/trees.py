"""All-reduce by way of one rank that adds everything up: one after another, or along a binary tree.

Runs on every rank. Both send 2(n - 1) messages of the whole buffer, the fewest there can be; the tree sends them in
2 log2(n) steps, the naive one in 2(n - 1).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from distlab.algorithms.call import Peers, all_reduce


@all_reduce
def naive(flat: torch.Tensor, combine: Callable[..., torch.Tensor], peers: Peers) -> None:
    """Rank 0 receives every tensor, adds it up, and sends the result to every rank."""
    if peers.rank > 0:
        peers.send(flat, 0)
        peers.recv(flat, 0)
        return
    received = torch.empty_like(flat)
    for src in range(1, peers.size):
        peers.recv(received, src)
        combine(flat, received, out=flat)
    for dst in range(1, peers.size):
        peers.send(flat, dst)


@all_reduce
def tree(flat: torch.Tensor, combine: Callable[..., torch.Tensor], peers: Peers) -> None:
    """Sums go up a binomial tree to rank 0, the result comes down the same way: in each step, twice as far.

    Source: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH (2005).
    """
    rank, n = peers.rank, peers.size
    received = torch.empty_like(flat)
    distance = 1
    while distance < n and not rank & distance:
        if rank + distance < n:
            peers.recv(received, rank + distance)
            combine(flat, received, out=flat)
        distance *= 2
    if rank > 0:
        peers.send(flat, rank - distance)
        peers.recv(flat, rank - distance)
    while distance > 1:
        distance //= 2
        if rank + distance < n:
            peers.send(flat, rank + distance)
