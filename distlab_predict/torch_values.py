"""Has nothing ask for the values of tensors: they have none.

Called by torch_changed.py. What only data decides is in deciding.py, and a number without a value
in no_data.py. Tried with torch 2.13.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.amp import GradScaler
from torch.distributed import checkpoint
from torch.optim import optimizer as optimizers
from torch.utils import _foreach_utils, data
from torch.utils._pytree import tree_map_only

from distlab_predict import no_data, torch_known
from distlab_predict.torch_patches import Function, Patch, do_nothing, with_data

_OWN_ITEM = Tensor.item
_OWN_FLOAT = Tensor.__float__
_OWN_LOAD = torch.load
_OWN_TO_LIST = FakeTensor.tolist


def patches() -> Iterator[Patch]:
    """Have nothing ask for the values of tensors."""
    yield Patch(GradScaler, "_maybe_opt_step", _optimizer_step)
    # or else optimizers and norms take tensors one by one, which they do on a CPU only
    for part in (optimizers, _foreach_utils):
        yield Patch(part, "_get_foreach_kernels_supported_devices", lambda: ["cuda", "cpu"])
        yield Patch(part, "_foreach_supported_types", [*part._foreach_supported_types, FakeTensor])
    yield Patch(FakeTensor, "__format__", lambda *_: no_data.SHOWN)
    yield Patch(Tensor, "item", _item)
    yield Patch(Tensor, "__float__", _float)
    yield Patch(FakeTensor, "numpy", _numpy)
    yield Patch(FakeTensor, "tolist", _to_list)
    yield Patch(data, "random_split", with_data(data.random_split))
    for name, answer in no_data.IS_FINITE.items():
        for owner in (torch, Tensor):
            yield Patch(owner, name, _decided(getattr(owner, name), answer))
    for name, function in no_data.changed_math().items():
        yield Patch(math, name, function)
    yield Patch(FakeTensor, "__deepcopy__", _deep_copy)
    yield Patch(nn.init, "_no_grad_trunc_normal_", _normal)
    yield Patch(torch, "asarray", with_data(torch.asarray))  # of a file, as safetensors does
    yield Patch(torch, "load", _loaded)
    yield Patch(torch, "save", do_nothing)
    yield Patch(checkpoint, "save", do_nothing)


def _item(tensor: Tensor) -> Any:
    """The value of a tensor; one without data gives a number without."""
    try:
        return _OWN_ITEM(tensor)
    except torch_known.NEEDS_VALUES:
        return no_data.NoData()


def _float(tensor: Tensor) -> float:
    """The value of a tensor as Python's own float, which cannot be one without a value."""
    try:
        return _OWN_FLOAT(tensor)
    except torch_known.NEEDS_VALUES:
        raise NotImplementedError(
            "float(tensor) needs a value, and here tensors have only shapes: write tensor.item(), "
            "which gives a number without a value that can be added up and printed"
        ) from None


def _numpy(tensor: FakeTensor, *, force: bool = False) -> Any:
    """The values of a small tensor, if they need no data."""
    if tensor.constant is None:
        raise NotImplementedError(no_data.NEEDED)
    numpy = with_data(torch.Tensor.numpy)
    return numpy(tensor.constant, force=force)


def _loaded(*args: Any, **kwargs: Any) -> Any:
    """What a file has, with tensors that have no data any more."""
    found = with_data(_OWN_LOAD)(*args, **kwargs)
    return tree_map_only(Tensor, Tensor.detach, found)


def _to_list(tensor: FakeTensor) -> Any:
    """The values of a small tensor in one go; torch's own asks for each by itself."""
    if tensor.constant is None:
        return _OWN_TO_LIST(tensor)
    to_list = with_data(torch.Tensor.tolist)
    return to_list(tensor.constant)


def _decided(function: Function, answer: bool) -> Function:
    """Have a function such as isfinite say what is true of the numbers of a training that works."""

    def call(tensor: Tensor) -> Tensor:
        found = function(tensor)
        if isinstance(found, FakeTensor) and found.constant is None:
            return torch_known.filled(found, answer)
        return found

    return call


def _normal(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
    """Draw without limits: torch's own draws again until all values are between them."""
    return nn.init.normal_(tensor)


def _optimizer_step(
    scaler: Any, optimizer: torch.optim.Optimizer, state: Any, *args: Any, **kwargs: Any
) -> Any:
    """Step as if no gradient was infinite, after the look whether one is."""
    sum(flag.item() for flag in state["found_inf_per_device"].values())
    return optimizer.step(*args, **kwargs)


def _deep_copy(tensor: FakeTensor, memo: dict[int, Any]) -> Tensor:
    """Copy a tensor without data.

    Some have a number nevertheless, as an optimizer's `step`, which is copied with its data.
    """
    if tensor.constant is not None:
        copy = with_data(torch.clone)
        memo[id(tensor.constant)] = copy(tensor.constant)
    return Tensor.__deepcopy__(tensor, memo)
