"""What right programs share; the programs are in the files zoo_of_same_programs_*.py beside this.

`SAME` holds them all. test_same_programs.py compares each with one process, and none gets a
complaint. A program runs on every rank.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Same:
    """A right program, and what the first sentence of its comparison counts.

    Attributes:
        train: the program, train(rank, world_size).
        steps, parameters: of one process.
        worlds: in which it runs.
    """

    train: Callable[[int, int], object]
    steps: int
    parameters: int
    worlds: tuple[int, ...]


SAME = []


def same(steps=3, parameters=4, worlds=(1, 4)):
    """The decorated program does the same in each of these worlds."""

    def note(train):
        SAME.append(Same(train, steps, parameters, worlds))
        return train

    return note


def network():
    """Two layers, with the same weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def examples(rows=16):
    """As many rows and their targets, the same on every rank."""
    numbers = torch.Generator().manual_seed(1)
    inputs = torch.randn(rows, 8, generator=numbers)
    return inputs, torch.randn(rows, 1, generator=numbers)


def share(rank, world_size, rows=16):
    """The part of so many rows that a rank takes."""
    each = rows // world_size
    return slice(rank * each, (rank + 1) * each)


def my_examples(rank, world_size, rows=16):
    """The rows of this rank, and their targets."""
    mine = share(rank, world_size, rows)
    inputs, targets = examples(rows)
    return inputs[mine], targets[mine]


def descend(model, optimizer, inputs, targets, steps=3):
    """Some steps with the mean squared error of a batch."""
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()


class LanguageModel(nn.Module):
    """Words in, words out, with one matrix for both."""

    def __init__(self, words=20):
        super().__init__()
        self.embedding = nn.Embedding(words, 8)
        self.hidden = nn.Linear(8, 8)
        self.output = nn.Linear(8, words, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):
        return self.output(torch.tanh(self.hidden(self.embedding(tokens))))
