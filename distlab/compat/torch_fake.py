"""The private parts of torch that make tensors without data, and say what an operator does. Tried with torch 2.13.

Runs in the process of predicted/recorder.py; what else is changed there is in torch_changed.py.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

# what asks for the value of a tensor raises one of these
NeedsData = fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException


@contextmanager
def without_data(recorder: TorchDispatchMode) -> Iterator[None]:
    """Meanwhile tensors have shapes and no data, and the recorder sees every operator."""
    for mode in (type(recorder), FakeTensorMode):  # without torch.compile nothing must be hidden from it
        mode.__torch_dispatch__ = inspect.unwrap(mode.__torch_dispatch__)
    with _QuickMode(allow_non_fake_inputs=True), recorder:
        yield


LIBRARIES = {"aten", "prims", "_c10d_functional", "_dtensor"}  # whose operators do nothing besides
UNLIKE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}


class _QuickMode(FakeTensorMode):
    """Fake tensors that remember what each operator makes of which arguments.

    torch's own memory compares more, such as sizes that are symbols, and leaves out operators of other libraries; it
    took most of the time.
    """

    def __init__(self, **options: Any):
        super().__init__(**options)
        self._made: dict[tuple[Any, ...], tuple[int | None, Any] | None] = {}
        self._attributes: dict[torch.device, dict[str, Any]] = {}  # of every fake tensor on a device
        remember = self.fake_tensor_converter.set_tensor_memo
        # a reference to a result, which nobody looks up, would keep module.to(...) from changing parameters
        self.fake_tensor_converter.set_tensor_memo = lambda one, fake: None if one.is_meta else remember(one, fake)

    def __deepcopy__(self, _: Any) -> FakeTensorMode:
        """A copy of a tensor belongs to the same mode."""
        return self

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, or make what it has made before."""
        key: list[Any] = [id(func), torch.get_default_dtype()]
        if func.namespace not in LIBRARIES or not self._describe(key, (args, kwargs)):
            return super().dispatch(func, types, args, kwargs or {})
        if known := self._made.get(key := tuple(key)):
            source, like = known
            return args[source] if like is None else self._like(like, None if source is None else args[source])
        value = super().dispatch(func, types, args, kwargs or {})
        self._made[key] = None if UNLIKE.intersection(func.tags) else self._recipe(value, args, kwargs)
        return value

    def _describe(self, key: list[Any], values: Any) -> bool:
        """Add to the key all that matters of these arguments; whether that is known."""
        for value in values:
            if isinstance(value, FakeTensor):
                if value.layout is not torch.strided or value.constant is not None:
                    return False
                key += value.dtype, value.shape, value.stride(), value.storage_offset(), value.fake_device
                key += value.untyped_storage().nbytes(), value.requires_grad, value.is_inference()
                key += value.is_conj(), value.is_neg()
            elif isinstance(value, (tuple, list, dict)):
                key += type(value), len(value)
                if not self._describe(key, value.items() if isinstance(value, dict) else value):
                    return False
            elif isinstance(value, (Tensor, torch.Generator)):
                return False
            else:
                key += type(value), value
        return True

    def _recipe(self, value: Any, args: Any, kwargs: Any) -> tuple[int | None, Any] | None:
        """The place of the argument that is the result, or whose storage it has, and what a new result is like."""
        if not isinstance(value, FakeTensor) or value.constant is not None or value.is_conj() or value.is_neg():
            return None
        own, source = value.untyped_storage()._cdata, None
        for place, one in enumerate(args):
            if one is value:
                return place, None
            if isinstance(one, FakeTensor) and one.untyped_storage()._cdata == own:
                source = place
        if source is None and any(one.untyped_storage()._cdata == own for one in tensors_in((args, kwargs))):
            return None
        device = value.fake_device
        self._attributes.setdefault(device, dict(vars(value)))
        shape = value.shape, value.stride(), value.storage_offset()
        return source, (shape, value.dtype, device, value.requires_grad)

    def _like(self, like: Any, base: FakeTensor | None) -> FakeTensor:
        (shape, stride, offset), dtype, device, requires_grad = like
        with torch._C._DisableTorchDispatch():
            if base is None:
                made = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            else:
                made = torch.empty(0, dtype=dtype, device="meta")
                made.set_(base.untyped_storage(), offset, shape, stride)
        options = {"dispatch_device": True, "device_for_backend_keys": device}
        tensor = Tensor._make_subclass(FakeTensor, made, requires_grad, **options)
        torch._C._set_warn_deprecated_on_mutable_data_ptr(tensor)
        vars(tensor).update(self._attributes[device])
        return tensor


# --- what operators compute ---


def traffic(operator: Any, args: tuple, tensors: list[Tensor], made: list[Tensor]) -> int:
    """Bytes that an operator reads and writes: what it is given, what it makes, and what it changes in its place."""
    if operator_name(operator) == "all_gather_copy_in":  # into this rank's part of what it is given
        return 2 * sum(tensor.nbytes for tensor in args[0])
    arguments = zip(operator._schema.arguments, args, strict=False)
    changed = [value for argument, value in arguments if argument.alias_info and argument.alias_info.is_write]
    return sum(tensor.nbytes for tensor in (*tensors, *(made or tensors_in(changed))))


# --- arguments and names ---


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors among what an operator takes or returns."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(one)


def operator_name(operator: Any) -> str:
    """The name of an operator, without its library and overload."""
    return operator._overloadpacket.__name__


def named(operator: Any, args: tuple) -> dict[str, Any]:
    """The arguments of an operator by their names."""
    return dict(zip((one.name for one in operator._schema.arguments), args, strict=False))


def group_named(name: str) -> dist.ProcessGroup:
    """The group that a functional collective names."""
    return dist.distributed_c10d._resolve_process_group(name)


def device_of(tensor: Tensor) -> torch.device:
    """Where a tensor is, or would be."""
    return tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device


def part_of(tensor: Tensor) -> Tensor:
    """What this rank has of a DTensor; any other tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def ddp_asks(operator: Any, caller: FrameType) -> bool:
    """Whether DDP asks, at the end of a backward pass, if a parameter was used on any rank."""
    asks = operator is torch.ops.aten._local_scalar_dense.default
    return asks and caller.f_code is torch.autograd.graph._engine_run_backward.__code__


def repeats_forward() -> bool:
    """Whether this thread computes a forward pass inside of a backward pass, as activation checkpointing does."""
    return torch._C._current_graph_task_id() != -1 and torch.is_grad_enabled()
