"""Tests as those of a university course on distributed training, which call mp.spawn.

Nothing here knows distlab: `pytest tests/testing/course_by_spawn.py` runs them with torch's spawn,
and with `--distlab-spawn` they run on distlab's processes. test_spawn.py does so.
"""

import os
from copy import deepcopy

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn

from tests.testing.hand_written import DDP, FSDP, ShardedOptimizer

WORLD_SIZE = 2


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 6, bias=False))
        self.constant = nn.Parameter(torch.tensor([2.0]), requires_grad=False)

    def forward(self, x):
        return self.layers(x) * self.constant


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.again = nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False)
        self.last = nn.Linear(10, 6, bias=False)
        self.again.weight = self.first.weight

    def forward(self, x):
        return self.last(torch.relu(self.again(torch.relu(self.first(x)))))


def spawn(fn, *args):
    mp.spawn(fn, args=(WORLD_SIZE, *args), nprocs=WORLD_SIZE, join=True)


def _setup_process_group(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12390"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    dist.barrier()


def _cleanup_process_group():
    dist.barrier()
    dist.destroy_process_group()


def _data():
    torch.manual_seed(1)
    return torch.randn(20, 10), torch.randn(20, 6)


def _train(model, optimizer, rows, targets, finish=lambda: None, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), targets).backward()
        finish()
        optimizer.step()


def _own(data, rank, world_size):
    return [part.chunk(world_size)[rank] for part in data]


@pytest.mark.parametrize("model_class", [Plain, Tied])
def test_ddp_trains_as_one_process(model_class):
    spawn(_ddp_trains_as_one_process, model_class)


def _ddp_trains_as_one_process(rank, world_size, model_class):
    _setup_process_group(rank, world_size)
    torch.manual_seed(0)
    alone = model_class()
    model = DDP(deepcopy(alone))
    _train(alone, torch.optim.SGD(alone.parameters(), lr=0.1), *_data())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _train(model, optimizer, *_own(_data(), rank, world_size), finish=model.finish)
    for ours, theirs in zip(model.module.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    _cleanup_process_group()


def test_ddp_begins_with_the_weights_of_rank_0():
    spawn(_ddp_begins_with_the_weights_of_rank_0)


def _ddp_begins_with_the_weights_of_rank_0(rank, world_size):
    _setup_process_group(rank, world_size)
    torch.manual_seed(rank)
    before = Plain()
    model = DDP(deepcopy(before))
    same = torch.equal(before.layers[0].weight, model.module.layers[0].weight)
    assert same == (rank == 0)
    _cleanup_process_group()


@pytest.mark.parametrize("model_class", [Plain, Tied])
def test_a_sharded_optimizer_steps_as_a_whole_one(model_class):
    spawn(_a_sharded_optimizer_steps_as_a_whole_one, model_class)


def _a_sharded_optimizer_steps_as_a_whole_one(rank, world_size, model_class):
    _setup_process_group(rank, world_size)
    torch.manual_seed(0)
    alone = model_class()
    model = deepcopy(alone)
    _train(alone, torch.optim.AdamW(alone.parameters(), lr=0.1), *_data(), steps=5)
    sharded = ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
    _train(model, sharded, *_data(), steps=5)
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    _cleanup_process_group()


def test_a_sharded_optimizer_keeps_a_part_of_the_state():
    spawn(_a_sharded_optimizer_keeps_a_part_of_the_state)


def _a_sharded_optimizer_keeps_a_part_of_the_state(rank, world_size):
    _setup_process_group(rank, world_size)
    model = Plain()
    sharded = ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
    _train(model, sharded, *_data(), steps=1)
    assert len(sharded.own.state) < len(list(model.parameters())) - 1
    _cleanup_process_group()


@pytest.mark.parametrize("lr", [0.1, 0.01])
def test_fsdp_trains_as_one_process(lr):
    spawn(_fsdp_trains_as_one_process, lr)


def _fsdp_trains_as_one_process(rank, world_size, lr):
    _setup_process_group(rank, world_size)
    torch.manual_seed(0)
    alone = nn.Sequential(nn.Linear(10, 20, bias=False), nn.ReLU(), nn.Linear(20, 6, bias=False))
    model = FSDP(deepcopy(alone))
    assert model.layers[0].shard.numel() == 200 // world_size
    _train(alone, torch.optim.SGD(alone.parameters(), lr=lr), *_data())
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    _train(model, optimizer, *_own(_data(), rank, world_size))
    for ours, theirs in zip(model.full_weights(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.detach())
    _cleanup_process_group()
