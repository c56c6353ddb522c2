"""Programs whose gradients or steps are a multiple of the right ones.

See zoo_of_silent_mistakes.py.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

from distlab.comparison.findings import Cause
from tests.cluster.comparison.zoo_of_silent_mistakes import (
    mine,
    mistake,
    network,
    replicated,
    rows,
    squares,
)


@mistake(Cause.GRADIENT_FACTOR, worlds=(1, 2, 4), factor=4)
def sum_that_nobody_divides(rank, world_size):
    """4 ... ranks"""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        optimizer.zero_grad()
        squares(model, inputs, targets).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        optimizer.step()


@mistake(Cause.GRADIENT_FACTOR, worlds=(1, 2, 4), factor=0.25)
def loss_divided_although_ddp_divides(rank, world_size):
    """0.25 = 1 / ranks"""
    net = replicated(network(), world_size)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(3):
        optimizer.zero_grad()
        loss = squares(net, inputs, targets) / world_size
        loss.backward()  # shown
        optimizer.step()


@mistake(Cause.GRADIENT_FACTOR, factor=0.25)
def loss_divided_in_bfloat16(rank, world_size):
    """0.25 = 1 / ranks"""
    net = replicated(network(), world_size)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inputs, targets = mine(rank, world_size, *rows(32))
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(net(inputs).float(), targets)
        (loss / world_size).backward()
        optimizer.step()


# github.com/NVIDIA-NeMo/Automodel/pull/3830
@mistake(Cause.GRADIENT_FACTOR, factor=0.25)
def sum_over_all_tokens_averaged_by_ddp(rank, world_size):
    """0.25 = 1 / ranks"""
    torch.manual_seed(0)
    net = replicated(nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11)), world_size)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    tokens = torch.randint(11, (8, 7), generator=torch.Generator().manual_seed(5))
    labels = tokens.roll(-1, dims=1)
    labels[[0, 3, 4], 3:] = -100
    inputs, labels = mine(rank, world_size, tokens, labels)
    count = (labels != -100).sum()
    dist.all_reduce(count)
    for _ in range(2):
        total = F.cross_entropy(net(inputs).flatten(0, 1), labels.flatten(), reduction="sum")
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()


# github.com/NVlabs/stylegan3/issues/184
@mistake(Cause.GRADIENT_FACTOR, factor=0.25)
def accumulation_that_nobody_divides(rank, world_size):
    """0.25"""
    micro_batch = 4
    inputs, targets = mine(rank, world_size, *rows(16))
    net = replicated(network(), world_size)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    for _ in range(2):
        optimizer.zero_grad()
        for x, y in zip(inputs.split(micro_batch), targets.split(micro_batch), strict=True):
            squares(net, x, y).backward()
        optimizer.step()


@mistake(Cause.GRADIENT_FACTOR, factor=16)
def multiplied_by_ranks_and_summed(rank, world_size):
    """16 ... ranks"""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        optimizer.zero_grad()
        loss = squares(model, inputs, targets) * world_size
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


class Tied(nn.Module):
    """An embedding that is also the weight of the output."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.body(self.embed(tokens))))


# github.com/NVIDIA/Megatron-LM/issues/844
@mistake(Cause.GRADIENT_FACTOR, factor=4)
def tied_weight_summed_twice(rank, world_size):
    """4 ... embed.weight"""
    torch.manual_seed(0)
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.randint(11, (8, 5), generator=torch.Generator().manual_seed(5))
    (inputs,) = mine(rank, world_size, tokens)
    for _ in range(2):
        logits = model(inputs[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), inputs[:, 1:].flatten()) / world_size
        optimizer.zero_grad()
        loss.backward()  # shown
        for module in (model.embed, model.body, model.head):
            for parameter in module.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()


@mistake(Cause.GRADIENT_FACTOR, factor=4)
def shards_that_are_summed(rank, world_size):
    """4 ... ranks"""
    model = network()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    for module in (model[0], model[2], model):
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        optimizer.zero_grad()
        squares(model, inputs, targets).backward()
        optimizer.step()


@mistake(Cause.STEP_FACTOR, worlds=(1, 2, 4), factor=4)
def learning_rate_scaled_with_ranks(rank, world_size):
    """4 = ranks ... learning rate is 0.04 instead of 0.01"""
    net = replicated(network(), world_size)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01 * world_size, momentum=0.9)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        optimizer.zero_grad()
        squares(net, inputs, targets).backward()
        optimizer.step()  # shown


# github.com/huggingface/accelerate/issues/2926
@mistake(Cause.STEP_FACTOR, factor=0.125)
def scheduler_stepped_once_for_each_rank(rank, world_size):
    """learning rate is 0.00625 instead of 0.05"""
    net = replicated(network(), world_size)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(3):
        optimizer.zero_grad()
        squares(net, inputs, targets).backward()
        optimizer.step()  # shown
        for _ in range(world_size):
            scheduler.step()


@mistake(Cause.GRADIENT_DIFFERS)
def summed_after_every_micro_batch(rank, world_size):
    """2 backward passes"""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, targets = mine(rank, world_size, *rows(32))
    for _ in range(2):
        optimizer.zero_grad()
        for x, y in zip(inputs.chunk(2), targets.chunk(2), strict=True):
            (squares(model, x, y) / 2).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        for parameter in model.parameters():
            parameter.grad /= world_size
        optimizer.step()


@mistake(Cause.GRADIENT_DIFFERS)
def gradients_of_the_last_step_kept(rank, world_size):
    """the gradient of step 0 is still in it"""
    net = replicated(network(), world_size)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(3):
        if rank == 0:
            optimizer.zero_grad()
        squares(net, inputs, targets).backward()
        optimizer.step()


@mistake(Cause.STEP_DIFFERS)
def weight_decay_divided_by_ranks(rank, world_size):
    """step"""
    net = replicated(network(), world_size)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.1 / world_size)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        optimizer.zero_grad()
        squares(net, inputs, targets).backward()
        optimizer.step()


@mistake(Cause.GRADIENT_DIFFERS)
def penalty_on_every_rank_of_a_sum(rank, world_size):
    """a penalty on the parameters counts otherwise"""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, targets = rows()
    total = len(inputs)
    inputs, targets = mine(rank, world_size, inputs, targets)
    for _ in range(2):
        penalty = sum(parameter.square().sum() for parameter in model.parameters())
        loss = F.mse_loss(model(inputs), targets, reduction="sum") / total + 0.1 * penalty
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
