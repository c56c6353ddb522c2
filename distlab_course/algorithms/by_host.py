"""All-reduce on several hosts, made of collectives: each host shares out the work that crosses the network.

Runs on every rank. Lab 11 has it as an exercise; NCCL and MPI do it like this, too.
"""

from typing import Any

import torch
import torch.distributed as dist


def two_level(tensor: torch.Tensor, inside: Any, across: Any) -> None:
    """Reduce-scatter on each host, all-reduce between hosts, all-gather on each host; in place.

    Runs on: every rank of all hosts (a rank that skips it hangs the rest).

    Args:
        tensor: of one dimension, contiguous; its length is a multiple of the number of ranks on a host.
        inside: the group of the ranks on this host, the same number on each host.
        across: the group of the ranks that have the same place on their hosts as this one.
    """
    parts = list(tensor.tensor_split(dist.get_world_size(inside)))
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, parts, group=inside)
    dist.all_reduce(mine, group=across)
    dist.all_gather(parts, mine, group=inside)
