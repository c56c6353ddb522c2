"""Programs whose ranks use other rows than one process, or weigh them in another way.

See zoo_of_silent_mistakes.py.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from distlab.comparison.findings import Cause
from tests.cluster.comparison.zoo_of_silent_mistakes import (
    mine,
    mistake,
    network,
    replicated,
    rows,
    squares,
)


def loaded(dataset, rank, world_size, batch=8, **options):
    """A loader of this rank's part of the batches, and its sampler."""
    sampler = DistributedSampler(dataset, world_size, rank, **options)
    return DataLoader(dataset, batch // world_size, sampler=sampler), sampler


def train_on(batches, net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for inputs, targets in batches:
        optimizer.zero_grad()
        squares(net, inputs, targets).backward()
        optimizer.step()


# github.com/pytorch/pytorch/issues/22584
@mistake(Cause.ROWS_REPEATED)
def padded_sampler(rank, world_size):
    """rows 0 and 1 are used twice"""
    dataset = TensorDataset(*rows(22))
    loader, _ = loaded(dataset, rank, world_size, shuffle=False)
    train_on(loader, replicated(network(), world_size))


@mistake(Cause.ROWS_REPEATED)
def rows_that_are_left_over(rank, world_size):
    """rows 16 and 17 are never used"""
    inputs, targets = rows(18)
    each = len(inputs) // world_size
    part = slice(rank * each, (rank + 1) * each)
    net = replicated(network(), world_size)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        squares(net, inputs[part], targets[part]).backward()
        optimizer.step()


@mistake(Cause.ROWS_REPEATED, worlds=(1, 2))
def files_of_other_lengths(rank, world_size):
    """never used ... 8 rows are used that one process never uses"""
    lengths = (12, 8, 12, 8)
    files = list(zip(*[tensor.split(lengths) for tensor in rows(40)], strict=True))
    own = files[rank::world_size]
    inputs = torch.cat([one[0] for one in own])
    targets = torch.cat([one[1] for one in own])
    batches = list(zip(inputs.split(8 // world_size), targets.split(8 // world_size), strict=True))
    train_on(batches[:4], replicated(network(), world_size))


@mistake(Cause.UNEQUAL_PARTS)
def divided_by_padded_tokens(rank, world_size):
    """unequal parts ... the ranks' own gradients, times"""
    torch.manual_seed(0)
    net = replicated(nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 9)), world_size)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    tokens = torch.randint(9, (8, 6), generator=torch.Generator().manual_seed(3))
    lengths = torch.tensor([6, 5, 4, 4, 2, 3, 3, 2])
    labels = tokens.roll(-1, dims=1)
    labels[torch.arange(6) >= lengths[:, None]] = -100
    inputs, labels, lengths = mine(rank, world_size, tokens, labels, lengths)
    inputs = inputs[:, : lengths.max()]
    labels = labels[:, : lengths.max()]
    for _ in range(2):
        total = F.cross_entropy(net(inputs).flatten(0, 1), labels.flatten(), reduction="sum")
        optimizer.zero_grad()
        (total / labels.numel()).backward()
        optimizer.step()


@mistake(Cause.SAME_ORDER)
def no_set_epoch(rank, world_size):
    """same order"""
    dataset = TensorDataset(*rows(32))
    loader, _ = loaded(dataset, rank, world_size)
    net = replicated(network(), world_size)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(2):
        for inputs, targets in loader:  # shown
            optimizer.zero_grad()
            squares(net, inputs, targets).backward()
            optimizer.step()


@mistake(Cause.SAME_ROWS)
def rank_within_the_host(rank, world_size):
    """same rows"""
    per_host = max(world_size // 2, 1)
    dataset = TensorDataset(*rows(16))
    loader, _ = loaded(dataset, rank % per_host, world_size, shuffle=False)
    train_on(loader, replicated(network(), world_size))


@mistake(Cause.UNDIVIDED, worlds=(1, 2, 4))
def whole_batch_on_every_rank(rank, world_size):
    """do not divide the work"""
    inputs, targets = rows(16)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=8)
    train_on(loader, replicated(network(), world_size))


@mistake(Cause.LARGER_BATCH)
def batch_size_per_rank(rank, world_size):
    """batch ... 4 times"""
    dataset = TensorDataset(*rows(32))
    sampler = DistributedSampler(dataset, world_size, rank, seed=3)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    train_on(loader, replicated(network(), world_size))


# github.com/pytorch/pytorch/issues/25162
@mistake(Cause.EVALUATION_ROWS)
def evaluation_of_padded_rows(rank, world_size):
    """evaluation counts rows 0 and 1 twice"""
    net = replicated(network(), world_size)
    train_on([mine(rank, world_size, *rows(16))], net)
    dataset = TensorDataset(*rows(10))
    loader, _ = loaded(dataset, rank, world_size, batch=4, shuffle=False)
    total = torch.zeros(2)
    net.eval()
    with torch.no_grad():
        for inputs, targets in loader:
            total[0] += F.mse_loss(net(inputs), targets, reduction="sum")  # shown
            total[1] += len(inputs)
    dist.all_reduce(total)


@mistake(Cause.UNREPEATABLE)
def data_of_no_common_seed(rank, world_size):
    """does not do the same twice ... without a seed"""
    net = replicated(network(), world_size)
    torch.seed()
    inputs = torch.randn(16, 4)
    targets = inputs.sum(dim=1, keepdim=True)
    train_on([mine(rank, world_size, inputs, targets)] * 2, net)


@mistake(Cause.RANDOM_DATA)
def shuffled_by_each_rank(rank, world_size):
    """the order of their data without a common seed"""
    inputs, targets = rows(32)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    for parameter in net.parameters():
        dist.broadcast(parameter.data, src=0)
    net = replicated(net, world_size)
    order = torch.randperm(32)
    part = order[rank::world_size]
    train_on(zip(inputs[part].chunk(2), targets[part].chunk(2), strict=True), net)


# github.com/huggingface/transformers/issues/31412
@mistake(Cause.SAME_DROPOUT)
def one_seed_for_every_rank(rank, world_size):
    """same dropout masks"""
    torch.manual_seed(42)  # shown
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))
    train_on([mine(rank, world_size, *rows(16))] * 2, replicated(model, world_size))


@mistake(Cause.LOCAL_STATISTICS)
def batch_norm_of_local_batches(rank, world_size):
    """BatchNorm"""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    train_on([mine(rank, world_size, *rows(16))] * 2, replicated(model, world_size))


@mistake(Cause.UNEQUAL_PARTS)
def mean_of_parts_of_other_sizes(rank, world_size):
    """unequal parts"""
    inputs, targets = rows(18)
    part = slice(rank, None, world_size)
    net = replicated(network(), world_size)
    train_on([(inputs[part], targets[part])] * 2, net)


# github.com/huggingface/transformers/pull/34191
@mistake(Cause.UNEQUAL_PARTS, worlds=(1, 2, 4))
def mean_over_the_tokens_of_a_rank(rank, world_size):
    """tokens"""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))
    net = replicated(model, world_size)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    tokens = torch.randint(11, (8, 7), generator=torch.Generator().manual_seed(5))
    lengths = torch.tensor([7, 6, 5, 7, 2, 3, 2, 4])
    for _ in range(2):
        inputs, ends = mine(rank, world_size, tokens, lengths)
        labels = inputs.roll(-1, dims=1)
        labels[torch.arange(7) >= ends[:, None]] = -100
        logits = net(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()  # shown
        optimizer.step()


@mistake(Cause.GRADIENT_DIFFERS)
def targets_of_rank_0(rank, world_size):
    """the same rows give another loss"""
    inputs, targets = rows(16)
    each = len(inputs) // world_size
    inputs = inputs[rank * each : (rank + 1) * each]
    targets = targets[:each]
    train_on([(inputs, targets)] * 2, replicated(network(), world_size))


@mistake(Cause.UNEQUAL_PARTS)
def rank_without_a_target(rank, world_size):
    """unequal parts ... 8, 0, 8 and 8"""
    torch.manual_seed(0)
    net = replicated(nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7)), world_size)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    tokens = torch.randint(7, (8, 4), generator=torch.Generator().manual_seed(2))
    labels = tokens.roll(-1, dims=1)
    labels[2:4] = -100
    inputs, labels = mine(rank, world_size, tokens, labels)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(net(inputs).flatten(0, 1), labels.flatten()).backward()
        optimizer.step()


@mistake(Cause.UNEQUAL_PARTS)
def weights_of_classes_added_up_by_each_rank(rank, world_size):
    """unequal parts ... the ranks' own gradients, times"""
    torch.manual_seed(0)
    net = replicated(nn.Linear(4, 3), world_size)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    labels = torch.tensor([0, 0, 0, 0, 0, 1, 0, 2, 2, 2, 1, 2, 0, 1, 0, 0])
    inputs, targets = mine(rank, world_size, rows()[0], labels)
    for _ in range(2):
        loss = F.cross_entropy(net(inputs), targets, weight=torch.tensor([0.2, 1.0, 3.0]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@mistake(Cause.GRADIENT_DIFFERS)
def negatives_of_the_rank_alone(rank, world_size):
    """the same rows give another loss"""
    torch.manual_seed(0)
    net = replicated(nn.Linear(4, 3), world_size)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    inputs, others = mine(rank, world_size, rows(16)[0], rows(17)[0][:16])
    for _ in range(2):
        first, second = F.normalize(net(torch.cat([inputs, others])), dim=1).chunk(2)
        loss = F.cross_entropy(first @ second.T / 0.2, torch.arange(len(first)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class WithPositions(nn.Module):
    """Adds the first positions to a sequence."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.positions = nn.Parameter(torch.randn(8, 6))
        self.mix = nn.Linear(6, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, sequences):
        length = sequences.shape[1]
        return self.out(torch.tanh(self.mix(sequences + self.positions[:length])))


@mistake(Cause.GRADIENT_DIFFERS)
def positions_from_0_on_every_rank(rank, world_size):
    """backward passes already give others"""
    net = replicated(WithPositions(), world_size)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    numbers = torch.Generator().manual_seed(1)
    sequences = torch.randn(4, 8, 6, generator=numbers)
    labels = torch.randint(3, (4, 8), generator=numbers)
    inputs = sequences.chunk(world_size, dim=1)[rank]
    targets = labels.chunk(world_size, dim=1)[rank]
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(net(inputs).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
