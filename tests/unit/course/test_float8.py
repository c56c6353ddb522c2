"""Linear layers and experts in float8, beside the same numbers multiplied in float32."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from distlab_course.experts import grouped
from distlab_course.float8 import Float8Linear, in_float8
from distlab_course.float8_grouped import grouped_in_float8
from distlab_course.float8_numbers import E4M3, E5M2, cast, scale_of, scaled
from tests.unit.course.mixtures import filled_mixture


def rounded(values, dtype):
    """A tensor as float8 has it, in float32."""
    eight, scale = scaled(values, dtype)
    return eight.float() / scale


def test_the_largest_number_becomes_the_largest_of_the_format():
    values = torch.tensor([0.5, -3.0, 1e-6])
    eight, scale = scaled(values, E4M3)
    assert scale == pytest.approx(448 / 3)
    assert eight.float().tolist() == [72.0, -448.0, 0.0]  # 74.7 lies between 72 and 80
    assert cast(values, 2 * scale, E4M3).float()[1] == -448  # not infinite
    assert scaled(values, E5M2)[0].float()[1] == -57344
    assert scale_of(torch.tensor(0.0), E4M3).isfinite()


@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_multiplies_what_float8_has_of_its_numbers(bias):
    """All three products, with float8's numbers multiplied in float32."""
    torch.manual_seed(0)
    model = in_float8(nn.Sequential(nn.Linear(64, 48, bias=bias)))
    layer = model[0]
    inputs = torch.randn(2, 16, 64, requires_grad=True)
    gradient = torch.randn(2, 16, 48) / 100
    result = layer(inputs)
    result.backward(gradient)

    weight, given, grad = layer.weight.detach(), inputs.detach(), gradient
    expected = rounded(given, E4M3) @ rounded(weight, E4M3).T
    if bias:
        expected += layer.bias.detach()
        assert torch.allclose(layer.bias.grad, grad.sum((0, 1)), atol=1e-6)
    assert torch.allclose(result, expected, atol=1e-5)
    of_inputs = rounded(grad, E5M2) @ rounded(weight, E4M3)
    assert torch.allclose(inputs.grad, of_inputs, atol=1e-5)
    of_weight = rounded(grad, E5M2).flatten(0, 1).T @ rounded(given, E4M3).flatten(0, 1)
    assert torch.allclose(layer.weight.grad, of_weight, atol=1e-5)


def test_it_is_close_to_bfloat16():
    torch.manual_seed(0)
    whole = nn.Linear(256, 128, bias=False, dtype=torch.bfloat16)
    eight = in_float8(nn.Sequential(copy.deepcopy(whole)))
    inputs = torch.randn(64, 256, dtype=torch.bfloat16)
    expected = whole(inputs)
    result = eight(inputs)
    assert result.dtype == torch.bfloat16
    error = (result - expected).norm() / expected.norm()
    assert 0.001 < error < 0.05  # three bits after the point are off by 3 % on the average


def test_some_layers_stay_as_they_are():
    model = nn.Module()
    model.first = nn.Linear(16, 16)
    model.output = nn.Linear(16, 16)
    weight = model.first.weight
    in_float8(model)
    assert type(model.first) is Float8Linear
    assert model.first.weight is weight
    assert type(model.output) is nn.Linear
    in_float8(model, but="output")  # one name, not its letters
    assert type(model.output) is nn.Linear
    in_float8(model, but=())
    assert type(model.output) is Float8Linear
    with pytest.raises(ValueError, match="model must be a module with linear layers in it, got L"):
        in_float8(nn.Linear(16, 16))


def test_a_weight_that_is_sent_in_float8_is_trained_and_copied_like_others():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(16, 32, bias=False))
    sent = in_float8(copy.deepcopy(plain), gathered=True)
    for model in (plain, sent):
        optimizer = torch.optim.AdamW(model.parameters(), 0.1)
        model[0].weight.grad = torch.ones(32, 16)
        optimizer.step()
    assert torch.equal(sent[0].weight.part, plain[0].weight)
    again = in_float8(nn.Sequential(nn.Linear(16, 32, bias=False)), gathered=True)
    again.load_state_dict(sent.state_dict())
    assert torch.equal(again[0].weight.part, plain[0].weight)


ENDS = torch.tensor([32, 32, 93], dtype=torch.int32)  # the second group has no rows


def along(values, dim):
    """A tensor as float8 has it with one scale along a dimension, a power of two, in float32."""
    largest = values.abs().amax(dim, keepdim=True)
    scale = 2 ** torch.floor(torch.log2(448 / largest))
    return cast(values, scale, E4M3).float() / scale


def of_groups(values):
    return [values[:32], values[32:32], values[32:]]


def test_a_grouped_product_multiplies_what_float8_has_of_rows_and_columns():
    """All three products, group by group in float32, and rounded as a GPU does."""
    torch.manual_seed(0)
    rows = torch.randn(93, 64) * torch.logspace(-3, 3, 93)[:, None]  # each row has its own scale
    weights = torch.randn(3, 48, 64) * torch.tensor([1, 1, 1e-4])[:, None, None]
    rows.requires_grad = weights.requires_grad = True
    gradient = torch.randn(93, 48)
    result = grouped_in_float8(rows, weights, ENDS)
    result.backward(gradient)

    given, matrices = rows.detach(), weights.detach()
    products = []
    for some, matrix in zip(of_groups(along(given, 1)), along(matrices, 2), strict=True):
        products.append(some @ matrix.T)
    torch.testing.assert_close(result, torch.cat(products), rtol=4e-3, atol=1e-6)
    of_rows = []
    for some, matrix in zip(of_groups(along(gradient, 1)), along(matrices, 1), strict=True):
        of_rows.append(some @ matrix)
    torch.testing.assert_close(rows.grad, torch.cat(of_rows), rtol=4e-3, atol=1e-5)
    of_weights = []
    for some, ones in zip(of_groups(along(gradient, 0)), of_groups(along(given, 0)), strict=True):
        of_weights.append(some.T @ ones)
    torch.testing.assert_close(weights.grad, torch.stack(of_weights), rtol=4e-3, atol=1e-2)


def test_experts_in_float8_are_close_to_those_in_bfloat16_and_their_router_stays():
    exact = filled_mixture()
    eight = in_float8(copy.deepcopy(exact), but=["router.gate"])
    assert type(eight.router.gate) is nn.Linear
    assert type(eight.shared.w1) is Float8Linear
    assert eight.experts.multiply is grouped_in_float8
    assert in_float8(copy.deepcopy(exact), but=["experts"]).experts.multiply is grouped
    found = []
    for mixture in (exact, eight):
        x = torch.randn(
            2, 8, 64, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(1)
        ).requires_grad_()
        result = mixture(x)
        result.float().square().sum().backward()
        found.append([result, x.grad, mixture.experts.w13.grad, mixture.experts.w2.grad])
    for one, other in zip(*found, strict=True):
        error = (one - other).norm() / one.norm()
        assert 0.001 < error < 0.1


def test_experts_without_tokens_have_no_gradient_in_float8():
    weights = torch.ones(2, 16, 16, requires_grad=True)
    rows = torch.ones(0, 16, requires_grad=True)
    grouped_in_float8(rows, weights, torch.zeros(2, dtype=torch.int32)).sum().backward()
    assert not weights.grad.any()
