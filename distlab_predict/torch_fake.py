"""The private parts of torch that say what an operator does, and on which tensors.

Called by recorder.py and all that it calls, in the process of a rank that is recorded; tensors
without data are made in torch_quick.py. Tried with torch 2.13.
"""

from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import GroupName

# what asks for the value of a tensor raises one of these
NeedsData = fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException

READING = torch.ops.aten._local_scalar_dense.default  # the operator that gives Python a number
COURSE = "distlab"  # the library of operators of the course, see distlab_course/added_products.py
DEVICE = torch.ops.prim.device.default  # C++ calls it to learn where a tensor is


# --- what operators compute ---


def traffic(operator: Any, args: tuple, tensors: list[Tensor], made: list[Tensor]) -> int:
    """Bytes that an operator reads and writes.

    It reads what it is given, but for `out`, and writes what it makes, or what it changes in place.

    Args:
        operator: of torch.ops.
        args: what it was called with.
        tensors: those among them.
        made: those that it has returned.
    """
    if operator_name(operator) == "all_gather_copy_in":  # into this rank's part of what it is given
        return 2 * sum(tensor.nbytes for tensor in args[0])
    written = made or tensors_in(changed(operator, args))
    read = tensors
    if operator._overloadname == "out":
        read = [tensor for tensor in tensors if all(tensor is not other for other in made)]
    return sum(tensor.nbytes for tensor in (*read, *written))


def changes_arguments(operator: Any) -> bool:
    """Whether an operator changes any of its arguments in place."""
    return operator._schema.is_mutable


def changed(operator: Any, args: tuple) -> list[Any]:
    """The arguments that an operator changes in place."""
    found = []
    for argument, value in zip(operator._schema.arguments, args, strict=False):
        if argument.alias_info and argument.alias_info.is_write:
            found.append(value)
    return found


def counts_mask(args: tuple) -> bool:
    """Whether an operator that indexes must know how many elements a mask takes.

    It need not if it writes the same number into all of them.
    """
    _, indices, *values = args
    if values and values[0].numel() == 1:
        return False
    return any(mask.dtype in (torch.bool, torch.uint8) for mask in tensors_in(indices))


# --- arguments and names ---


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors among what an operator takes or returns."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return []
    found = []
    for one in value:
        if isinstance(one, Tensor):
            found.append(one)
        else:
            found += tensors_in(one)
    return found


def operator_name(operator: Any) -> str:
    """The name of an operator, without its library and overload."""
    return operator._overloadpacket.__name__


def place_of(operator: Any, name: str) -> int:
    """The place of an argument of an operator; -1 if it has none of this name."""
    names = [argument.name for argument in operator._schema.arguments]
    return names.index(name) if name in names else -1


def named(operator: Any, args: tuple) -> dict[str, Any]:
    """The arguments of an operator by their names."""
    names = (argument.name for argument in operator._schema.arguments)
    return dict(zip(names, args, strict=False))


def group_named(name: str) -> dist.ProcessGroup:
    """The group that a functional collective names."""
    # a GroupName is a text, but its type says that torch has made it
    return dist.distributed_c10d._resolve_process_group(cast("GroupName", name))


def device_of(tensor: Tensor) -> torch.device:
    """Where a tensor is, or would be."""
    if isinstance(tensor, FakeTensor):
        return tensor.fake_device
    return tensor.device


def is_made_of_others(kind: type) -> bool:
    """Whether tensors of a class have no memory of their own, as a DTensor or a pair of tensors."""
    return hasattr(kind, "__tensor_flatten__")


def in_memory(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors that a tensor is made of in the end; itself, if it has memory of its own."""
    if not is_made_of_others(type(tensor)):
        yield tensor
        return
    names, _ = cast("Any", tensor).__tensor_flatten__()
    for name in names:
        part = getattr(tensor, name)
        if isinstance(part, Tensor):  # and not the mesh of a DTensor
            yield from in_memory(part)


def part_of(tensor: Tensor) -> Tensor:
    """What this rank has of a DTensor; any other tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def ddp_asks(caller: FrameType) -> bool:
    """Whether DDP reads a number at the end of a backward pass: whether any rank uses a parameter.

    Args:
        caller: of the operator that reads it.
    """
    return caller.f_code is torch.autograd.graph._engine_run_backward.__code__


def is_in_backward() -> bool:
    """Whether this thread runs a backward pass."""
    return torch._C._current_graph_task_id() != -1


def repeats_forward() -> bool:
    """Whether this thread computes a forward pass inside of a backward pass.

    Activation checkpointing does so.
    """
    return is_in_backward() and torch.is_grad_enabled()
