"""The private parts of torch with which a program runs on tensors without data. Tried with torch 2.13.

Runs in the process of predicted/recorder.py.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.distributed import device_mesh
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining import stage as pipeline_stage
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, dataloader
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

Function = Callable[..., Any]
NeedsData = DataDependentOutputException  # what asks for the value of a tensor raises it


@contextmanager
def without_data(recorder: TorchDispatchMode) -> Iterator[None]:
    """Meanwhile tensors have shapes and no data, and the recorder sees every operator."""
    with ExitStack() as modes:
        modes.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        modes.enter_context(recorder)
        yield


def change_methods(kind: type, change: Callable[[Function], Function]) -> None:
    """Change every method that a class defines in Python."""
    for name, function in list(vars(kind).items()):
        if inspect.isfunction(function):
            setattr(kind, name, change(function))


def change_shape_functions(change: Callable[[Function], Function]) -> None:
    """Change what DTensor calls to learn the shape of a result: it tries the operator on tensors of the whole shape."""
    change_methods(ShardingPropagator, change)


def adapt() -> None:
    """Change what in torch looks at the data of tensors."""
    change_methods(device_mesh.DeviceMesh, _with_data)
    DataLoader.__iter__ = _with_data(DataLoader.__iter__)
    dataloader._BaseDataLoaderIter.__next__ = _with_data(dataloader._BaseDataLoaderIter.__next__)
    original = device_mesh.init_device_mesh
    for module in [one for one in sys.modules.values() if getattr(one, "init_device_mesh", None) is original]:
        module.init_device_mesh = _with_data(original)
    _fsdp_param._chunk_with_empty = _Chunks
    dist._verify_params_across_processes = lambda *_: None
    dist.Reducer._rebuild_buckets = lambda *_: False
    DistributedDataParallel._ddp_init_helper = _with_final_buckets(DistributedDataParallel._ddp_init_helper)
    if hasattr(pipeline_stage, "InferenceMode"):
        schedules._PipelineSchedule._warmup_p2p = _without_vote


class _Chunks:
    """The parts of a parameter, of which FSDP2 takes two; torch.chunk makes one for each of ten thousand ranks."""

    def __init__(self, tensor: Tensor, number: int, dim: int):
        self._tensor, self._dim, self._size = tensor, dim, -(-tensor.shape[dim] // number)

    def __getitem__(self, place: int) -> Tensor:
        length = self._tensor.shape[self._dim]
        if (begin := place * self._size) >= length:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, begin, min(self._size, length - begin))


def _with_data(function: Function) -> Function:
    """Compute with real numbers, as meshes of ranks and samplers must."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return call


def _with_final_buckets(init_helper: Function) -> Function:
    """Begin with the buckets that DDP makes after its first step: in the reverse order of the parameters."""
    assign = dist._compute_bucket_assignment_by_size

    @functools.wraps(init_helper)
    def call(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
        def assigned(parameters: list[Tensor], _: Any, *sparse: Any) -> tuple[list[list[int]], list[int]]:
            limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, self.bucket_bytes_cap]
            buckets, sizes = assign(parameters[::-1], limits, *sparse)
            return [[len(parameters) - 1 - one for one in bucket] for bucket in buckets][::-1], sizes[::-1]

        dist._compute_bucket_assignment_by_size = assigned
        try:
            return init_helper(self, *args, **kwargs)
        finally:
            dist._compute_bucket_assignment_by_size = assign

    return call


def _without_vote(self: Any, stages: list[Any], *_: Any) -> None:
    """Since torch 2.13, stages ask each other whether all were given their shapes: as if they were."""
    for one in stages:
        one._inference_mode = pipeline_stage.InferenceMode.STATIC


# --- what operators compute ---

# attention on a CPU, by how many of its arguments are tensors with shapes that count
_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (sdpa_flop_count, 3),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (sdpa_backward_flop_count, 4),
}


def flops_of(operator: Any, value: Any, args: tuple, kwargs: dict[str, Any]) -> int | None:
    """What an operator computes, as FlopCounterMode counts it on a GPU; None if torch has no formula for it."""
    packet = operator._overloadpacket
    if packet in _ATTENTION:
        count, tensors = _ATTENTION[packet]
        return count(*(tensor.shape for tensor in args[:tensors]))
    return flop_registry[packet](*args, **kwargs, out_val=value) if packet in flop_registry else None


def traffic(operator: Any, args: tuple, tensors: list[Tensor], made: list[Tensor]) -> int:
    """Bytes that an operator reads and writes: what it is given, what it makes, and what it changes in its place."""
    if operator_name(operator) == "all_gather_copy_in":  # into this rank's part of what it is given
        return 2 * sum(tensor.nbytes for tensor in args[0])
    arguments = zip(operator._schema.arguments, args, strict=False)
    changed = [value for argument, value in arguments if argument.alias_info and argument.alias_info.is_write]
    written = made or [leaf for leaf in tree_leaves(changed) if isinstance(leaf, Tensor)]
    return sum(tensor.nbytes for tensor in (*tensors, *written))


# --- names ---


def operator_name(operator: Any) -> str:
    """The name of an operator, without its library and overload."""
    return operator._overloadpacket.__name__


def group_named(name: str) -> dist.ProcessGroup:
    """The group that a functional collective names."""
    return dist.distributed_c10d._resolve_process_group(name)


def key_of(storage: torch.UntypedStorage) -> int:
    """What tells a storage from all others that are alive."""
    return storage._cdata


def part_of(tensor: Tensor) -> Tensor:
    """What this rank has of a DTensor; any other tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def repeats_forward() -> bool:
    """Whether this thread computes a forward pass inside of a backward pass, as activation checkpointing does."""
    return torch._C._current_graph_task_id() != -1 and torch.is_grad_enabled()


def replace_cpu_streams(stream: type, event: type, context: type) -> None:
    """Give programs, and FSDP2, other streams and events for a CPU than torch's own, which do nothing."""
    torch.cpu.Stream, torch.cpu.Event, torch.cpu.StreamContext = stream, event, context
    torch.cpu._default_cpu_stream = torch.cpu._current_stream = stream()
