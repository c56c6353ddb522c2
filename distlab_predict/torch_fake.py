"""The private parts of torch that make tensors without data, and say what an operator does.

Called by recorder.py and rank_children.py, in the process of a rank that is recorded; what else is
changed there is in torch_changed.py. Tried with torch 2.13.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from distlab.compat.torch import key_of
from distlab_predict import torch_known
from distlab_predict.routing import Routing, mark_of
from distlab_predict.torch_patches import put

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import GroupName

# what asks for the value of a tensor raises one of these
NeedsData = fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException

# of operators that only compute their results, and have no effect elsewhere
LIBRARIES = {"aten", "prims", "_c10d_functional", "_dtensor"}

# operators that are given known values, the ends of groups, and make none of them
WITHOUT_VALUES = {"_grouped_mm", "_scaled_grouped_mm"}

READING = torch.ops.aten._local_scalar_dense.default  # the operator that gives Python a number

# the operator that waits for a functional collective, and returns what it was given
WAITING = torch.ops._c10d_functional.wait_tensor.default

Made = Callable[[list[FakeTensor]], Any]  # makes the result of an operator from its tensors


@contextmanager
def without_data(recorder: TorchDispatchMode, routing: Routing | None = None) -> Iterator[None]:
    """Meanwhile tensors have shapes and no data, and the recorder sees every operator.

    Args:
        routing: what is assumed of experts; None for balanced ones.
    """
    # torch hides these methods from torch.compile, which is not used here and costs time
    torch_known.keep_values()
    for mode in (type(recorder), FakeTensorMode):
        put(mode, "__torch_dispatch__", inspect.unwrap(mode.__torch_dispatch__))
    with _QuickMode(routing, allow_non_fake_inputs=True), recorder:
        yield


class _QuickMode(FakeTensorMode):
    """Fake tensors that remember what each operator makes of which arguments.

    torch's own memory compares more, such as sizes that are symbols, and leaves out operators of
    other libraries; it took most of the time.
    """

    def __init__(self, routing: Routing | None = None, **options: Any):
        super().__init__(**options)
        self.routing = routing or Routing()
        # by operator and arguments: how to make the result; None where only torch can
        self._known: dict[tuple[Any, ...], Made | None] = {}
        self._attributes: dict[torch.device, dict[str, Any]] = {}  # of any fake tensor there
        self._forget_results()
        torch_known.keep_values_of_real(self)

    def _forget_results(self) -> None:
        """Have torch's converter remember fake tensors of real ones only.

        A reference to a result, which nobody looks up, would keep module.to(...) from changing
        parameters.
        """
        remember = self.fake_tensor_converter.set_tensor_memo

        def remember_real(tensor: Tensor, made: FakeTensor) -> None:
            if not tensor.is_meta:
                remember(tensor, made)

        put(self.fake_tensor_converter, "set_tensor_memo", remember_real)

    def __deepcopy__(self, _: Any) -> FakeTensorMode:
        """Return the mode itself, to which a copy of a tensor belongs as well."""
        return self

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, or make what it has made before."""
        if func.namespace == "profiler":  # it names a span of time, for nobody here
            with no_dispatch():
                return func(*args, **(kwargs or {}))
        if func is WAITING:  # torch's own gives the tensor another storage
            return args[0]
        if func.namespace not in LIBRARIES:
            return self._run(func, types, args, kwargs)
        described: list[Any] = [id(func), torch.get_default_dtype()]
        given: list[FakeTensor] = []
        needs_values = operator_name(func) not in WITHOUT_VALUES
        if not _describe((args, kwargs), described, given, needs_values):
            return self._run(func, types, args, kwargs)
        key = tuple(described)
        make = self._known.get(key)
        if make is not None:
            return make(given)
        value = self._run(func, types, args, kwargs)
        if torch.Tag.inplace_view in func.tags:
            self._known[key] = None
        else:
            self._known[key] = self._maker(value, given)
        return value

    def _run(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator, with values where they need no data."""
        kwargs = kwargs or {}
        run = partial(super().dispatch, func, types, args, kwargs)
        given = [one for one in tensors_in((args, kwargs)) if isinstance(one, FakeTensor)]
        return torch_known.with_values(self, func, args, kwargs, given, run)

    def _maker(self, value: Any, given: list[FakeTensor]) -> Made | None:
        """How to make such a value of such tensors; None if only torch can."""
        if not isinstance(value, (tuple, list)):
            return self._maker_of_one(value, given)
        makers = [self._maker_of_one(one, given) for one in value]
        new = [key_of(one.untyped_storage()) for one in tensors_in(value)]
        shared = {key_of(tensor.untyped_storage()) for tensor in given}
        own = [key for key in new if key not in shared]
        known = [make for make in makers if make is not None]
        if len(known) < len(makers) or len(set(own)) < len(own):
            return None
        kind = list if isinstance(value, list) else tuple
        return lambda tensors: kind([make(tensors) for make in known])

    def _maker_of_one(self, value: Any, given: list[FakeTensor]) -> Made | None:
        """The same of a single tensor.

        It is one of them, or has the storage of one, or a storage of its own.
        """
        if not isinstance(value, FakeTensor) or mark_of(value) is not None or value.is_conj():
            return None
        like: list[Any] = []
        if not _describe([value], like, []):
            return None
        for place, tensor in enumerate(given):
            if tensor is value:
                return itemgetter(place)
        own = key_of(value.untyped_storage())
        source = None
        for place, tensor in enumerate(given):
            if key_of(tensor.untyped_storage()) == own:
                source = place
                break
        return partial(self._like, like, source)

    def _like(self, like: list[Any], source: int | None, given: list[FakeTensor]) -> FakeTensor:
        """A tensor of this description, in the storage of the given one at `source`."""
        shape, stride, offset, dtype, device, *_ = like
        with torch._C._DisableTorchDispatch():
            made = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            if source is not None:
                made.set_(given[source].untyped_storage(), offset, shape, stride)
        return self._quickly_made(made, device)

    def _quickly_made(self, empty: Tensor, device: torch.device) -> FakeTensor:
        """A fake tensor with the attributes of one that torch's own, slow constructor has made."""
        if device not in self._attributes:
            slow = FakeTensor(self, empty, device)
            self._attributes[device] = dict(vars(slow))
            return slow
        made = Tensor._make_subclass(
            FakeTensor, empty, False, dispatch_device=True, device_for_backend_keys=device
        )
        vars(made).update(self._attributes[device])
        return made


def _describe(
    values: Any, key: list[Any], tensors: list[FakeTensor], needs_values: bool = True
) -> bool:
    """Add to a key all that matters of these values, and their tensors to a list.

    Args:
        needs_values: whether it matters what values tensors have, where these are known.

    Returns:
        Whether all that matters is known.
    """
    for value in values:
        if isinstance(value, FakeTensor):
            if needs_values and not _is_plain(value):
                return False
            key += (  # _like takes them apart
                value.shape,
                value.stride(),
                value.storage_offset(),
                value.dtype,
                value.fake_device,
                value.is_conj(),
                value.untyped_storage().nbytes(),
            )
            tensors.append(value)
        elif isinstance(value, (tuple, list, dict)):
            key += (type(value), len(value))
            parts = value.items() if isinstance(value, dict) else value
            if not _describe(parts, key, tensors, needs_values):
                return False
        elif isinstance(value, (Tensor, torch.Generator)):
            return False
        else:
            key += (type(value), value)
    return True


def _is_plain(tensor: FakeTensor) -> bool:
    """Whether a tensor is strided, without a known value, a mark, and a lazy neg."""
    return (
        tensor.layout is torch.strided
        and tensor.constant is None
        and mark_of(tensor) is None
        and not tensor.is_neg()
    )


# --- what operators compute ---


def traffic(operator: Any, args: tuple, tensors: list[Tensor], made: list[Tensor]) -> int:
    """Bytes that an operator reads and writes.

    It reads what it is given, and writes what it makes, or what it changes in place.

    Args:
        operator: of torch.ops.
        args: what it was called with.
        tensors: those among them.
        made: those that it has returned.
    """
    if operator_name(operator) == "all_gather_copy_in":  # into this rank's part of what it is given
        return 2 * sum(tensor.nbytes for tensor in args[0])
    written = made or tensors_in(changed(operator, args))
    return sum(tensor.nbytes for tensor in (*tensors, *written))


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


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors among what an operator takes or returns."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from tensors_in(one)


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


def ddp_asks(operator: Any, caller: FrameType) -> bool:
    """Whether DDP asks, at the end of a backward pass, if a parameter was used on any rank."""
    asks = operator is READING
    return asks and caller.f_code is torch.autograd.graph._engine_run_backward.__code__


def is_in_backward() -> bool:
    """Whether this thread runs a backward pass."""
    return torch._C._current_graph_task_id() != -1


def repeats_forward() -> bool:
    """Whether this thread computes a forward pass inside of a backward pass.

    Activation checkpointing does so.
    """
    return is_in_backward() and torch.is_grad_enabled()
