"""Which name a parameter has, whatever is around its module."""

import torch
from torch import nn

from distlab.comparison.watching.naming import Naming, plain_name


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.second = nn.Linear(3, 2)


def names_in(naming, module):
    names = naming.names()
    return [names[id(parameter)] for parameter in module.parameters()]


def test_wrappers_are_no_part_of_a_name():
    wrapped = "module._orig_mod._fsdp_wrapped_module.a._checkpoint_wrapped_module.weight"
    assert plain_name(wrapped) == "a.weight"


def test_the_name_in_the_whole_model_wins_over_that_in_a_layer():
    """A program may call layers first."""
    model = Pair()
    naming = Naming()
    naming.add_module(model.first)
    assert names_in(naming, model.first) == ["weight", "bias"]
    naming.add_module(model)
    naming.add_module(model.second)
    expected = ["first.weight", "first.bias", "second.weight", "second.bias"]
    assert names_in(naming, model) == expected


def test_layers_that_are_called_one_by_one_have_names_of_their_own():
    """Their numbers follow the order in which they were called."""
    model = Pair()
    naming = Naming()
    for layer in (model.second, model.first, model.second):
        naming.add_module(layer)
    assert names_in(naming, model.second) == ["weight", "bias"]
    assert names_in(naming, model.first) == ["weight (2)", "bias (2)"]


def test_a_tied_parameter_has_its_first_name():
    model = Pair()
    model.second = nn.Linear(2, 3)
    model.second.weight = model.first.weight
    naming = Naming()
    naming.add_module(model)
    assert names_in(naming, model) == ["first.weight", "first.bias", "second.bias"]


def test_what_no_module_has_is_named_by_its_optimizer():
    """Until a module is called that has it."""
    model = Pair()
    alone = torch.zeros(2, requires_grad=True)
    naming = Naming()
    naming.add_stranger(alone, "parameter 0 of SGD")
    naming.add_stranger(model.first.weight, "parameter 1 of SGD")
    assert naming.is_stranger(model.first.weight)
    naming.add_module(model)
    assert not naming.is_stranger(model.first.weight)
    assert naming.names()[id(alone)] == "parameter 0 of SGD"
    assert names_in(naming, model)[0] == "first.weight"


def test_parameters_that_others_have_are_found():
    model = Pair()
    naming = Naming()
    naming.add_module(model)
    model.first.bias.requires_grad_(False)
    stepped = {id(parameter) for parameter in model.second.parameters()}
    others = list(naming.other_parameters(stepped))
    assert len(others) == 1
    assert others[0] is model.first.weight
