"""The private parts of torch with which a program runs on tensors without data. Tried with torch 2.13.

Runs in the process of predicted/recorder.py.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.amp import GradScaler
from torch.distributed import checkpoint, device_mesh
from torch.distributed import distributed_c10d as c10d
from torch.distributed.fsdp._fully_shard import _fsdp_init, _fsdp_param
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining import stage as pipeline_stage
from torch.distributed.tensor import _collective_utils as dtensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.data import DataLoader, dataloader

Function = Callable[..., Any]
NeedsData = DataDependentOutputException, DynamicOutputShapeException  # what asks for the value of a tensor raises one
DTensorShapes = ShardingPropagator  # learns the shape of a result: it tries the operator on tensors of the whole shape


@contextmanager
def without_data(recorder: TorchDispatchMode) -> Iterator[None]:
    """Meanwhile tensors have shapes and no data, and the recorder sees every operator."""
    for mode in (type(recorder), FakeTensorMode):  # without torch.compile nothing must be hidden from it
        mode.__torch_dispatch__ = inspect.unwrap(mode.__torch_dispatch__)
    with ExitStack() as modes:
        modes.enter_context(_QuickMode(allow_non_fake_inputs=True))
        modes.enter_context(recorder)
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


# of a mesh, which DTensor asks at every operator: they look at no data
QUICK = {"__eq__", "__hash__", "size", "get_coordinate", "_is_current_rank_part_of_mesh"}


def change_methods(kind: type, change: Callable[[Function], Function]) -> None:
    """Change every method that a class defines in Python, but for the quick ones."""
    for name, function in list(vars(kind).items()):
        if inspect.isfunction(function) and name not in QUICK:
            setattr(kind, name, change(function))


def adapt(backend: str) -> None:
    """Change what in torch looks at the data of tensors, or does on a CPU what it would not do on a GPU.

    Args:
        backend: of all groups, whatever a program calls it.
    """
    change_methods(device_mesh.DeviceMesh, _with_data)
    DataLoader.__iter__ = _with_data(DataLoader.__iter__)
    dataloader._BaseDataLoaderIter.__next__ = _with_data(dataloader._BaseDataLoaderIter.__next__)
    for function in (device_mesh.init_device_mesh, _fsdp_init._get_post_forward_mesh_info):
        _replace(function, _with_data(function))
    _replace(c10d._new_process_group_helper, _with_backend(c10d._new_process_group_helper, backend))
    _fsdp_param._chunk_with_empty = _Chunks
    dist._verify_params_across_processes = lambda *_: None
    dist.Reducer._rebuild_buckets = lambda *_: False
    DistributedDataParallel._ddp_init_helper = _with_final_buckets(DistributedDataParallel._ddp_init_helper)
    if hasattr(pipeline_stage, "InferenceMode"):
        schedules._PipelineSchedule._warmup_p2p = _without_vote
    dtensor.local_tensor_mode = lambda: True  # or else an all_to_all on a CPU is an all_gather, as gloo has none
    torch.compile = _as_it_is_written
    functional.scaled_dot_product_attention = scaled_dot_product_attention
    nn.SyncBatchNorm.forward = _sync_batch_norm
    DistributedDataParallel._passing_sync_batchnorm_handle = lambda *_: None
    DistributedDataParallel._check_comm_hook = lambda *_: None  # for bfloat16 it would ask for a GPU
    GradScaler._maybe_opt_step = lambda _, optimizer, __, *args, **kwargs: optimizer.step(*args, **kwargs)
    FakeTensor.__format__ = lambda *_: "(no data)"
    nn.init._no_grad_trunc_normal_ = lambda tensor, *_, **__: nn.init.normal_(tensor)  # it draws until all are near
    torch.save = checkpoint.save = lambda *_, **__: None


def _replace(function: Function, other: Function) -> None:
    """Put another function in its place, in each module that has it."""
    name = function.__name__
    for module in [one for one in sys.modules.values() if getattr(one, name, None) is function]:
        setattr(module, name, other)


def _as_it_is_written(model: Any = None, **options: Any) -> Any:
    """What torch.compile gets; as a decorator with options, it gets it later."""
    return functools.partial(_as_it_is_written, **options) if model is None else model


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


def _with_backend(new_group: Function, backend: str) -> Function:
    """Make each group of this backend."""

    @functools.wraps(new_group)
    def call(size: int, rank: int, members: list[int], _: Any, *args: Any, **kwargs: Any) -> Any:
        return new_group(size, rank, members, backend, *args, **kwargs)

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


def _without_vote(self: Any, stages: list[Any], has_backward: bool, *_: Any) -> None:
    """Since torch 2.13, stages ask each other whether all were given their shapes: as if they were."""
    for one in stages:
        if pipeline_stage.InferenceMode.needs_dynamic(one._user_meta, has_backward):
            how = 'give each PipelineStage its input_args and output_args, such as torch.empty(8, 64, device="meta")'
            raise NotImplementedError(f"here stages cannot ask each other for the shapes of what they send: {how}")
        one._inference_mode = pipeline_stage.InferenceMode.STATIC


# --- what layers do on a GPU ---

_ON_CPU = functional.scaled_dot_product_attention


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention in a single kernel, which makes no matrix of all scores; context parallelism knows no other one."""
    if query.dim() != 4 or not torch.backends.cuda.mem_efficient_sdp_enabled():
        return _ON_CPU(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if enable_gqa:
        key, value = (one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in (key, value))
    if attn_mask is None and query.shape[-1] == value.shape[-1]:
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
    bias = None if attn_mask is None else attn_mask.to(query.dtype)
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, bias, True, dropout_p, is_causal, scale=scale)[0]


def _sync_batch_norm(self: nn.SyncBatchNorm, values: Tensor) -> Tensor:
    """The collectives of torch's own, whose kernels no CPU has, besides the kernels of BatchNorm."""
    if self.training:
        group, own = self.process_group or dist.group.WORLD, torch.empty(2 * self.num_features + 1)
        dist.all_gather_into_tensor(torch.empty(group.size() * own.numel()), own, group)
    settings = self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum or 0.0
    result = functional.batch_norm(values, *settings, self.eps)
    if self.training and result.requires_grad:
        result.register_hook(lambda _: dist.all_reduce(own[1:], group=group))
    return result


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


def replace_cpu_streams(stream: type, event: type, context: type) -> None:
    """Give programs, and FSDP2, other streams and events for a CPU than torch's own, which do nothing."""
    torch.cpu.Stream, torch.cpu.Event, torch.cpu.StreamContext = stream, event, context
    torch.cpu._default_cpu_stream = torch.cpu._current_stream = stream()
