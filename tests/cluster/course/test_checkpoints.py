"""Checkpoints of several ranks, resumed to the last bit; lab 22 does the rest."""

import random

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import distlab
from distlab_course import checkpoints

EPOCHS = 4
STOPPED_AFTER = 2


def train(rank, world_size, path, first, last, resume=False, global_batch=16):
    """Losses of some epochs of a model with dropout and buffers; a checkpoint after each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 1))
    inputs = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, global_batch // world_size, sampler=sampler)
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    # each rank drops others
    torch.manual_seed(100 + rank)
    random.seed(rank)
    losses = []
    resumed = None
    if resume:
        torch.manual_seed(999)
        random.seed(999)
        checkpoints.rehearse(ddp, inputs[:4])
        resumed = checkpoints.load(path, ddp, optimizer)
        losses = resumed["losses"]
    for epoch in range(first, last):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(ddp(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item() + random.random())
        checkpoints.save(path, ddp, optimizer, epoch=epoch, losses=losses)
    return losses, [*model.state_dict().values()], resumed


def test_resumed_equals_uninterrupted_to_the_last_bit(cluster, tmp_path):
    """Weights, buffers and random numbers are those of a run without a stop, on every rank."""
    path = str(tmp_path / "a.pt")
    whole = cluster.run(train, str(tmp_path / "whole.pt"), 0, EPOCHS)
    cluster.run(train, path, 0, STOPPED_AFTER)
    resumed = cluster.run(train, path, STOPPED_AFTER, EPOCHS, resume=True)
    for of_whole, of_resumed in zip(whole, resumed, strict=True):
        losses, tensors, _ = of_whole
        losses_again, tensors_again, report = of_resumed
        assert all(map(torch.equal, tensors, tensors_again))
        steps = len(losses) * STOPPED_AFTER // EPOCHS
        assert losses_again[steps:] == losses[steps:]
        assert report["epoch"] == STOPPED_AFTER - 1
        assert report.ranks == 4
        assert report.changes == ()
    assert resumed[0][0] == whole[0][0]  # the values are rank 0's


def test_a_rank_without_the_file_stops_all(cluster, tmp_path):
    """Where one rank cannot read the file, every rank raises its error, and none waits."""
    path = str(tmp_path / "a.pt")
    cluster.run(train, path, 0, 1)

    def load(rank, world_size):
        own_path = path
        if rank == 2:
            own_path += ".gone"
        train(rank, world_size, own_path, 1, 2, resume=True)

    words = r"ranks 0-3 raised CheckpointError: path must be the file .*\.gone"
    with pytest.raises(distlab.RankError, match=words):
        cluster.run(load)
