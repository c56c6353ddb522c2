"""Programs whose ranks train models that drift apart; see zoo_of_silent_mistakes.py."""

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distlab.comparison.findings import Cause
from tests.cluster.comparison.zoo_of_silent_mistakes import (
    mine,
    mistake,
    network,
    replicated,
    rows,
    squares,
)


def average(parameters, world_size):
    """What DistributedDataParallel does, by hand."""
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size


# github.com/rosinality/swapping-autoencoder-pytorch/issues/22
@mistake(Cause.NOT_AVERAGED, worlds=(1, 2, 4))
def forward_past_ddp(rank, world_size):
    """nothing averaged ... past DistributedDataParallel"""
    net = replicated(network(), world_size)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(3):
        optimizer.zero_grad()
        model = net.module if world_size > 1 else net
        loss = F.mse_loss(model(inputs), targets)  # shown
        loss.backward()
        optimizer.step()


# github.com/modelscope/FunASR/pull/3472
@mistake(Cause.NOT_AVERAGED)
def no_sync_around_the_last_micro_batch(rank, world_size):
    """nothing averaged ... no_sync()"""
    net = replicated(network(), world_size)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inputs, targets = mine(rank, world_size, *rows(32))
    accumulate = 2
    for _ in range(2):
        optimizer.zero_grad()
        for index, (x, y) in enumerate(zip(inputs.chunk(2), targets.chunk(2), strict=True)):
            waits = world_size > 1 and index % accumulate != 0
            with net.no_sync() if waits else contextlib.nullcontext():
                loss = squares(net, x, y) / accumulate
                loss.backward()
        optimizer.step()


@mistake(Cause.PARTLY_AVERAGED)
def layer_added_after_ddp(rank, world_size):
    """head.weight and head.bias are not"""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("body", nn.Linear(4, 8))
    net = replicated(model, world_size)
    model.add_module("head", nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(3):
        optimizer.zero_grad()
        squares(net, inputs, targets).backward()
        optimizer.step()


@mistake(Cause.OTHER_INITIAL)
def no_common_beginning(rank, world_size):
    """begin with other values"""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        optimizer.zero_grad()
        squares(model, inputs, targets).backward()
        average(model.parameters(), world_size)
        optimizer.step()


@mistake(Cause.OTHER_INITIAL)
def checkpoint_on_rank_0_alone(rank, world_size):
    """begin with other values ... rank 0"""
    net = replicated(network(), world_size)
    saved = network(seed=7).state_dict()
    if rank == 0:
        model = net.module if world_size > 1 else net
        model.load_state_dict(saved)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        optimizer.zero_grad()
        squares(net, inputs, targets).backward()
        optimizer.step()


@mistake(Cause.NOT_AVERAGED)
def sum_of_a_copy(rank, world_size):
    """nothing ... averaged"""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        optimizer.zero_grad()
        squares(model, inputs, targets).backward()
        flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        dist.all_reduce(flat)
        flat /= world_size
        optimizer.step()


@mistake(Cause.NOT_AVERAGED)
def loss_averaged_instead_of_gradients(rank, world_size):
    """nothing ... averaged"""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        loss = squares(model, inputs, targets)
        with torch.no_grad():
            dist.all_reduce(loss)
            loss /= world_size
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@mistake(Cause.NOT_AVERAGED)
def averaged_after_the_step(rank, world_size):
    """nothing ... averaged"""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        optimizer.zero_grad()
        squares(model, inputs, targets).backward()
        optimizer.step()
        average(model.parameters(), world_size)


@mistake(Cause.PARTLY_AVERAGED)
def second_group_forgotten(rank, world_size):
    """0.bias and 2.bias are not"""
    model = network()
    weights = [model[0].weight, model[2].weight]
    biases = [model[0].bias, model[2].bias]
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": biases}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.0)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        optimizer.zero_grad()
        squares(model, inputs, targets).backward()
        average(optimizer.param_groups[0]["params"], world_size)
        optimizer.step()


@mistake(Cause.REPLICAS_DIFFER)
def scheduler_on_rank_0_alone(rank, world_size):
    """learning rates are not ... 0.05 on rank 0"""
    net = replicated(network(), world_size)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(3):
        optimizer.zero_grad()
        squares(net, inputs, targets).backward()
        optimizer.step()
        if rank == 0:
            scheduler.step()


@mistake(Cause.REPLICAS_DIFFER)
def step_on_rank_0_alone(rank, world_size):
    """not all ranks step as often ... 0 on ranks 1-3"""
    net = replicated(network(), world_size)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        optimizer.zero_grad()
        squares(net, inputs, targets).backward()
        if rank == 0:
            optimizer.step()


@mistake(Cause.REPLICAS_DIFFER)
def step_left_out_where_the_loss_is_large(rank, world_size):
    """not all ranks step as often ... 2 on rank 0"""
    net = replicated(network(), world_size)
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.05)
    inputs, targets = rows(48)
    targets[16:20] += 20
    for x, y in zip(inputs.split(16), targets.split(16), strict=True):
        x, y = mine(rank, world_size, x, y)
        optimizer.zero_grad()
        loss = squares(net, x, y)
        loss.backward()
        if loss.item() < 200:
            optimizer.step()


@mistake(Cause.REPLICAS_DIFFER)
def updates_that_are_sent_by_another_owner(rank, world_size):
    """2.bias is not on ranks 0-2"""
    net = replicated(network(), world_size)
    parameters = list(net.parameters())
    owned = [one for index, one in enumerate(parameters) if index % world_size == rank]
    optimizer = torch.optim.Adam(owned, lr=0.01)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        net.zero_grad()
        squares(net, inputs, targets).backward()
        optimizer.step()
        for index, parameter in enumerate(parameters[:-1]):
            dist.broadcast(parameter.data, src=index % world_size)


@mistake(Cause.NOT_AVERAGED)
def averaged_in_pairs(rank, world_size):
    """within ranks 0 and 2 and within ranks 1 and 3 only"""
    half = max(world_size // 2, 1)
    mesh = dist.device_mesh.init_device_mesh(
        "cpu", (world_size // half, half), mesh_dim_names=("data", "model")
    )
    group = mesh["data"].get_group()
    model = network()
    net = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inputs, targets = mine(rank, world_size, *rows())
    for _ in range(2):
        optimizer.zero_grad()
        squares(net, inputs, targets).backward()
        optimizer.step()
