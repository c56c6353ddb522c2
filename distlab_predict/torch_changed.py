"""Patches torch so that a program on fake tensors takes the code paths of a GPU.

Called by recordings.py, before ranks are recorded, and by recorder.py and streams.py. What is
put in the places of torch's own is in torch_groups.py, torch_layers.py and torch_values.py. Tried
with torch 2.13.
"""

import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._library import simple_registry
from torch.distributed import device_mesh
from torch.distributed import distributed_c10d as c10d
from torch.distributed.fsdp._fully_shard import _fsdp_init
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils.data import DataLoader, dataloader

from distlab_predict import torch_groups, torch_layers, torch_values
from distlab_predict.torch_patches import Patch, put, replace, with_data

# methods of a mesh that look at no data: DTensor calls them at every operator
QUICK = {"__eq__", "__hash__", "size", "get_coordinate", "_is_current_rank_part_of_mesh"}


def adapt(backend: str) -> None:
    """Patch what looks at the data of tensors, or does on a CPU what it would not do on a GPU.

    Args:
        backend: of all groups, whatever a program calls it.
    """
    parts = (torch_groups.patches(), torch_layers.patches(), torch_values.patches())
    for patch in itertools.chain(_real_numbers(), *parts):
        put(*patch)
    for function in (device_mesh.init_device_mesh, _fsdp_init._get_post_forward_mesh_info):
        replace(function, with_data(function))
    put(simple_registry, "find_torch_dispatch_rule", _dispatch_rule)  # C++ keeps the first it finds
    new_group = c10d._new_process_group_helper
    replace(new_group, torch_groups.with_backend(new_group, backend))
    # torch's own code asks whether there is one, as in a deep copy
    warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")


def _dispatch_rule(operator: Any, kind: type) -> Any:
    """What torch has a class call instead of an operator: C++ asks each time, and seldom is any."""
    entry = simple_registry.singleton._data.get(operator.__qualname__)
    return None if entry is None else entry.torch_dispatch_rules._data.get(kind)


def _real_numbers() -> Iterator[Patch]:
    """Have meshes and loaders of data compute with real numbers."""
    # the propagator tries an operator to learn its result's shape
    for kind in (device_mesh.DeviceMesh, ShardingPropagator):
        for name, method in list(vars(kind).items()):
            if inspect.isfunction(method) and name not in QUICK:
                yield Patch(kind, name, with_data(method))
    iterator = dataloader._BaseDataLoaderIter
    yield Patch(DataLoader, "__iter__", with_data(DataLoader.__iter__))
    yield Patch(iterator, "__next__", with_data(iterator.__next__))


def after_resize(note: Callable[[torch.UntypedStorage], None]) -> None:
    """Have this called with each storage that has got another size."""
    resize = torch.UntypedStorage.resize_

    def resized(storage: torch.UntypedStorage, size: int) -> Any:
        value = resize(storage, size)
        note(storage)
        return value

    put(torch.UntypedStorage, "resize_", resized)


def replace_streams(stream: type, event: type) -> None:
    """Give a CPU, and GPUs, these streams and events; torch's own of a CPU do nothing."""
    put(torch.cpu, "Stream", stream)
    put(torch.cpu, "Event", event)
    default = stream()
    put(torch.cpu, "_default_cpu_stream", default)
    put(torch.cpu, "_current_stream", default)
    put(torch.cuda, "Stream", stream)
    put(torch.cuda, "Event", event)
    put(torch.cuda, "stream", torch.cpu.stream)
    put(torch.cuda, "default_stream", lambda *_: default)
    for owner in (torch.cuda, torch.accelerator):
        put(owner, "current_stream", lambda *_: torch.cpu.current_stream())
