"""Tensors without data, of which an operator makes the same again without running.

Called by rank_children.py and recorder.py, in the process of a rank that is recorded; what else is
changed there is in torch_changed.py. Tried with torch 2.13.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from distlab.compat.torch import key_of
from distlab_predict import torch_known
from distlab_predict.routing import Routing, mark_of
from distlab_predict.torch_fake import COURSE, operator_name, tensors_in
from distlab_predict.torch_patches import put

# of operators that only compute their results, and have no effect elsewhere
LIBRARIES = {"aten", "prims", "_c10d_functional", "_dtensor", COURSE}

# operators that are given known values, the ends of groups, and make none of them
WITHOUT_VALUES = {
    "_grouped_mm",
    "_scaled_grouped_mm",
    "grouped_mm_add_",
    "scaled_grouped_mm_add_",
}

# most kinds of arguments that are no tensors
SINGLE = {bool, int, float, str, type(None), torch.device, torch.dtype, torch.layout}

# operators that wait for a functional collective, and return what they were given
WAITS = {"wait_tensor", "wait_tensors"}

Key = tuple[Any, ...]  # of an operator and its arguments
Made = Callable[[list[Tensor]], Any]  # makes the result of an operator from its tensors


@dataclass(eq=False)
class Known:
    """What is known of an operator with arguments like those that it was called with.

    Attributes:
        make: makes its result of the tensors among its arguments.
        noted: what else is remembered of it; None until then.
    """

    make: Made
    noted: Any = None


@contextmanager
def without_data(recorder: TorchDispatchMode, routing: Routing | None = None) -> Iterator[None]:
    """Meanwhile tensors have shapes and no data, and the recorder sees every operator.

    Args:
        routing: what is assumed of experts; None for balanced ones.
    """
    torch_known.keep_values()
    # torch hides functions from torch.compile, which is not used here and costs time
    put(torch._dynamo, "disable", _not_disabled)
    for mode in (type(recorder), FakeTensorMode):
        put(mode, "__torch_dispatch__", inspect.unwrap(mode.__torch_dispatch__))
    with QuickMode(routing, allow_non_fake_inputs=True), recorder:
        yield


def _not_disabled(function: Any = None, *_: Any, **__: Any) -> Any:
    """Stand in for torch._dynamo.disable, which may be called to make a decorator."""
    return _not_disabled if function is None else function


class QuickMode(FakeTensorMode):
    """Fake tensors that remember what each operator makes of which arguments.

    torch's own memory compares more, such as sizes that are symbols, and leaves out operators of
    other libraries; it took most of the time.

    Attributes:
        routing: what is assumed of experts.
        remembered: what is known, by operator and arguments; None where only torch can make it.
    """

    def __init__(self, routing: Routing | None = None, **options: Any):
        super().__init__(**options)
        self.cache_enabled = False  # torch's own memory, which would be filled and never asked
        self.routing = routing or Routing()
        self.remembered: dict[Key | None, Known | None] = {}
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
        key, given = _key_of(func, args, kwargs)
        known = self.remembered.get(key)
        if known is not None:
            return known.make(given)
        value = self._run(func, types, args, kwargs)
        if key is not None:
            self._remember(key, func, value, given)
        return value

    def _remember(self, key: Key, func: Any, value: Any, given: list[Tensor]) -> None:
        """Remember how to make what an operator has made, unless only torch can."""
        make = None
        if torch.Tag.inplace_view not in func.tags:
            make = self._maker(value, given)
        self.remembered[key] = None if make is None else Known(make)

    def _run(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator, with values where they need no data."""
        if operator_name(func) in WAITS:  # torch's own give the tensors other storages
            return args[0]
        kwargs = kwargs or {}
        run = partial(super().dispatch, func, types, args, kwargs)
        given = [one for one in tensors_in((args, kwargs)) if isinstance(one, FakeTensor)]
        return torch_known.with_values(self, func, args, kwargs, given, run)

    def _maker(self, value: Any, given: list[Tensor]) -> Made | None:
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

    def _maker_of_one(self, value: Any, given: list[Tensor]) -> Made | None:
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

    def _like(self, like: list[Any], source: int | None, given: list[Tensor]) -> FakeTensor:
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


def known(operator: Any, args: Any, kwargs: Any) -> tuple[Known | None, list[Tensor]]:
    """What is known of an operator with such arguments, and the tensors among these.

    Returns:
        None if it must run.
    """
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    if not isinstance(mode, QuickMode):
        return None, []
    key, given = _key_of(operator, args, kwargs)
    return mode.remembered.get(key), given


def _key_of(operator: Any, args: Any, kwargs: Any) -> tuple[Key | None, list[Tensor]]:
    """All that matters of an operator and its arguments, and the tensors among these.

    Returns:
        None if only torch knows all that matters.
    """
    given: list[Tensor] = []
    if operator.namespace not in LIBRARIES:
        return None, given
    key: list[Any] = [id(operator), torch.get_default_dtype()]
    needs_values = operator_name(operator) not in WITHOUT_VALUES
    if not _describe(args, key, given, needs_values):
        return None, given
    if kwargs:
        key.append(dict)
        if not _describe(kwargs.items(), key, given, needs_values):
            return None, given
    return tuple(key), given


def _describe(
    values: Any, key: list[Any], tensors: list[Tensor], needs_values: bool = True
) -> bool:
    """Add to a key all that matters of these values, and their tensors to a list.

    Args:
        needs_values: whether it matters what values tensors have, where these are known.

    Returns:
        Whether all that matters is known.
    """
    for value in values:
        kind = type(value)
        if kind in SINGLE:
            key += (kind, value)
        elif isinstance(value, FakeTensor):
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
            key += (kind, len(value))
            parts = value.items() if isinstance(value, dict) else value
            if not _describe(parts, key, tensors, needs_values):
                return False
        elif isinstance(value, (Tensor, torch.Generator)):
            return False
        else:
            key += (kind, value)
    return True


def _is_plain(tensor: FakeTensor) -> bool:
    """Whether a tensor is strided, without a known value, a mark, and a lazy neg."""
    return (
        tensor.layout is torch.strided
        and tensor.constant is None
        and mark_of(tensor) is None
        and not tensor.is_neg()
    )
