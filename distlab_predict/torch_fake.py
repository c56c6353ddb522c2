"""The private parts of torch that make tensors without data, and say what an operator does. Tried
with torch 2.13.

Runs in the process of recorder.py; what else is changed there is in torch_changed.py.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from distlab.compat.torch import key_of

# what asks for the value of a tensor raises one of these
NeedsData = fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException


@contextmanager
def without_data(recorder: TorchDispatchMode) -> Iterator[None]:
    """Meanwhile tensors have shapes and no data, and the recorder sees every operator."""
    # without torch.compile nothing must be hidden from it
    for mode in (type(recorder), FakeTensorMode):
        mode.__torch_dispatch__ = inspect.unwrap(mode.__torch_dispatch__)
    with _QuickMode(allow_non_fake_inputs=True), recorder:
        yield


LIBRARIES = {"aten", "prims", "_c10d_functional", "_dtensor"}  # whose operators do nothing besides


class _QuickMode(FakeTensorMode):
    """Fake tensors that remember what each operator makes of which arguments.

    torch's own memory compares more, such as sizes that are symbols, and leaves out operators of
    other libraries; it took most of the time.
    """

    def __init__(self, **options: Any):
        super().__init__(**options)
        # how to make results
        self._known: dict[tuple[Any, ...], Callable[[list[FakeTensor]], FakeTensor] | None] = {}
        remember = self.fake_tensor_converter.set_tensor_memo
        # a reference to a result, which nobody looks up, would keep module.to(...) from changing
        # parameters
        self.fake_tensor_converter.set_tensor_memo = lambda one, fake: (
            None if one.is_meta else remember(one, fake)
        )

    def __deepcopy__(self, _: Any) -> FakeTensorMode:
        """A copy of a tensor belongs to the same mode."""
        return self

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, or make what it has made before."""
        key: list[Any] = [id(func), torch.get_default_dtype()]
        given: list[FakeTensor] = []
        if func.namespace not in LIBRARIES or not self._describe((args, kwargs), key, given):
            return super().dispatch(func, types, args, kwargs or {})
        if make := self._known.get(key := tuple(key)):
            return make(given)
        value = super().dispatch(func, types, args, kwargs or {})
        self._known[key] = (
            None if torch.Tag.inplace_view in func.tags else self._maker(value, given)
        )
        return value

    def _describe(self, values: Any, key: list[Any], tensors: list[FakeTensor]) -> bool:
        """Add all that matters of these values to a key, and their tensors to a list; whether that
        is known.
        """
        for value in values:
            if isinstance(value, FakeTensor):
                if (
                    value.layout is not torch.strided
                    or value.constant is not None
                    or value.is_conj()
                    or value.is_neg()
                ):
                    return False
                key += (
                    value.shape,
                    value.stride(),
                    value.storage_offset(),
                    value.dtype,
                    value.fake_device,
                )
                key.append(value.untyped_storage().nbytes())
                tensors.append(value)
            elif isinstance(value, (tuple, list, dict)):
                key += type(value), len(value)
                if not self._describe(
                    value.items() if isinstance(value, dict) else value, key, tensors
                ):
                    return False
            elif isinstance(value, (Tensor, torch.Generator)):
                return False
            else:
                key += type(value), value
        return True

    def _maker(
        self, value: Any, given: list[FakeTensor]
    ) -> Callable[[list[FakeTensor]], FakeTensor] | None:
        """How to make such a value of such tensors: it is one of them, or has the storage of one,
        or its own.
        """
        like: list[Any] = []
        if not isinstance(value, FakeTensor) or not self._describe([value], like, []):
            return None
        for place, one in enumerate(given):
            if one is value:
                return itemgetter(place)
        own, storages = (
            key_of(value.untyped_storage()),
            [key_of(one.untyped_storage()) for one in given],
        )
        return partial(self._like, like, storages.index(own) if own in storages else None)

    def _like(self, like: list[Any], source: int | None, given: list[FakeTensor]) -> FakeTensor:
        shape, stride, offset, dtype, device, _ = like
        with torch._C._DisableTorchDispatch():
            made = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            if source is not None:
                made.set_(given[source].untyped_storage(), offset, shape, stride)
        return FakeTensor(self, made, device)


# --- what operators compute ---


def traffic(operator: Any, args: tuple, tensors: list[Tensor], made: list[Tensor]) -> int:
    """Bytes that an operator reads and writes: what it is given, what it makes, and what it changes
    in its place.
    """
    if operator_name(operator) == "all_gather_copy_in":  # into this rank's part of what it is given
        return 2 * sum(tensor.nbytes for tensor in args[0])
    arguments = zip(operator._schema.arguments, args, strict=False)
    changed = [
        value
        for argument, value in arguments
        if argument.alias_info and argument.alias_info.is_write
    ]
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
    """Whether this thread computes a forward pass inside of a backward pass, as activation
    checkpointing does.
    """
    return torch._C._current_graph_task_id() != -1 and torch.is_grad_enabled()
