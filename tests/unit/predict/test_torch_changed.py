"""What torch does in another, quicker way where a rank is recorded."""

import torch
from torch import library
from torch.utils._python_dispatch import TorchDispatchMode

from distlab_predict import torch_changed


class Mode(TorchDispatchMode):
    pass


def test_a_rule_that_a_program_registers_for_an_operator_is_found():
    """And none for another class, or before it is registered."""
    with library._scoped_library("quickrules", "DEF") as rules:
        rules.define("twice(Tensor x) -> Tensor")
        operator = torch.ops.quickrules.twice.default
        assert torch_changed._dispatch_rule(operator, Mode) is None

        def rule(mode, func, types, args, kwargs):
            return args[0]

        library.register_torch_dispatch("quickrules::twice", Mode, rule, lib=rules)
        assert torch_changed._dispatch_rule(operator, Mode) is rule
        assert torch_changed._dispatch_rule(operator, TorchDispatchMode) is None
