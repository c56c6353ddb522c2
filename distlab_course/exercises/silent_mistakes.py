"""The exercises of lab 23: what must hold on the ranks of a training that is right."""

import copy
from collections import Counter

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from distlab.checking import Seen, as_they_are, exercise, gathered
from distlab_course.exercises import ddp_trials

LEFT_OVER = 0.01  # of a gradient, which no factor explains


def _two_layers():
    """A model with the same four parameters on every rank: eighths, whose sums are exact."""
    model = nn.Sequential()
    model.add_module("body", nn.Linear(3, 4))
    model.add_module("head", nn.Linear(4, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            eighths = torch.arange(1.0, 1 + parameter.numel()) / 8
            parameter.copy_(eighths.view_as(parameter))
    return model


def _set_apart(model, rank, n, difference):
    """Change the model of a rank, so that the replicas differ in this way."""
    body = model.get_submodule("body")
    head = model.get_submodule("head")
    is_last = rank > 0 and rank == n - 1
    if difference == "one number" and is_last:
        head.bias[1] += 0.5
    elif difference == "only the order" and rank > 0:
        body.weight.copy_(body.weight.flip(0))
    elif difference == "one bit" and is_last:
        body.bias[0] = torch.nextafter(body.bias[0], torch.tensor(torch.inf))
    elif difference == "two parameters" and rank > 0:
        body.weight[0, 0] += rank
        head.weight[0, 0] -= rank


def _try_replicas(fn, difference):
    """What `fn` finds in models that differ in this way, and the weights, which must stay."""
    model = _two_layers()
    with torch.no_grad():
        _set_apart(model, dist.get_rank(), dist.get_world_size(), difference)
    names = fn(model)
    return names, ddp_trials.flat(model.parameters())


@exercise(
    "23",
    cases=(("nothing",), ("one number",), ("two parameters",), ("only the order",), ("one bit",)),
    given=as_they_are,
    trial=_try_replicas,
)
def differing_parameters(model):
    """Return, on every rank, the names of the parameters that are not equal on all ranks.

    The names are a list, in the order of `model.named_parameters()`. Parameters of which a single
    bit differs are not equal. The model must stay as it is.

    Title: 2.1 Are the replicas equal?
    Hint: Every rank must return the same list, so every rank has to see the values of all ranks.
    Hint: `dist.all_gather(copies, parameter.detach())` fills a list of tensors, and `torch.equal`
    compares two of them bit for bit.
    Hint: For a cheaper check, compare the largest value over all ranks (`op=dist.ReduceOp.MAX`)
    with the smallest, position by position.
    """
    names = []
    for name, parameter in model.named_parameters():
        first, *others = gathered(parameter.detach())
        if not all(torch.equal(first, other) for other in others):
            names.append(name)
    return names


def _images_and_case(rank, n, case):
    """Images and labels of a rank, and the factors of its gradients."""
    batch = ddp_trials.Numbered(4, seed=rank)
    return batch.images, batch.labels, case


def _gradients_of_one_process(model, images, labels):
    """The gradients by name of the mean loss over the images of all ranks."""
    alone = copy.deepcopy(model)
    alone.zero_grad()
    all_images = torch.cat(gathered(images))
    all_labels = torch.cat(gathered(labels))
    cross_entropy(alone(all_images), all_labels).backward()
    return {name: parameter.grad for name, parameter in alone.named_parameters()}


def _try_factors(fn, images, labels, factors):
    """The factors that `fn` finds, and the gradients, which must stay; None for another gradient.

    The other gradient is as long as the right one.
    """
    model = ddp_trials.watched_layer(0)
    right = _gradients_of_one_process(model, images, labels)
    for (name, parameter), factor in zip(model.named_parameters(), factors, strict=True):
        if factor is None:
            parameter.grad = right[name].abs()
        else:
            parameter.grad = factor * right[name]
    found = fn(model, images, labels)
    if isinstance(found, dict):
        found = {name: _in_words(factor) for name, factor in found.items()}
    return found, ddp_trials.gradients_of(model)


def _in_words(factor):
    """A factor with three digits; None is no factor."""
    if factor is None:
        return Seen("no factor")
    return Seen(f"{float(factor):.3g}")


@exercise(
    "23",
    cases=((1, 1), (0.25, 0.25), (4, 1), (None, 1)),
    given=_images_and_case,
    trial=_try_factors,
)
def gradient_factors(model, images, labels):
    """Return a dict by name: by which factor is the gradient in `model` too large?

    The right gradient is that of one process, of the mean `cross_entropy` over the images of all
    ranks. `images` and `labels` are this rank's own, the same number on every rank. The value is
    None where no factor explains the gradient, that is, where more than 1 % of it is left when the
    right gradient times the factor is subtracted. The gradients in `model` must stay as they are.

    Title: 3.1 Which factor?
    Hint: `dist.all_gather` brings the images of all ranks to every rank, and the labels; then each
    rank can do what one process does.
    Hint: Backward adds to the gradients that are there, so go backward through a copy:
    `copy.deepcopy(model)`.
    Hint: The best factor is `(mine * right).sum() / right.square().sum()`, and what is left is
    `(mine - factor * right).norm()`, compared with `mine.norm()`.
    """
    right = _gradients_of_one_process(model, images, labels)
    factors = {}
    for name, parameter in model.named_parameters():
        mine = parameter.grad
        factor = (mine * right[name]).sum() / right[name].square().sum()
        left_over = (mine - factor * right[name]).norm()
        explained = left_over < LEFT_OVER * mine.norm()
        factors[name] = factor.item() if explained else None
    return factors


TOTAL = 10  # rows


def _rows_of_rank(rank, n, case):
    """The rows that a rank uses, and how many there are."""
    rows = list(range(rank, TOTAL, n))
    is_last = rank == n - 1
    if case == "padded":
        padding = rank >= TOTAL % n > 0
        rows += [rank - TOTAL % n] if padding else []
    elif case == "one again instead of another" and is_last:
        rows[-1] = rows[0]
    elif case == "all on every rank":
        rows = list(range(TOTAL - 2))
    return rows, TOTAL


@exercise(
    "23",
    cases=("dealt", "padded", "one again instead of another", "all on every rank"),
    given=_rows_of_rank,
)
def unused_and_repeated(rows, total):
    """Return, on every rank, two sorted lists: the rows that no rank has used, and those that were
    used more than once.

    `rows` is the list of row numbers that this rank has used in an epoch, and the rows of the data
    set are 0 to `total - 1`. The ranks may have used different numbers of rows.

    Title: 5.1 Each row once
    Hint: Count in a tensor of `total` zeros how often this rank has used each row; an all-reduce
    adds up the tables of all ranks.
    Hint: `counts[rows] += 1` counts a row that stands in `rows` twice only once.
    Hint: `torch.bincount(torch.tensor(rows, dtype=torch.int64), minlength=total)` counts right.
    """
    counts = Counter()
    for rows_of_rank in gathered(rows):
        counts.update(rows_of_rank)
    unused = [row for row in range(total) if counts[row] == 0]
    repeated = [row for row in range(total) if counts[row] > 1]
    return unused, repeated
