"""What the ranks of several hosts do in the tests."""

import os
import socket

import torch
import torch.distributed as dist


def place(rank, world_size):
    """Where a rank is, as it and torchrun's variables say it."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GLOO_SOCKET_IFNAME")
    return (socket.gethostname(), *map(os.environ.get, names))


def sum_of_ranks(rank, world_size):
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    return tensor.item()


def stuck(rank, world_size):
    """Every rank waits for the next one."""
    dist.recv(torch.zeros(1), src=(rank + 1) % world_size)


def pid(rank, world_size):
    return os.getpid()
