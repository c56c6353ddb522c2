"""Counts of what a router chose are assumed, those of anything else are not."""

import pytest
import torch

from distlab_course.experts import Router
from distlab_course.sizes import SIZES, Experts
from distlab_predict import torch_known, torch_quick
from distlab_predict.drawn import Drawn
from distlab_predict.routing import Choice, Routing, mark_of

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


TOKENS, EXPERTS, CHOSEN, RANKS = 600, 16, 4, 4
REACHED = round(Drawn(EXPERTS, CHOSEN, each=4).reached() * TOKENS * RANKS)


def masked(chosen):
    return torch.zeros(TOKENS, EXPERTS, dtype=torch.bool).scatter(1, chosen, True)


@pytest.mark.parametrize(
    "count",
    [
        lambda chosen: masked(chosen).unflatten(1, (RANKS, -1)).any(2).sum(),
        lambda chosen: masked(chosen).view(-1, RANKS, 4).any(-1).sum(0).sum(),
        lambda chosen: torch.zeros(TOKENS, RANKS).scatter(1, chosen // 4, 1.0).sum().long(),
        lambda chosen: (
            torch.zeros(TOKENS, RANKS, dtype=torch.int)
            .scatter_(1, chosen.div(4, rounding_mode="floor"), 1)
            .count_nonzero()
        ),
    ],
)
def test_a_token_with_several_experts_on_a_rank_is_counted_there_once(routing, count):
    chosen = torch.randn(TOKENS, EXPERTS).topk(CHOSEN)[1]
    assert count(chosen).item() == REACHED
    assert REACHED < TOKENS * CHOSEN
    assert routing.in_words()[1].startswith(
        "routing: the 4 of 16 experts of a token are in 2.91 of 4 equal parts, on average"
    )


@pytest.mark.parametrize(
    "count",
    [
        lambda chosen: masked(chosen)[:, :8].unflatten(1, (2, -1)).any(2).sum(),
        lambda chosen: masked(chosen).any(0).sum(),
        lambda chosen: masked(chosen).unflatten(1, (RANKS, -1)).any(1).sum(),
    ],
)
def test_what_is_known_of_no_rank_is_not_counted(routing, count):
    count(torch.randn(TOKENS, EXPERTS).topk(CHOSEN)[1])
    assert not routing.drawn


@pytest.mark.parametrize(
    ("experts", "drawn"),
    [
        (SIZES["DeepSeek-V3"].experts, Drawn(256, 8, 8, 4)),
        (Experts(EXPERTS, CHOSEN, 8), Drawn(EXPERTS, CHOSEN)),
    ],
    ids=["groups", "no groups"],
)
def test_a_router_chooses_from_some_groups_if_it_has_groups(routing, experts, drawn):
    router = Router(8, experts)
    _, chosen, _ = router(torch.randn(2, 5, 8))
    assert mark_of(chosen) == Choice(experts.number, drawn)
