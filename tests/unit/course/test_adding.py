"""Products that add to the gradients that are there, beside autograd's own sums."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from distlab_course.adding import add_in_products
from distlab_course.engine import TORCH, Engine
from distlab_course.float8 import in_float8
from distlab_course.pretraining_arguments import check_engine
from tests.unit.course.mixtures import filled_mixture


class Called(TorchDispatchMode):
    """Counts the operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names[operator._overloadpacket.__name__] += 1
        return operator(*args, **(kwargs or {}))


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 48, bias=True), nn.Linear(48, 32, bias=False)).bfloat16()


EIGHT = {"scaled_mm_add_": 3, "scaled_grouped_mm_add_": 2}
MODELS = {
    "layers": (layers, False, None, {"addmm_": 2}),
    "layers in float8": (layers, True, None, {"scaled_mm_add_": 2}),
    "experts": (filled_mixture, False, None, {"addmm_": 3, "grouped_mm_add_": 2}),
    "experts in float8": (filled_mixture, True, None, EIGHT),
    "experts in float8, kept": (filled_mixture, True, {}, EIGHT),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_second_pass_adds_in_its_products_and_has_the_same_gradients(name):
    make, is_in_float8, kept, expected = MODELS[name]
    usual = make()
    if is_in_float8:
        in_float8(usual, but=["router.gate"])
    adding = copy.deepcopy(usual)
    add_in_products(adding, kept)
    counts = []
    for model in (usual, adding):
        for seed in (1, 2):
            inputs = torch.randn(2, 8, 64, generator=torch.Generator().manual_seed(seed))
            result = model(inputs.bfloat16())
            with Called() as called:
                result.float().square().sum().backward()
        counts.append(called.names)
    of_sums = {key: count for key, count in counts[1].items() if key in expected}
    assert of_sums == expected
    assert not any(key in counts[0] for key in expected)
    assert counts[0]["add_"] - counts[1]["add_"] == sum(expected.values())
    for one, other in zip(usual.parameters(), adding.parameters(), strict=True):
        # rounded once instead of twice
        assert (other.grad - one.grad).norm() <= 0.008 * one.grad.norm()


def test_a_layer_without_a_gradient_or_whose_inputs_need_none_is_as_ever():
    usual, adding = layers(), layers()
    add_in_products(adding)
    adding[1].weight.requires_grad = False
    usual[1].weight.requires_grad = False
    for model in (usual, adding):
        model(torch.ones(4, 64, dtype=torch.bfloat16)).sum().backward()
    assert adding[1].weight.grad is None
    assert torch.equal(adding[0].weight.grad, usual[0].weight.grad)
    assert torch.equal(adding[0].bias.grad, usual[0].bias.grad)


def test_what_cannot_be_added_up_in_products_is_refused():
    adds = Engine(adds_in_products=True)
    check_engine(TORCH, True, "op", torch.bfloat16, torch.float32)
    check_engine(adds, False, "op", torch.bfloat16, torch.bfloat16)
    with pytest.raises(
        ValueError, match=r"compiles must be False for an engine other than torch's"
    ):
        check_engine(adds, True, "op", torch.bfloat16, torch.bfloat16)
    with pytest.raises(ValueError, match=r"got torch.float32. Call train\(..., reduce_dtype=torch"):
        check_engine(adds, False, "op", torch.bfloat16, torch.float32)
