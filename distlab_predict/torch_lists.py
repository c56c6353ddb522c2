"""Operators on lists of DTensors, as optimizers call them, without DTensor's own way for each one.

Called by recorder.py, in the process of a rank that is recorded. DTensor asks for each element of a
list how its result is sharded, which takes seconds for a model. Where all lists are sharded alike,
the answer is known: as they are. Tried with torch 2.13.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from distlab_predict.torch_fake import (
    changes_arguments,
    in_memory,
    is_made_of_others,
    operator_name,
    part_of,
)

# operators that treat each number by itself
ELEMENTWISE = {
    f"_foreach_{name}"
    for name in (
        "add_",
        "addcdiv_",
        "addcmul_",
        "div",
        "div_",
        "lerp_",
        "maximum_",
        "mul",
        "mul_",
        "neg",
        "reciprocal_",
        "sqrt",
        "sqrt_",
        "sub_",
        "zero_",
    )
}

Operator = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]


def on_parts(run: Operator, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on the parts of this rank; NotImplemented if their classes must see them.

    Args:
        run: runs it on tensors that are no DTensors, with the same arguments as a dispatch mode.
        operator: of torch.ops.
        args: what it is called with.
        kwargs: likewise.
    """
    if operator_name(operator) not in ELEMENTWISE or not _are_alike(args):
        return NotImplemented
    parts = []
    for argument in args:
        if isinstance(argument, list):
            argument = [part_of(one) for one in argument]
            if changes_arguments(operator):  # then no result has their class
                argument = [_in_memory(one) for one in argument]
            if any(is_made_of_others(type(one)) for one in argument):
                return NotImplemented
        parts.append(argument)
    made = run(operator, (), tuple(parts), kwargs)
    if made is None:  # it has changed the first list
        return None
    wrapped = []
    for part, like in zip(made, args[0], strict=True):
        wrapped.append(DTensor(part, like._spec, requires_grad=False))
    return wrapped


def makes_nothing_new(operator: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operator only writes into the tensors of a list, and they are right for it.

    Then it needs not run. torch's own fake tensors would run it on each tensor of the list.
    """
    name = operator_name(operator)
    if not (name.startswith("_foreach_") and changes_arguments(operator)):
        return False
    written, *others = [argument for argument in args if _has_tensors(argument)]
    if not all(tensor.is_floating_point() for tensor in written):
        return False
    return all(_has_same_kinds(written, other) for other in others)


def _has_tensors(argument: Any) -> bool:
    """Whether an argument is a list of tensors."""
    return isinstance(argument, list) and any(isinstance(one, torch.Tensor) for one in argument)


def _has_same_kinds(tensors: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Whether the tensors of two lists have the same shapes and dtypes, one by one."""
    kinds = [(one.shape, one.dtype) for one in tensors]
    return kinds == [(one.shape, one.dtype) for one in others]


def _in_memory(part: Any) -> Any:
    """The only tensor that a part is made of; the part itself, if it is a number or of several."""
    if not is_made_of_others(type(part)):
        return part
    found = list(in_memory(part))
    return found[0] if len(found) == 1 else part


def _are_alike(args: tuple[Any, ...]) -> bool:
    """Whether all lists of tensors are of DTensors, and sharded as the first list is."""
    first = args[0]
    if any(not isinstance(one, DTensor) or _is_a_sum(one) for one in first):
        return False
    for argument in args[1:]:
        if isinstance(argument, DTensor):
            return False
        if not isinstance(argument, list):
            continue
        for one, like in zip(argument, first, strict=True):
            if isinstance(one, (int, float)):
                continue
            if not isinstance(one, DTensor) or one.placements != like.placements:
                return False
            if one.device_mesh is not like.device_mesh:
                return False
    return True


def _is_a_sum(tensor: DTensor) -> bool:
    """Whether the parts of some ranks still have to be added."""
    return any(placement.is_partial() for placement in tensor.placements)
