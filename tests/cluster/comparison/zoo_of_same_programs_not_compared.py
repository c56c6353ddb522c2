"""Right programs that cannot be compared with one process, and why; see test_same_programs.py.

Each does what it should. But it does not compute the same numbers in every world, so a comparison
says "Cannot be compared", and never "The same".
"""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from distlab.comparison.findings import Cause
from tests.cluster.comparison.zoo_of_same_programs import (
    descend,
    examples,
    my_examples,
    network,
)

NOT_COMPARED = []


def hindered(*causes):
    """The decorated program cannot be compared, for one of these causes."""

    def note(train):
        NOT_COMPARED.append((train, causes))
        return train

    return note


@hindered(Cause.LOCAL_STATISTICS)
def normalising_over_the_rows_of_each_rank(rank, world_size):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    descend(model, optimizer, *my_examples(rank, world_size))


@hindered(Cause.RANDOM_DATA)
def drawing_rows_without_a_seed(rank, world_size):
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(10 + rank)
    for _ in range(3):
        rows = torch.randn(16 // world_size, 8)
        descend(model, optimizer, rows, rows.sum(1, keepdim=True), steps=1)


@hindered(Cause.UNREPEATABLE)
def with_data_of_this_moment(rank, world_size):
    inputs, targets = my_examples(rank, world_size)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        hour = time.time() % 1
        descend(model, optimizer, inputs + hour, targets, steps=1)


@hindered(Cause.UNREPEATABLE)
def with_a_seed_from_the_clock(rank, world_size):
    torch.seed()
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    descend(model, optimizer, *my_examples(rank, world_size))


@hindered(Cause.ROWS_DIFFER, Cause.ROWS_REPEATED, Cause.NOT_SEEN)
def with_a_batch_that_four_ranks_do_not_divide(rank, world_size):
    """One process uses 18 rows; four ranks use four each."""
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    descend(model, optimizer, *my_examples(rank, world_size, rows=18))


@hindered(Cause.LARGER_BATCH)
def with_a_batch_for_each_rank(rank, world_size):
    """A batch of eight rows on each rank, so more ranks take fewer steps."""
    dataset = TensorDataset(*examples(64))
    sampler = DistributedSampler(dataset, shuffle=False)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in DataLoader(dataset, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()


@hindered(Cause.UNREPEATABLE, Cause.RANDOM_DATA, Cause.NOT_SEEN)
def with_noise_inside_of_the_model(rank, world_size):
    """Each rank draws its own, as it should."""

    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network()

        def forward(self, x):
            return self.network(x + 0.5 * torch.randn_like(x))

    model = DDP(Noisy())
    torch.manual_seed(20 + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    descend(model, optimizer, *my_examples(rank, world_size))


class Summed(torch.autograd.Function):
    """The sum over ranks; the gradient passes as it is."""

    @staticmethod
    def forward(_, tensor):
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_, gradient):
        return gradient


@hindered(Cause.NOT_SEEN)
def with_columns_sharded_by_hand(rank, world_size):
    """Each rank makes its own part of the hidden features: smaller parameters, with equal names."""
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(8, 16 // world_size), nn.Tanh())
    last = nn.Linear(16 // world_size, 1, bias=False)
    parameters = [*model.parameters(), *last.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    inputs, targets = examples()
    for _ in range(3):
        optimizer.zero_grad()
        output = Summed.apply(last(model(inputs)))
        F.mse_loss(output, targets).backward()
        optimizer.step()
