"""All-reduce by a schedule: each rank sends and receives what schedules.py has for it, step by step.

Runs on every rank. The naive way and the tree send 2(n - 1) messages of the whole buffer, the fewest there can be; the
tree sends them in 2 log2(n) steps, the naive way in 2(n - 1). Doubling and halving take few steps between 2^k ranks.
Notebook 03 writes each of them out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from distlab.course.algorithms.call import Peers, all_reduce
from distlab.course.algorithms.schedules import Message, schedule


@all_reduce
def naive(flat: torch.Tensor, combine: Callable[..., torch.Tensor], peers: Peers) -> None:
    """Rank 0 receives every tensor, adds it up, and sends the result to every rank."""
    follow("naive", flat, combine, peers)


@all_reduce
def ring(flat: torch.Tensor, combine: Callable[..., torch.Tensor], peers: Peers) -> None:
    """Reduce-scatter, then all-gather, a chunk a step: 2(n - 1) steps, and each rank sends 2(n - 1)/n of the data."""
    follow("ring", flat, combine, peers)


@all_reduce
def tree(flat: torch.Tensor, combine: Callable[..., torch.Tensor], peers: Peers) -> None:
    """Sums go up a binomial tree to rank 0, the result comes down the same way: in each step, twice as far."""
    follow("tree", flat, combine, peers)


@all_reduce
def recursive_doubling(flat: torch.Tensor, combine: Callable[..., torch.Tensor], peers: Peers) -> None:
    """Partners at distance 1, 2, 4 ... exchange their whole sums: log2(n) steps, the fewest, for small tensors."""
    follow("recursive doubling", flat, combine, peers)


@all_reduce
def halving_doubling(flat: torch.Tensor, combine: Callable[..., torch.Tensor], peers: Peers) -> None:
    """Reduce-scatter by halves, then all-gather by doubling: 2 log2(n) steps that send 2(n - 1)/n of the data."""
    follow("halving doubling", flat, combine, peers)


def follow(name: str, flat: torch.Tensor, combine: Callable[..., torch.Tensor], peers: Peers) -> None:
    """Step through a schedule in which a rank sends and receives at most one message a step.

    Runs on: every rank of the group.
    """
    num_chunks, steps = _steps_of(name, peers.size, peers.rank)
    length, longer = divmod(flat.numel(), num_chunks)  # the first chunks, `longer` of them, have an element more

    def part(message: Message) -> torch.Tensor:
        start, stop = (i * length + min(i, longer) for i in (message.chunks.start, message.chunks.stop))
        return flat[start:stop]

    scratch = torch.empty_like(flat)
    for sent, received in steps:
        works = []
        if received:
            mine = part(received)
            incoming = scratch[: mine.numel()] if received.operation == "reduce" else mine
            works.append(peers.irecv(incoming, received.src))
        if sent:
            works.append(peers.isend(part(sent), sent.dst))
        for work in works:
            work.wait()
        if received and received.operation == "reduce":
            # the lower rank's sum first, on both partners: the same bits, also for MIN of 0.0 and -0.0
            first, second = (mine, incoming) if peers.rank < received.src else (incoming, mine)
            combine(first, second, out=mine)


@functools.cache
def _steps_of(name: str, size: int, rank: int) -> tuple[int, list[tuple[Message | None, Message | None]]]:
    """Into how many chunks the buffer is cut, and what one rank sends and receives in each step."""
    plan = schedule(name, size)
    by_sender = [{message.src: message for message in step} for step in plan.steps]
    by_receiver = [{message.dst: message for message in step} for step in plan.steps]
    steps = [(sent.get(rank), got.get(rank)) for sent, got in zip(by_sender, by_receiver, strict=True)]
    return plan.num_chunks, steps
