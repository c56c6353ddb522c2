"""Programs that end without an error and train wrongly, each with the finding that it must get.

The programs are in the files beside this one, by what goes wrong. test_silent_mistakes.py runs
them. Each is one that people wrote: the comment above a program says where it was reported.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distlab.comparison.findings import Cause

MISTAKES = []
SHOWN = "# shown"  # ends the line of a program that its finding must show


@dataclass(frozen=True)
class Mistake:
    """A wrong program.

    Attributes:
        train: a function of (rank, world_size).
        cause: of its first finding.
        words: which the first finding's sentence must have, between "..." in this order.
        worlds: in which it is compared.
        factor: of the first finding.
    """

    train: Callable
    cause: Cause
    words: tuple[str, ...]
    worlds: tuple[int, ...] = (1, 4)
    factor: float | None = None

    def marked_lines(self):
        """The lines of the program that its finding must show."""
        lines = inspect.getsource(self.train).splitlines()
        return {line.strip() for line in lines if line.endswith(SHOWN)}


def mistake(cause, worlds=(1, 4), factor=None):
    """The decorated program is wrong for this cause; its docstring is what the sentence must say.

    The words are those between "..." and come in this order.
    """

    def note(train):
        sentence = re.sub(r"\s*\n\s*", " ", train.__doc__.strip())
        words = tuple(part.strip() for part in sentence.split("..."))
        MISTAKES.append(Mistake(train, cause, words, worlds, factor))
        return train

    return note


def rows(count=16, features=4):
    """The same inputs and targets everywhere."""
    numbers = torch.Generator().manual_seed(count)
    inputs = torch.randn(count, features, generator=numbers)
    targets = torch.randn(count, 1, generator=numbers)
    return inputs, targets


def mine(rank, world_size, *tensors):
    """This rank's part of each."""
    return [tensor.chunk(world_size)[rank] for tensor in tensors]


def network(seed=0):
    """Two layers, with the same weights on every rank."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def replicated(model, world_size):
    """In DistributedDataParallel where there are several ranks."""
    return DistributedDataParallel(model) if world_size > 1 else model


def squares(net, inputs, targets):
    return F.mse_loss(net(inputs), targets)
