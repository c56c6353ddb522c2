"""Right programs that average, shard or send by hand; test_same_programs.py compares them."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.cluster.comparison.zoo_of_same_programs import (
    LanguageModel,
    examples,
    my_examples,
    network,
    same,
    share,
)


@same(worlds=(1, 2, 4))
def averaging_each_gradient(rank, world_size):
    inputs, targets = my_examples(rank, world_size)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        optimizer.step()


@same()
def averaging_one_bucket(rank, world_size):
    inputs, targets = my_examples(rank, world_size)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    parameters = list(model.parameters())
    for _ in range(3):
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        bucket = torch.cat([parameter.grad.flatten() for parameter in parameters])
        dist.all_reduce(bucket)
        bucket /= world_size
        pieces = bucket.split([parameter.numel() for parameter in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
        optimizer.step()
        optimizer.zero_grad()


@same()
def averaging_while_backward_runs(rank, world_size):
    """A hook of each parameter begins its all-reduce; all are awaited before the step."""
    inputs, targets = my_examples(rank, world_size)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    works = []

    def begin(parameter):
        parameter.grad /= world_size
        works.append(dist.all_reduce(parameter.grad, async_op=True))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(begin)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        for work in works:
            work.wait()
        works.clear()
        optimizer.step()


def ring_all_reduce(tensor, rank, world_size):
    """Add up a tensor along a ring: each chunk's sum begins on another rank."""
    next_rank = (rank + 1) % world_size
    prev_rank = (rank - 1) % world_size
    chunks = list(tensor.chunk(world_size))
    for step in range(2 * (world_size - 1)):
        received = torch.empty_like(chunks[(rank - step - 1) % world_size])
        sending = dist.isend(chunks[(rank - step) % world_size], next_rank)
        dist.recv(received, prev_rank)
        sending.wait()
        arrived = chunks[(rank - step - 1) % world_size]
        if step < world_size - 1:
            arrived += received
        else:
            arrived.copy_(received)


@same(worlds=(1, 2, 4))
def averaging_along_a_ring(rank, world_size):
    """Its sums round in another order than those of all_reduce."""
    inputs, targets = my_examples(rank, world_size)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        for parameter in model.parameters():
            total = F.pad(parameter.grad.flatten(), (0, -parameter.numel() % world_size))
            ring_all_reduce(total, rank, world_size)
            mean = total[: parameter.numel()] / world_size
            parameter.grad.copy_(mean.view_as(parameter))
        optimizer.step()


@same()
def averaging_with_a_server(rank, world_size):
    """Rank 0 collects the gradients, steps, and sends the parameters back."""
    inputs, targets = my_examples(rank, world_size)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        for parameter in model.parameters():
            dist.reduce(parameter.grad, dst=0)
            parameter.grad /= world_size
            dist.broadcast(parameter.grad, src=0)
        optimizer.step()
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)


@same()
def dividing_a_sum_by_the_whole_batch(rank, world_size):
    """Each rank's loss is a sum over its rows, divided by the rows of all."""
    inputs, targets = my_examples(rank, world_size)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets, reduction="sum") / 16
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


@same()
def that_seeds_nothing_and_broadcasts(rank, world_size):
    """Rank 0's weights, and its rows, go to all."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    inputs, targets = torch.randn(16, 8), torch.randn(16, 1)
    for tensor in [*model.parameters(), inputs, targets]:
        dist.broadcast(tensor.detach(), src=0)
    mine = share(rank, world_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(inputs[mine]), targets[mine]).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.grad.div_(world_size)
        optimizer.step()


@same()
def with_layers_called_one_by_one(rank, world_size):
    """No module has all parameters: the layers are apart."""
    inputs, targets = my_examples(rank, world_size)
    torch.manual_seed(0)
    first, second = nn.Linear(8, 16), nn.Linear(16, 1)
    parameters = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(3):
        hidden = torch.relu(first(inputs))
        loss = F.mse_loss(second(hidden), targets)
        loss.backward()
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        optimizer.step()
        optimizer.zero_grad()


@same(parameters=2)
def without_a_module(rank, world_size):
    """Two tensors and a formula."""
    inputs, targets = my_examples(rank, world_size)
    torch.manual_seed(0)
    weight = torch.randn(8, 1, requires_grad=True)
    bias = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight, bias], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = ((inputs @ weight + bias - targets) ** 2).mean()
        loss.backward()
        for tensor in (weight, bias):
            dist.all_reduce(tensor.grad)
            tensor.grad /= world_size
        optimizer.step()


@same(steps=4)
def averaging_over_rows_of_unequal_number(rank, world_size):
    """Each rank weights its mean by its rows: 18 are 5, 5, 4 and 4."""
    inputs, targets = (one[rank::world_size] for one in examples(18))
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        (loss * len(inputs) / 18).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


class SumOverRanks(torch.autograd.Function):
    """The sum of what the ranks have; its gradient is the sum of theirs."""

    @staticmethod
    def forward(_, tensor):
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class SharedNorm(nn.Module):
    """Batch normalisation over the rows of all ranks."""

    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        count = len(x) * dist.get_world_size()
        mean = SumOverRanks.apply(x.sum(0)) / count
        centred = x - mean
        variance = SumOverRanks.apply(centred.square().sum(0)) / count
        return centred * torch.rsqrt(variance + 1e-5) * self.weight + self.bias


@same(parameters=6)
def normalising_over_all_ranks(rank, world_size):
    """What SyncBatchNorm does, which torch has for GPUs only."""
    inputs, targets = my_examples(rank, world_size)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), SharedNorm(16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        optimizer.step()


class Attention(nn.Module):
    """Causal attention over eight positions, of which each rank has some."""

    def __init__(self):
        super().__init__()
        self.projection = nn.Linear(8, 24)
        self.output = nn.Linear(8, 8)

    def forward(self, x, first):
        query, key, value = self.projection(x).chunk(3, dim=-1)
        last = first + x.shape[1]
        around = (0, 0, first, 8 - last)
        keys = SumOverRanks.apply(F.pad(key, around))
        values = SumOverRanks.apply(F.pad(value, around))
        earlier = torch.arange(first, last)[:, None] >= torch.arange(8)
        attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=earlier)
        return self.output(attended)


@same(worlds=(1, 2, 4))
def splitting_the_context(rank, world_size):
    """Context parallel: all ranks have all rows, and of each a quarter of its positions."""
    torch.manual_seed(5)
    model = Attention()
    sequences, targets = torch.randn(2, 3, 8, 8)
    mine = share(rank, world_size, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.mse_loss(model(sequences[:, mine], mine.start), targets[:, mine])
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        optimizer.step()


@same(parameters=8)
def a_pipeline_by_hand(rank, world_size):
    """Four layers, one or more on each rank; activations and their gradients are sent."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)]
    stage = nn.Sequential(*layers[share(rank, world_size, 4)])
    inputs = examples()[0]
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    is_first = rank == 0
    is_last = rank == world_size - 1
    for _ in range(3):
        optimizer.zero_grad()
        if not is_first:
            inputs = torch.empty(16, 8)
            dist.recv(inputs, src=rank - 1)
            inputs.requires_grad_()
        outputs = stage(inputs)
        if is_last:
            outputs.square().mean().backward()
        else:
            dist.send(outputs.detach(), dst=rank + 1)
            gradient = torch.empty_like(outputs)
            dist.recv(gradient, src=rank + 1)
            outputs.backward(gradient)
        if not is_first:
            dist.send(inputs.grad, dst=rank - 1)
        optimizer.step()


@same(parameters=3)
def weighting_by_the_tokens_of_all(rank, world_size):
    """Some targets are padding; the sum of losses is divided by the targets of all ranks."""
    torch.manual_seed(6)
    tokens = torch.randint(20, (8, 7))
    lengths = torch.arange(8) % 5 + 3
    targets = tokens.masked_fill(torch.arange(7) >= lengths[:, None], -100)
    mine = share(rank, world_size, 8)
    model = LanguageModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    expected = targets[mine, 1:].flatten()
    for _ in range(3):
        optimizer.zero_grad()
        count = (expected != -100).sum()
        dist.all_reduce(count)
        logits = model(tokens[mine, :-1]).flatten(0, 1)
        loss = F.cross_entropy(logits, expected, ignore_index=-100, reduction="sum") / count
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
