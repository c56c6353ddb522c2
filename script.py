"""Cells of a notebook, for 2 ranks: torchrun --standalone --nproc-per-node 2 script.py"""

import os
import sys

import torch
import torch._dynamo  # before the group: in torch 2.13 gloo's threads outlive a group that is older than this import
import torch.distributed as dist

if sys.platform == "linux" and os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine

dist.init_process_group("gloo")  # torchrun has put rank, world size and the address of rank 0 into os.environ
rank, world_size = dist.get_rank(), dist.get_world_size()
display = print


# --- call 1 is left out: it failed with Interrupted ---
# spin


# --- call 2 ---
def sum_of_ranks(rank, world_size):
    total = torch.full((1,), float(rank))  # cloudpickle takes torch.tensor for torch.distributed.tensor, and imports it
    dist.all_reduce(total)
    return total.item()
sum_of_ranks(rank, world_size)


# --- call 3 is left out: it failed with KeyboardInterrupt ---
# spin


# --- call 4 ---
def sum_of_ranks(rank, world_size):
    total = torch.full((1,), float(rank))  # cloudpickle takes torch.tensor for torch.distributed.tensor, and imports it
    dist.all_reduce(total)
    return total.item()
sum_of_ranks(rank, world_size)


# --- call 5 is left out: it failed with KeyboardInterrupt ---
# spin


# --- call 6 ---
def sum_of_ranks(rank, world_size):
    total = torch.full((1,), float(rank))  # cloudpickle takes torch.tensor for torch.distributed.tensor, and imports it
    dist.all_reduce(total)
    return total.item()
sum_of_ranks(rank, world_size)


# --- pushed from the notebook ---
# define kept here: only the notebook has it


# --- call 7 ---
def sum_of_ranks(rank, world_size):
    total = torch.full((1,), float(rank))  # cloudpickle takes torch.tensor for torch.distributed.tensor, and imports it
    dist.all_reduce(total)
    return total.item()
sum_of_ranks(rank, world_size)


# --- pushed from the notebook ---
# define kept here: only the notebook has it


# --- call 8 ---
def sum_of_ranks(rank, world_size):
    total = torch.full((1,), float(rank))  # cloudpickle takes torch.tensor for torch.distributed.tensor, and imports it
    dist.all_reduce(total)
    return total.item()
sum_of_ranks(rank, world_size)


# --- call 9 ---
# define print here: only the notebook has it
print(rank, world_size)


if dist.is_initialized():
    dist.destroy_process_group()
