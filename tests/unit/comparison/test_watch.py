"""What a rank sees of a training program that runs on it, and that nothing stays behind."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from distlab.comparison.records import WatchOptions
from distlab.comparison.watching.watch import begin_watch, end_watch, watched

PATCHED = [
    (nn.Module, "__call__"),
    (torch.autograd, "backward"),
    (torch.autograd, "grad"),
    (torch, "manual_seed"),
    (torch._C._nn, "cross_entropy_loss"),
    (torch._C._nn, "nll_loss_nd"),
    (functional, "scaled_dot_product_attention"),
    (nn.parallel.DistributedDataParallel, "_ddp_init_helper"),
    (torch.utils.data.DistributedSampler, "__iter__"),
]


def present_functions():
    return [getattr(owner, name) for owner, name in PATCHED], dict(vars(torch._VF))


def classify(rank, world_size, results, dropout=0.0, width=8):
    """Three steps of a small classifier; one target is ignored."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, 3))
    rows = torch.randn(16, 4)
    targets = torch.randint(0, 3, (16,))
    targets[3] = -100
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(rows), targets)
        loss.backward()
        optimizer.step()
        results.append(loss.item())
    results.append([parameter.detach().clone() for parameter in model.parameters()])


def watch_classify(options=None, **how):
    results = []
    record = watched(0, 1, classify, (results,), how, options or WatchOptions())
    return record, results


def test_steps_losses_rows_and_seeds_are_seen():
    """Everything that a verdict needs of a plain program."""
    record, results = watch_classify()
    names = ["0.weight", "0.bias", "3.weight", "3.bias"]
    assert list(record.initial) == names
    assert [list(step.parameters) for step in record.steps] == [names] * 3
    assert record.steps[0].learning_rates == (0.1,)
    assert record.steps[0].line.text == "optimizer.step()"
    assert [backward.loss for backward in record.backwards] == results[:3]
    assert [backward.targets for backward in record.backwards] == [15] * 3
    assert [forward.step for forward in record.forwards] == [0, 1, 2]
    assert {len(forward.rows) for forward in record.forwards} == {16}
    assert len(set(record.forwards[0].rows)) == 16
    assert [(one.seed, one.line.text) for one in record.seeds] == [(1, "torch.manual_seed(1)")]
    last = record.steps[-1].parameters["3.bias"].value.sums
    np.testing.assert_array_equal(last, results[3][3].double().numpy())


def test_what_looks_changes_no_number():
    """Bit for bit the same parameters."""
    plain = []
    classify(0, 1, plain)
    _, seen = watch_classify()
    assert plain[:3] == seen[:3]
    assert all(map(torch.equal, plain[3], seen[3]))


def test_dropout_is_kept_out_and_noted():
    """Its input comes back unchanged, and the numbers are those without dropout."""
    _, without = watch_classify()
    record, results = watch_classify(dropout=0.5)
    assert results[:3] == without[:3]
    assert len(record.dropouts) == 3
    assert record.dropouts[0].line.text.startswith("loss = functional.cross_entropy(")


def test_a_perturbation_is_of_the_size_of_rounding():
    """It changes numbers, and hardly."""
    _, plain = watch_classify()
    _, first = watch_classify(WatchOptions(perturbation=1))
    _, second = watch_classify(WatchOptions(perturbation=2))
    for one, other in [(plain, first), (plain, second), (first, second)]:
        difference = max(float((a - b).abs().max()) for a, b in zip(one[3], other[3], strict=True))
        assert 0 < difference < 1e-5


def test_nothing_stays_patched():
    """Neither after a program that ends, nor after one that raises."""
    before = present_functions()
    watch_classify()
    assert present_functions() == before

    def fails(rank, world_size):
        nn.Linear(2, 2)(torch.ones(1, 2))
        raise KeyError("of the program")

    with pytest.raises(KeyError, match="of the program"):
        watched(0, 1, fails, (), {}, WatchOptions())
    assert present_functions() == before


def test_ranks_begin_with_seeds_of_their_own():
    """Ranks that nobody has seeded draw different numbers."""

    def draw(rank, world_size, drawn):
        drawn.append((torch.rand(1).item(), random.random(), np.random.rand()))

    drawn = []
    for rank in (0, 0, 1):
        watched(rank, 2, draw, (drawn,), {}, WatchOptions(seed=5))
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_a_cell_is_watched_between_begin_and_end():
    """To begin twice forgets the first; to end twice gives nothing."""
    before = present_functions()
    begin_watch(WatchOptions())
    classify(0, 1, [])
    begin_watch(WatchOptions())
    classify(0, 1, [])
    record = end_watch()
    assert len(record.steps) == 3
    assert end_watch().steps == []
    assert present_functions() == before
