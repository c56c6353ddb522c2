"""Right programs with loaders, samplers and unequal parts; test_same_programs.py compares them."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from tests.cluster.comparison.zoo_of_same_programs import (
    LanguageModel,
    examples,
    network,
    same,
    share,
)


@same(steps=8, worlds=(1, 2, 4))
def with_a_sampler_and_two_epochs(rank, world_size):
    dataset = TensorDataset(*examples(32))
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=8 // world_size, sampler=sampler)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()


@same(steps=4)
def with_a_sampler_that_drops_the_last_rows(rank, world_size):
    """Of 18 rows, 16 are used in every world."""
    dataset = TensorDataset(*examples(18))
    sampler = DistributedSampler(dataset, world_size, rank, shuffle=False, drop_last=True)
    loader = DataLoader(dataset, batch_size=8 // world_size, sampler=sampler, drop_last=True)
    model = DDP(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            F.mse_loss(model(inputs), targets).backward()
            optimizer.step()


@same(steps=4)
def validated_with_a_sampler(rank, world_size):
    dataset = TensorDataset(*examples(16))
    training = DistributedSampler(dataset, seed=7)
    validation = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, 8 // world_size, sampler=training)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        training.set_epoch(epoch)
        model.train()
        for inputs, targets in loader:
            optimizer.zero_grad()
            F.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            losses = [
                F.mse_loss(model(inputs), targets)
                for inputs, targets in DataLoader(dataset, 4, sampler=validation)
            ]
        dist.all_reduce(torch.stack(losses).mean())


class Windows(Dataset):
    """Each item is made when it is asked for."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        numbers = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=numbers), torch.randn(1, generator=numbers)


@same(steps=4)
def with_workers_that_load(rank, world_size):
    dataset = Windows()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, 8 // world_size, sampler=sampler, num_workers=1)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            F.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()


class Stream(IterableDataset):
    """Every world_size-th row of a stream."""

    def __init__(self, rank, world_size):
        self.rank = rank
        self.world_size = world_size

    def __iter__(self):
        for number, row in enumerate(zip(*examples(24), strict=True)):
            if number % self.world_size == self.rank:
                yield row


@same()
def with_a_stream(rank, world_size):
    loader = DataLoader(Stream(rank, world_size), batch_size=8 // world_size)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in loader:
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()


@same()
def shuffling_with_a_common_generator(rank, world_size):
    """All ranks draw the same order, and each takes its part of it."""
    inputs, targets = examples(16)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    order = torch.Generator().manual_seed(9)
    for _ in range(3):
        mine = torch.randperm(16, generator=order)[share(rank, world_size)]
        optimizer.zero_grad()
        F.mse_loss(model(inputs[mine]), targets[mine]).backward()
        optimizer.step()


@same(steps=6)
def joining_with_uneven_inputs(rank, world_size):
    """Ranks 0 and 1 have a batch more; a mean over those that still have rows is right."""
    inputs, targets = examples(40)
    if world_size == 1:
        first = list(zip(inputs[:32].split(8), targets[:32].split(8), strict=True))
        last = [(inputs[32:36], targets[32:36]), (inputs[36:], targets[36:])]
        batches = [*first, *last]
    else:
        each = [*share_of_batches(inputs[:32], rank, world_size)]
        batches = list(zip(each, share_of_batches(targets[:32], rank, world_size), strict=True))
        if rank < 2:
            for begin in (32, 36):
                mine = slice(begin + 2 * rank, begin + 2 * rank + 2)
                batches.append((inputs[mine], targets[mine]))
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model], divide_by_initial_world_size=False):
        for rows, expected in batches:
            optimizer.zero_grad()
            F.mse_loss(model(rows), expected).backward()
            optimizer.step()


def share_of_batches(tensor, rank, world_size):
    """Of each eight rows, this rank's."""
    return [batch.chunk(world_size)[rank] for batch in tensor.split(8)]


@same()
def weighting_unequal_parts_under_ddp(rank, world_size):
    """DDP divides by the ranks, so each sum is multiplied by them: 18 are 5, 5, 4 and 4 rows."""
    inputs, targets = (one[rank::world_size] for one in examples(18))
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets, reduction="sum") * world_size / 18
        loss.backward()
        optimizer.step()


@same(parameters=3, worlds=(1, 2, 4))
def weighting_tokens_under_ddp(rank, world_size):
    """Some targets are padding; the targets of all ranks are counted for each step."""
    torch.manual_seed(6)
    tokens = torch.randint(20, (8, 7))
    lengths = torch.arange(8) % 5 + 3
    targets = tokens.masked_fill(torch.arange(7) >= lengths[:, None], -100)
    mine = share(rank, world_size, 8)
    model = DDP(LanguageModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    expected = targets[mine, 1:].flatten()
    for _ in range(3):
        count = (expected != -100).sum()
        dist.all_reduce(count)
        logits = model(tokens[mine, :-1]).flatten(0, 1)
        total = F.cross_entropy(logits, expected, reduction="sum")
        (total * world_size / count).backward()
        optimizer.step()
        optimizer.zero_grad()


class Augmented(nn.Module):
    """Adds noise to its rows in training, the same for a row whoever has it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, rows, numbers):
        noise = [torch.randn(8, generator=torch.Generator().manual_seed(int(n))) for n in numbers]
        return self.model(rows + 0.1 * torch.stack(noise))


@same()
def with_noise_that_belongs_to_the_rows(rank, world_size):
    inputs, targets = examples(16)
    mine = torch.arange(16)[rank::world_size]
    model = DDP(Augmented(network()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(inputs[mine], mine), targets[mine]).backward()
        optimizer.step()
