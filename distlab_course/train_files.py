"""Lab 08: the files of the exercise "Your own train.py", as text.

The lab writes our answer where a learner has none. exercises/train_scripts.py puts DIGITS, which
the lesson gives, beside the script that it tries. A test compares both with the notebooks.
"""

DIGITS = '''\
import os

import torch
from torch import nn

from distlab_course import data

samples = data.load("digits").train


def make_model():
    torch.manual_seed(1234)
    first = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()
    second = nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()
    end = nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 4 * 4, 10)
    return nn.Sequential(*first, *second, *end)


def save(path, model, optimizer, epoch):
    """Write a second file, and let it replace the old one when it is complete."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, f"{path}.partial")
    os.replace(f"{path}.partial", path)


def load(path, model, optimizer):
    """Restore model and optimizer; return the epoch that is next, 0 without a checkpoint."""
    if not os.path.exists(path):
        return 0
    found = torch.load(path)
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    return found["epoch"] + 1
'''

OUR_TRAIN = """\
import sys

import torch
import torch._dynamo  # before the group is made, or torch 2.13 may not free it at the end
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from digits import load, make_model, samples, save


def train(model, samples, batch, epochs, path):
    sampler = DistributedSampler(samples)
    loader = DataLoader(samples, batch, sampler=sampler, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    first = load(path, model, optimizer)
    ddp = DistributedDataParallel(model)
    for epoch in range(first, epochs):
        sampler.set_epoch(epoch)
        losses = []
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(ddp(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        mean = torch.tensor(losses).mean() / dist.get_world_size()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            save(path, model, optimizer, epoch)
            print(f"epoch {epoch}: loss {mean.item():.4f}", flush=True)


dist.init_process_group("gloo")
batch = 64 // dist.get_world_size()
train(make_model(), samples, batch, int(sys.argv[1]), sys.argv[2])
dist.destroy_process_group()
"""
