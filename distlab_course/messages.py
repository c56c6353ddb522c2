"""Messages between ranks, as the exercises of the labs ask for them: what a lab runs until the learner's own passes.

Runs on: every rank, under torchrun as well.
"""

import torch
import torch.distributed as dist


def ping_pong(tensor: torch.Tensor, rounds: int) -> torch.Tensor | None:
    """Send a tensor from rank 0 to rank 1, which adds 1 to its first number, and back, `rounds` times; see lab 04."""
    rank = dist.get_rank()
    for _ in range(rounds):
        if rank == 0:
            dist.send(tensor, dst=1)
            dist.recv(tensor, src=1)
        elif rank == 1:
            dist.recv(tensor, src=0)
            tensor[0] += 1
            dist.send(tensor, dst=0)
    return tensor if rank == 0 else None


def with_edges(part: torch.Tensor) -> torch.Tensor:
    """This rank's part of a row between the last number of the rank before and the first of the next; see lab 10."""
    rank, wide = dist.get_rank(), torch.zeros(len(part) + 2)
    wide[1:-1] = part
    operations = []
    for neighbour, edge, arrival in ((rank - 1, part[:1], wide[:1]), (rank + 1, part[-1:], wide[-1:])):
        if 0 <= neighbour < dist.get_world_size():
            operations += [dist.P2POp(dist.isend, edge, neighbour), dist.P2POp(dist.irecv, arrival, neighbour)]
    for work in dist.batch_isend_irecv(operations) if operations else []:
        work.wait()
    return wide
