"""A mixture of experts beside a loop over its tokens, and rows that change their order."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from distlab_course.dispatching import for_each, table_of
from distlab_course.experts import Mixture
from distlab_course.permuted import Copies, added_up, copied, places_of, spread, summed
from distlab_course.sizes import Experts, Size
from distlab_predict.drawn import Drawn

WIDTH, TOKENS = 16, 12
SIZE = Size(WIDTH, 1, 2, 32)
NUMBERED = {
    "two of five": Experts(5, 2, 24),
    "one of three, and what all share": Experts(3, 1, 24, shared=16, scores="sigmoid"),
}


def filled(experts):
    torch.manual_seed(0)
    mixture = Mixture(SIZE, experts)
    mixture.router.begin()
    with torch.no_grad():
        for parameter in mixture.parameters():
            parameter.normal_(std=0.3)
    return mixture


def one_after_another(mixture, x):
    """The same mixture, token by token and expert by expert."""
    shares, chosen, _ = mixture.router(x)
    results = []
    for token, row in enumerate(x.flatten(0, 1)):
        total = torch.zeros(WIDTH)
        for share, expert in zip(shares[token], chosen[token], strict=True):
            w1, w3 = mixture.experts.w13[expert].chunk(2)
            hidden = F.silu(w1 @ row) * (w3 @ row)
            total = total + share * (mixture.experts.w2[expert] @ hidden)
        results.append(total)
    result = torch.stack(results).view_as(x)
    return result if mixture.shared is None else result + mixture.shared(x)


@pytest.mark.parametrize("name", NUMBERED)
def test_a_mixture_computes_what_a_loop_does_and_so_do_its_gradients(name):
    found = {}
    for compute in (Mixture.__call__, one_after_another):
        mixture = filled(NUMBERED[name])
        x = torch.randn(2, TOKENS // 2, WIDTH, requires_grad=True)
        result = compute(mixture, x)
        (result * torch.linspace(-1, 1, WIDTH)).sum().backward()
        gradients = [parameter.grad for parameter in mixture.parameters()]
        found[compute] = [result, x.grad, *gradients]
    for one, other in zip(*found.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("copies", [1, 3])
def test_rows_in_another_order_have_the_gradients_that_autograd_finds(copies):
    torch.manual_seed(0)
    order = torch.randperm(5 * copies)
    places = places_of(order)
    assert torch.equal(order[places], torch.arange(5 * copies))
    tokens = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    assert torch.equal(spread(tokens, order, places), tokens[order // copies])
    assert torch.autograd.gradcheck(lambda values: spread(values, order, places), tokens)
    rows = torch.randn(5 * copies, 2, dtype=torch.float64, requires_grad=True)
    sums = torch.zeros(5, 2, dtype=torch.float64).index_add(0, order // copies, rows)
    torch.testing.assert_close(added_up(rows, order, places, 5), sums)
    assert torch.autograd.gradcheck(lambda values: added_up(values, order, places, 5), rows)


def test_a_rank_whose_experts_nobody_chose_has_no_rows():
    order = torch.empty(0, dtype=torch.int64)
    tokens = torch.empty(0, 2, requires_grad=True)
    rows = spread(tokens, order, places_of(order))
    assert rows.shape == (0, 2)
    rows.sum().backward()
    assert tokens.grad.shape == (0, 2)


def test_no_gradient_of_rows_is_added_up_in_zeros():
    """Only its own kind of node is in the graph, and none of indexing."""
    order = torch.tensor([2, 0, 1, 3])
    rows = spread(torch.ones(2, 1, requires_grad=True), order, places_of(order))
    names = [type(rows.grad_fn).__name__] + [
        type(node).__name__ for node, _ in rows.grad_fn.next_functions if node is not None
    ]
    assert names == ["_SpreadBackward", "AccumulateGrad"]


def test_copies_of_tokens_have_the_gradients_that_autograd_finds():
    """Token 1 has no row, and token 2 has three."""
    of_rows = torch.tensor([2, 0, 2, 3, 2])
    copies = Copies(of_rows, of_rows.argsort(stable=True), torch.tensor([0, 1, 1, 4]))
    torch.manual_seed(0)
    tokens = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.equal(copied(tokens, copies), tokens[of_rows])
    assert torch.autograd.gradcheck(lambda values: copied(values, copies), tokens)
    rows = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    sums = torch.zeros(4, 2, dtype=torch.float64).index_add(0, of_rows, rows)
    torch.testing.assert_close(summed(rows, copies), sums)
    assert torch.autograd.gradcheck(lambda values: summed(values, copies), rows)


def test_a_row_is_copied_for_each_receiver_that_leads_to_any_of_its_experts():
    """Two rows, and two receivers with two experts each."""
    shares = torch.tensor([[0.3, -1, 0, -1], [-1, -1, torch.nan, 0.6]])
    copies, of_copies = for_each(shares, 2, 3)
    assert copies.tokens.tolist() == [0, 0, 1]
    expected = torch.tensor([[0.3, -1], [0, -1], [torch.nan, 0.6]])
    torch.testing.assert_close(of_copies, expected, equal_nan=True)


def test_a_table_has_the_rows_of_each_host_of_its_ranks_and_of_their_experts():
    """Two hosts of two ranks with two experts each."""
    chosen = torch.tensor([[0, 1, 2], [1, 4, 6], [5, 4, 0]])
    counts = torch.bincount(chosen.flatten(), minlength=8)
    assert table_of(chosen, counts, [2, 2]).tolist() == [
        [3, 3, 2, 2, 1, 1, 0],
        [2, 2, 2, 1, 1, 1, 0],
    ]
    assert table_of(chosen, counts, [4]).tolist() == [[3, 2, 2], [1, 1, 0], [2, 2, 1], [1, 1, 0]]


def test_rows_of_random_tokens_are_as_many_as_predictions_say():
    torch.manual_seed(0)
    chosen = torch.rand(4096, 128).topk(8).indices
    counts = torch.bincount(chosen.flatten(), minlength=128)
    table = table_of(chosen, counts, [2, 8]).double()
    hosts, ranks = table[:, 0], table[:, 1:].unflatten(1, (8, -1))[..., 0]
    assert hosts.mean() / 4096 == pytest.approx(Drawn(128, 8, each=64).reached(), rel=0.01)
    assert ranks.mean() / 4096 == pytest.approx(Drawn(128, 8, each=8).reached(), rel=0.01)
