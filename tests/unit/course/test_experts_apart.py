"""Experts that compute one after another, beside those of one kernel."""

from __future__ import annotations

import copy

import pytest
import torch

from distlab_course.adding import add_in_products
from distlab_course.experts_apart import apart, apart_in_float8, compute_apart
from distlab_course.float8 import in_float8
from tests.unit.course.mixtures import filled_mixture


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("is_in_float8", [False, True])
def test_results_and_gradients_of_two_passes_are_those_of_one_kernel(is_in_float8, adds):
    usual = filled_mixture()
    if is_in_float8:
        in_float8(usual, but=["router.gate"])
    one_by_one = copy.deepcopy(usual)
    compute_apart(one_by_one)
    found = []
    for model in (usual, one_by_one):
        if adds:
            add_in_products(model)
        for seed in (1, 2):
            inputs = torch.randn(2, 8, 64, generator=torch.Generator().manual_seed(seed))
            inputs = inputs.bfloat16().requires_grad_()
            result = model(inputs)
            result.float().square().sum().backward()
        found.append([result, inputs.grad])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    for one, other in zip(usual.parameters(), one_by_one.parameters(), strict=True):
        assert one.grad.norm() > 0
        assert (other.grad - one.grad).norm() <= 0.004 * one.grad.norm()


@pytest.mark.parametrize("multiply", [apart, apart_in_float8])
def test_an_expert_that_no_token_chose_has_a_gradient_of_zeros(multiply):
    torch.manual_seed(0)
    rows = torch.randn(32, 16, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.randn(3, 48, 16, dtype=torch.bfloat16, requires_grad=True)
    result = multiply(rows, weights, [16, 0, 16])
    result.sum().backward()
    assert result.shape == (32, 48)
    assert weights.grad[1].count_nonzero() == 0
    assert weights.grad[0].norm() > 0
    expected = torch.cat([rows[:16] @ weights[0].t(), rows[16:] @ weights[2].t()])
    assert (result - expected).norm() < 0.06 * expected.norm()
