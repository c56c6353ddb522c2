"""What of torch is changed for a program without data, so that it does what it would do on GPUs.
Tried with torch 2.13.

Runs in the process of recorder.py.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
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
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader, dataloader

Function = Callable[..., Any]
# of a mesh, which DTensor asks at every operator: they look at no data
QUICK = {"__eq__", "__hash__", "size", "get_coordinate", "_is_current_rank_part_of_mesh"}


def adapt(backend: str) -> None:
    """Change what in torch looks at the data of tensors, or does on a CPU what it would not do on a
    GPU.

    Args:
        backend: of all groups, whatever a program calls it.
    """
    # which tries an operator to learn its result's shape
    for kind in (device_mesh.DeviceMesh, ShardingPropagator):
        for name, method in list(vars(kind).items()):
            if inspect.isfunction(method) and name not in QUICK:
                setattr(kind, name, _with_data(method))
    DataLoader.__iter__ = _with_data(DataLoader.__iter__)
    dataloader._BaseDataLoaderIter.__next__ = _with_data(dataloader._BaseDataLoaderIter.__next__)
    for function in (device_mesh.init_device_mesh, _fsdp_init._get_post_forward_mesh_info):
        _replace(function, _with_data(function))
    _replace(c10d._new_process_group_helper, _with_backend(c10d._new_process_group_helper, backend))
    _fsdp_param._chunk_with_empty = _Chunks
    dist._verify_params_across_processes = lambda *_: None
    dist.Reducer = _Reducer
    if hasattr(pipeline_stage, "InferenceMode"):
        schedules._PipelineSchedule._warmup_p2p = _without_vote
    # or else an all_to_all on a CPU is an all_gather, as gloo has none
    dtensor.local_tensor_mode = lambda: True
    torch.compile = _as_it_is_written
    functional.scaled_dot_product_attention = scaled_dot_product_attention
    nn.SyncBatchNorm.forward = _sync_batch_norm
    DistributedDataParallel._passing_sync_batchnorm_handle = lambda *_: None
    # for bfloat16 it would ask for a GPU
    DistributedDataParallel._check_comm_hook = lambda *_: None
    GradScaler._maybe_opt_step = lambda _, optimizer, __, *args, **kwargs: optimizer.step(
        *args, **kwargs
    )
    FakeTensor.__format__ = lambda *_: "(no data)"
    FakeTensor.__deepcopy__ = _deep_copy
    # it draws until all are near
    nn.init._no_grad_trunc_normal_ = lambda tensor, *_, **__: nn.init.normal_(tensor)
    torch.save = checkpoint.save = lambda *_, **__: None


def _replace(function: Function, other: Function) -> None:
    """Put another function in its place, in each module that has it."""
    name = function.__name__
    for module in [one for one in sys.modules.values() if getattr(one, name, None) is function]:
        setattr(module, name, other)


def _as_it_is_written(model: Any = None, **options: Any) -> Any:
    """What torch.compile gets; as a decorator with options, it gets it later."""
    return functools.partial(_as_it_is_written, **options) if model is None else model


def _deep_copy(tensor: FakeTensor, memo: dict[int, Any]) -> Tensor:
    """A copy of a tensor without data; a number that some have nevertheless, as an optimizer's
    `step`, has data.
    """
    if tensor.constant is not None:
        memo[id(tensor.constant)] = _with_data(torch.clone)(tensor.constant)
    return Tensor.__deepcopy__(tensor, memo)


class _Chunks:
    """The parts of a parameter, of which FSDP2 takes two; torch.chunk makes one for each of ten
    thousand ranks.
    """

    def __init__(self, tensor: Tensor, number: int, dim: int):
        self._tensor, self._dim, self._size = tensor, dim, -(-tensor.shape[dim] // number)

    def __getitem__(self, place: int) -> Tensor:
        length = self._tensor.shape[self._dim]
        if (begin := place * self._size) >= length:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, begin, min(self._size, length - begin))


def _with_data(function: Function) -> Function:
    """Compute with real numbers, as meshes of ranks and samplers must."""
    return _disable_current_modes()(function)


def _with_backend(new_group: Function, backend: str) -> Function:
    """Make each group of this backend."""

    @functools.wraps(new_group)
    def call(size: int, rank: int, members: list[int], _: Any, *args: Any, **kwargs: Any) -> Any:
        return new_group(size, rank, members, backend, *args, **kwargs)

    return call


class _Reducer(dist.Reducer):
    """DDP's, with the buckets that it makes after its first step: in the reverse order of the
    parameters.
    """

    def __init__(self, parameters: list[Tensor], _: Any, __: Any, *others: Any):
        sparse, most_bytes = others[1:3]
        limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, most_bytes]
        order = list(range(len(parameters)))[::-1]
        buckets, sizes = dist._compute_bucket_assignment_by_size(
            parameters[::-1], limits, sparse, order
        )
        super().__init__(parameters, buckets, sizes, *others)

    def _rebuild_buckets(self) -> bool:
        return False


def _without_vote(self: Any, stages: list[Any], has_backward: bool, *_: Any) -> None:
    """Since torch 2.13, stages ask each other whether all were given their shapes: as if they
    were.
    """
    for one in stages:
        if pipeline_stage.InferenceMode.needs_dynamic(one._user_meta, has_backward):
            how = 'give each PipelineStage its input_args and output_args, such as torch.empty(8, 64, device="meta")'
            raise NotImplementedError(
                f"here stages cannot ask each other for the shapes of what they send: {how}"
            )
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
    """Attention in a single kernel, which makes no matrix of all scores; context parallelism knows
    no other one.
    """
    if query.dim() != 4 or not torch.backends.cuda.mem_efficient_sdp_enabled():
        return _ON_CPU(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if attn_mask is None and query.shape[-1] == value.shape[-1]:  # with as few keys as there are
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
    if enable_gqa:
        key, value = (
            one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in (key, value)
        )
    bias = None if attn_mask is None else attn_mask.to(query.dtype)
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, bias, True, dropout_p, is_causal, scale=scale)[0]


def _sync_batch_norm(self: nn.SyncBatchNorm, values: Tensor) -> Tensor:
    """The collectives of torch's own, whose kernels no CPU has, besides the kernels of BatchNorm."""
    if self.training:
        group, own = self.process_group or dist.group.WORLD, torch.empty(2 * self.num_features + 1)
        dist.all_gather_into_tensor(torch.empty(group.size() * own.numel()), own, group)
    settings = (
        self.running_mean,
        self.running_var,
        self.weight,
        self.bias,
        self.training,
        self.momentum or 0.0,
    )
    result = functional.batch_norm(values, *settings, self.eps)
    if self.training and result.requires_grad:
        result.register_hook(lambda _: dist.all_reduce(own[1:], group=group))
    return result


def replace_cpu_streams(stream: type, event: type) -> None:
    """Give programs, and FSDP2, other streams and events for a CPU than torch's own, which do
    nothing.
    """
    torch.cpu.Stream, torch.cpu.Event = stream, event
    torch.cpu._default_cpu_stream = torch.cpu._current_stream = stream()
