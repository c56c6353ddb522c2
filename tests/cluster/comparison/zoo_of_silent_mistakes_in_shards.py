"""Programs that shard models, or gather what they computed, and train wrongly.

See zoo_of_silent_mistakes.py.
"""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from distlab.comparison.findings import Cause
from tests.cluster.comparison.zoo_of_silent_mistakes import (
    mine,
    mistake,
    network,
    replicated,
    rows,
    squares,
)


def sharded(model):
    for layer in (model[0], model[2]):
        fully_shard(layer)
    return fully_shard(model)


# github.com/huggingface/accelerate/issues/3209
@mistake(Cause.NOTHING_MOVED)
def optimizer_before_fully_shard(rank, world_size):
    """changed no parameter ... gradient"""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if world_size > 1:
        sharded(model)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        optimizer.zero_grad()
        squares(model, inputs, targets).backward()
        optimizer.step()  # shown


@mistake(Cause.NOTHING_MOVED)
def optimizer_of_a_copy(rank, world_size):
    """changed no parameter ... gradient"""
    model = network()
    net = replicated(copy.deepcopy(model), world_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        optimizer.zero_grad()
        squares(net, inputs, targets).backward()
        optimizer.step()  # shown


# github.com/pytorch/pytorch/issues/166638
@mistake(Cause.GRADIENT_DIFFERS)
def clipped_by_the_norm_of_a_shard(rank, world_size):
    """each rank clips or scales its own part"""
    model = sharded(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        optimizer.zero_grad()
        squares(model, inputs, targets).backward()
        grads = [parameter.grad.to_local() for parameter in model.parameters()]
        norm = torch.stack([grad.square().sum() for grad in grads]).sum().sqrt()
        for grad in grads:
            grad.mul_(0.1 / norm.clamp(min=0.1))
        optimizer.step()


@mistake(Cause.GRADIENT_DIFFERS)
def clipped_before_the_average(rank, world_size):
    """each rank clips its own gradient before the average"""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        optimizer.zero_grad()
        squares(model, inputs, targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        optimizer.step()


# github.com/pytorch/pytorch/issues/144054
@mistake(Cause.GRADIENT_DIFFERS)
def clipped_by_the_item_of_a_norm(rank, world_size):
    """each rank clips or scales its own part"""
    model = sharded(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        optimizer.zero_grad()
        squares(model, inputs, targets).backward()
        norms = [parameter.grad.norm().item() for parameter in model.parameters()]
        norm = sum(one**2 for one in norms) ** 0.5
        for parameter in model.parameters():
            parameter.grad *= min(1.0, 0.1 / norm)
        optimizer.step()


@mistake(Cause.GRADIENT_DIFFERS)
def other_rows_in_one_tensor_parallel_group(rank, world_size):
    """rows"""
    mesh = init_device_mesh("cpu", (world_size,))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(network(), mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        optimizer.zero_grad()
        squares(model, inputs, targets).backward()
        optimizer.step()


@mistake(Cause.NOT_AVERAGED)
def tensor_parallel_pairs_that_share_nothing(rank, world_size):
    """nothing averaged ... ranks 0 and 2"""
    model_ranks = 2 if world_size > 1 else 1
    shape = (world_size // model_ranks, model_ranks)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "model"))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(network(), mesh["model"], plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = mine(mesh["data"].get_local_rank(), shape[0], *rows())
    for _ in range(2):
        optimizer.zero_grad()
        squares(model, inputs, targets).backward()
        optimizer.step()


class Block(nn.Module):
    """A norm, and two layers that are split by their hidden features over ranks."""

    def __init__(self, rank, world_size):
        super().__init__()
        torch.manual_seed(0)
        first, second = nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False)
        self.norm = nn.LayerNorm(4)
        self.first = nn.Parameter(first.weight.detach().chunk(world_size)[rank].clone())
        self.second = nn.Parameter(second.weight.detach().chunk(world_size, dim=1)[rank].clone())

    def forward(self, inputs):
        hidden = F.relu(self.norm(inputs) @ self.first.T)
        return SumOfRanks.apply(hidden @ self.second.T)


class SumOfRanks(torch.autograd.Function):
    """Forward a sum over the ranks, backward the gradient as it is."""

    @staticmethod
    def forward(ctx, tensor):
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad


# github.com/NVIDIA/Megatron-LM/issues/1446
@mistake(Cause.NOT_AVERAGED)
def norm_before_layers_that_are_split(rank, world_size):
    """norm.weight"""
    model = Block(rank, world_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, _ = rows()
    for _ in range(2):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), inputs).backward()
        optimizer.step()


@mistake(Cause.GRADIENT_DIFFERS)
def features_gathered_without_a_gradient(rank, world_size):
    """a part of the loss carries no gradient"""
    torch.manual_seed(0)
    net = replicated(nn.Linear(4, 3), world_size)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inputs, others = mine(rank, world_size, rows(16)[0], rows(17)[0][:16])
    for _ in range(2):
        views = F.normalize(net(torch.cat([inputs, others]).contiguous()), dim=1)
        first, second = views.chunk(2)
        gathered = [torch.empty_like(second) for _ in range(world_size)]
        dist.all_gather(gathered, second.contiguous())
        gathered[rank] = second
        logits = first @ torch.cat(gathered).T / 0.1
        labels = torch.arange(len(first)) + rank * len(first)
        optimizer.zero_grad()
        F.cross_entropy(logits, labels).backward()
        optimizer.step()


@mistake(Cause.GRADIENT_DIFFERS)
def body_frozen_on_several_ranks(rank, world_size):
    """0.weight ... no gradient"""
    model = network()
    if world_size > 1:
        for name, parameter in list(model[0].named_parameters()):
            value = parameter.detach().clone()
            dist.broadcast(value, src=0)
            setattr(model[0], name, nn.Parameter(value, requires_grad=False))
    net = replicated(model, world_size)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        optimizer.zero_grad()
        squares(net, inputs, targets).backward()
        optimizer.step()
