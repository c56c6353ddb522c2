"""Gives a program that is written for GPUs the GPUs that it asks for.

Called by recordings.py, before ranks are recorded. The described device is the only one here,
and torch calls it "cpu". What a program puts on "cuda" is put there, so a script for GPUs runs as
it is, on a machine without any. Tried with torch 2.13.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp import GradScaler, autocast_mode
from torch.distributed import device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from distlab_predict.no_data import NoData
from distlab_predict.torch_patches import Patch, put

HERE = torch.device("cpu")  # torch's name of the described device
FEWEST = 8  # GPUs of a machine, as programs ask whether there are enough
GIVEN = SimpleNamespace(  # for what a program asks of a GPU before it knows which one it gets
    name="the described device",
    total_memory=80 * 2**30,
    major=9,
    minor=0,
    multi_processor_count=132,
)
# functions of torch.cuda and torch.accelerator that change nothing that is recorded
NOTHING = (
    "_lazy_init",
    "init",
    "set_device",
    "set_device_idx",
    "set_device_index",
    "set_stream",
    "synchronize",
    "empty_cache",
    "empty_host_cache",
    "ipc_collect",
    "manual_seed",
    "manual_seed_all",
    "reset_peak_memory_stats",
    "reset_max_memory_allocated",
    "reset_accumulated_memory_stats",
    "reset_peak_host_memory_stats",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
)
# functions that measure, and here have nothing to measure
MEASURING = (
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "utilization",
)

Function = Callable[..., Any]


def adapt() -> None:
    """Patch what asks for GPUs, moves tensors to them, or is refused without them."""
    for patch in (*_devices(), *_numbers(), *_moves(), *_libraries()):
        put(*patch)


def here(device: Any) -> Any:
    """A device, as a text, a number or itself; the described one if it is a GPU."""
    if isinstance(device, bool):  # non_blocking, by position
        return device
    if isinstance(device, int):
        return HERE
    if isinstance(device, str) and device.partition(":")[0] == "cuda":
        return HERE
    if isinstance(device, torch.device) and device.type == "cuda":
        return HERE
    return device


# --- what a program asks ---


def _devices() -> Iterator[Patch]:
    """Have torch.cuda and torch.accelerator answer as on a machine with GPUs."""
    for owner in (torch.cuda, torch.accelerator):
        for name in NOTHING:
            yield from _patch_of(owner, name, _nothing)
        yield Patch(owner, "is_available", lambda: True)
        yield Patch(owner, "device_count", _device_count)
    for name in ("current_device_index", "current_device_idx"):
        yield Patch(torch.accelerator, name, _local_rank)
    yield Patch(torch.accelerator, "current_accelerator", _accelerator)
    yield Patch(torch.accelerator, "device_index", contextlib.nullcontext)
    yield Patch(torch.cuda, "current_device", _local_rank)
    yield Patch(torch.cuda, "device", contextlib.nullcontext)
    yield Patch(torch.cuda, "device_of", contextlib.nullcontext)
    yield Patch(torch.cuda, "is_bf16_supported", lambda *_, **__: True)
    yield Patch(torch.cuda, "is_current_stream_capturing", lambda: False)
    yield Patch(torch.cuda, "get_device_name", lambda *_: GIVEN.name)
    yield Patch(torch.cuda, "get_device_properties", lambda *_: GIVEN)
    yield Patch(torch.cuda, "get_device_capability", lambda *_: (GIVEN.major, GIVEN.minor))
    yield Patch(torch.cuda, "get_rng_state", lambda *_: torch.get_rng_state())
    yield Patch(torch.cuda, "get_rng_state_all", lambda: [torch.get_rng_state()])
    yield Patch(dist, "is_nccl_available", lambda: True)


def _numbers() -> Iterator[Patch]:
    """Have measures of memory be numbers without a value; they are what a prediction finds."""
    for owner in (torch.cuda, torch.cuda.memory, torch.accelerator):
        for name in MEASURING:
            yield from _patch_of(owner, name, _measured)
        yield from _patch_of(owner, "memory_stats", _measured_by_name)
        yield from _patch_of(owner, "mem_get_info", _free_and_total)


def _patch_of(owner: ModuleType, name: str, value: Any) -> Iterator[Patch]:
    """A patch of a function that this version of torch has."""
    if hasattr(owner, name):
        yield Patch(owner, name, value)


def _nothing(*_: Any, **__: Any) -> None:
    """Stand in for what has no effect on what is recorded."""


def _device_count() -> int:
    """GPUs of a machine: as many as it has ranks, and enough for a program that asks."""
    return max(FEWEST, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def _accelerator(*_: Any, **__: Any) -> torch.device:
    return torch.device("cuda")


def _measured(*_: Any, **__: Any) -> NoData:
    return NoData()


def _measured_by_name(*_: Any, **__: Any) -> dict[str, NoData]:
    return defaultdict(NoData)


def _free_and_total(*_: Any, **__: Any) -> tuple[int, int]:
    return GIVEN.total_memory, GIVEN.total_memory


# --- where a program puts tensors ---


def _moves() -> Iterator[Patch]:
    """Have tensors and modules stay where they are when a program moves them to a GPU."""
    yield Patch(Tensor, "to", _moved(Tensor.to))
    yield Patch(Tensor, "cuda", lambda tensor, *_, **__: tensor)
    yield Patch(Tensor, "pin_memory", lambda tensor, *_, **__: tensor)
    yield Patch(torch._C._nn, "_parse_to", _parsed(torch._C._nn._parse_to))
    # a loader sets it, and would start a thread that pins
    yield Patch(DataLoader, "pin_memory", property(lambda _: False, _nothing))
    yield Patch(torch, "load", _loaded(torch.load))
    for name in ("tensor", "as_tensor", "asarray"):  # these make a tensor, and move it
        yield Patch(torch, name, _made(getattr(torch, name)))


def _moved(move: Function) -> Function:
    @functools.wraps(move)
    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if args:
            return move(tensor, here(args[0]), *args[1:], **_with_device_here(kwargs))
        return move(tensor, **_with_device_here(kwargs))

    return to


def _made(make: Function) -> Function:
    @functools.wraps(make)
    def call(*args: Any, **kwargs: Any) -> Tensor:
        return make(*args, **_with_device_here(kwargs))

    return call


def _parsed(parse: Function) -> Function:
    """What nn.Module.to is given."""

    def parse_to(*args: Any, **kwargs: Any) -> Any:
        return parse(*map(here, args), **_with_device_here(kwargs))

    return parse_to


def _loaded(load: Function) -> Function:
    @functools.wraps(load)
    def call(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return load(file, here(map_location), *args, **kwargs)

    return call


def _with_device_here(kwargs: dict[str, Any]) -> dict[str, Any]:
    if "device" in kwargs:
        return {**kwargs, "device": here(kwargs["device"])}
    return kwargs


# --- what a program hands its device to ---


def _libraries() -> Iterator[Patch]:
    """Have autocast, GradScaler, meshes and DDP be given the described device."""
    autocast = autocast_mode.autocast
    yield Patch(autocast, "__init__", _autocast(autocast.__init__))
    yield Patch(GradScaler, "__init__", _on_device(GradScaler.__init__, "device"))
    mesh = device_mesh.DeviceMesh
    yield Patch(mesh, "__init__", _on_device(mesh.__init__, "device_type"))
    yield Patch(DistributedDataParallel, "__init__", _ddp(DistributedDataParallel.__init__))


def _autocast(init: Function) -> Function:
    """Have autocast on a GPU be that of the described device, with a GPU's number format."""

    @functools.wraps(init)
    def call(
        self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
    ) -> None:
        if device_type == "cuda":
            device_type = HERE.type
            dtype = dtype or torch.float16
        init(self, device_type, dtype, *args, **kwargs)

    return call


def _on_device(init: Function, name: str) -> Function:
    """Have an argument, a type of devices, be that of the described one if it is a GPU's."""
    signature = inspect.signature(init)

    @functools.wraps(init)
    def call(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        if given.arguments[name] == "cuda":
            given.arguments[name] = HERE.type
        init(*given.args, **given.kwargs)

    return call


def _ddp(init: Function) -> Function:
    """Leave out the GPU of DDP's module, which it would look for."""

    @functools.wraps(init)
    def call(
        self: Any,
        module: Any,
        device_ids: Any = None,
        output_device: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        init(self, module, None, None, *args, **kwargs)

    return call
