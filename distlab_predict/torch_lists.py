"""Operators on lists of DTensors, as optimizers call them, without DTensor's own way for each one.

Called by recorder.py, in the process of a rank that is recorded. DTensor asks for each element of a
list how its result is sharded, which takes seconds for a model. Where all lists are sharded alike,
the answer is known: as they are. Tried with torch 2.13.
"""

from collections.abc import Callable
from typing import Any

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
