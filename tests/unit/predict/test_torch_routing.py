"""Counts of what a router chose are assumed, those of anything else are not."""

import pytest
import torch

from distlab_predict import torch_known, torch_quick
from distlab_predict.routing import Routing

ROWS, CLASSES = 8, 10
REAL = torch.arange(ROWS)


@pytest.fixture
def routing(monkeypatch):
    """What is assumed in this test, which runs without data."""
    monkeypatch.setattr(torch_known.fake_tensor, "CONSTANT_NUMEL_LIMIT", torch_known.MOST_KNOWN)
    routing = Routing()
    with torch_quick.QuickMode(routing, allow_non_fake_inputs=True):
        yield routing


LABELS = {
    "nobody knows": lambda: torch.empty(ROWS, dtype=torch.int64).random_(),
    "of a loader": lambda: REAL,
    "all different": lambda: torch.arange(ROWS),
    "all the same": lambda: torch.zeros(ROWS, dtype=torch.int64),
}


@pytest.mark.parametrize("what", LABELS)
@pytest.mark.parametrize("choose", ["argmax", "max", "topk"])
def test_an_accuracy_is_no_routing(routing, what, choose):
    scores = torch.randn(ROWS, CLASSES)
    if choose == "topk":
        chosen = scores.topk(1)[1].squeeze(1)
    elif choose == "max":
        chosen = scores.max(1)[1]
    else:
        chosen = scores.argmax(1)
    right = (chosen == LABELS[what]()).sum()
    assert right.constant is None
    assert not routing.used


def test_neither_is_an_accuracy_among_the_first_five(routing):
    chosen = torch.randn(ROWS, CLASSES).topk(5)[1]
    right = chosen.t().eq(torch.arange(ROWS).view(1, -1).expand(5, ROWS))
    right[:1].reshape(-1).float().sum(0)
    (chosen == torch.arange(ROWS)[:, None]).any(1).sum()
    assert not routing.used


def test_nor_is_that_of_a_single_row(routing):
    chosen = torch.randn(1, CLASSES).argmax(1)
    (chosen == torch.tensor([3])).sum()
    assert not routing.used


@pytest.mark.parametrize(
    "count",
    [
        lambda chosen: (chosen == 3).sum(),
        lambda chosen: (chosen.flatten() == torch.tensor(3)).sum(),
        lambda chosen: (chosen[..., None] == torch.arange(CLASSES)).sum((0, 1))[3],
        lambda chosen: (torch.arange(CLASSES)[:, None] == chosen.flatten()).sum(1)[3],
        lambda chosen: (chosen.flatten()[:, None] == REAL).sum(0)[3],
    ],
)
def test_a_count_of_what_experts_get_is_assumed(routing, count):
    chosen = torch.randn(100, CLASSES).topk(2)[1]
    assert count(chosen).item() == 20
    assert routing.used
