"""Patches torch so that a program on fake tensors takes the code paths of a GPU.

Called by rank_children.py, before ranks are recorded, and by recorder.py and streams.py. Tried with
torch 2.13.
"""

import functools
import inspect
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

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
from torch.optim import optimizer as optimizers
from torch.utils import _foreach_utils, data
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, dataloader

from distlab_predict import no_data, torch_known

Function = Callable[..., Any]
# methods of a mesh that look at no data: DTensor calls them at every operator
QUICK = {"__eq__", "__hash__", "size", "get_coordinate", "_is_current_rank_part_of_mesh"}


class Patch(NamedTuple):
    """Another value for an attribute of a class or a module."""

    owner: Any
    name: str
    value: Any


def put(owner: Any, name: str, value: Any) -> None:
    """Give an object of torch another attribute, which type checkers do not allow by assignment."""
    setattr(owner, name, value)


def adapt(backend: str) -> None:
    """Patch what looks at the data of tensors, or does on a CPU what it would not do on a GPU.

    Args:
        backend: of all groups, whatever a program calls it.
    """
    for patch in (*_real_numbers(), *_groups(), *_layers(), *_tensors()):
        put(*patch)
    for function in (device_mesh.init_device_mesh, _fsdp_init._get_post_forward_mesh_info):
        _replace(function, _with_data(function))
    _replace(c10d._new_process_group_helper, _with_backend(c10d._new_process_group_helper, backend))
    # torch's own code asks whether there is one, as in a deep copy
    warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")


def _real_numbers() -> Iterator[Patch]:
    """Have meshes and loaders of data compute with real numbers."""
    # the propagator tries an operator to learn its result's shape
    for kind in (device_mesh.DeviceMesh, ShardingPropagator):
        for name, method in list(vars(kind).items()):
            if inspect.isfunction(method) and name not in QUICK:
                yield Patch(kind, name, _with_data(method))
    iterator = dataloader._BaseDataLoaderIter
    yield Patch(DataLoader, "__iter__", _with_data(DataLoader.__iter__))
    yield Patch(iterator, "__next__", _with_data(iterator.__next__))


def _groups() -> Iterator[Patch]:
    """Have DDP, FSDP2, DTensor and pipelines call what they call on GPUs."""
    yield Patch(dist, "_verify_params_across_processes", _do_nothing)
    yield Patch(dist, "Reducer", _Reducer)
    # for bfloat16 it would ask for a GPU
    yield Patch(DistributedDataParallel, "_check_comm_hook", _do_nothing)
    yield Patch(DistributedDataParallel, "_passing_sync_batchnorm_handle", _do_nothing)
    yield Patch(_fsdp_param, "_chunk_with_empty", _Chunks)
    # or else an all_to_all on a CPU is an all_gather, as gloo has none
    yield Patch(dtensor, "local_tensor_mode", lambda: True)
    if hasattr(pipeline_stage, "InferenceMode"):
        yield Patch(schedules._PipelineSchedule, "_warmup_p2p", _without_vote)


def _layers() -> Iterator[Patch]:
    """Have layers call the kernels that they call on a GPU."""
    yield Patch(functional, "scaled_dot_product_attention", scaled_dot_product_attention)
    yield Patch(nn.SyncBatchNorm, "forward", _sync_batch_norm)
    yield Patch(torch, "compile", _as_it_is_written)
    # it cannot compile what calls a function that is replaced here
    yield Patch(torch.jit, "script", _as_it_is_written)


def _tensors() -> Iterator[Patch]:
    """Have nothing ask for the values of tensors."""
    yield Patch(GradScaler, "_maybe_opt_step", _optimizer_step)
    # or else optimizers and norms take tensors one by one, which they do on a CPU only
    for part in (optimizers, _foreach_utils):
        yield Patch(part, "_get_foreach_kernels_supported_devices", lambda: ["cuda", "cpu"])
        yield Patch(part, "_foreach_supported_types", [*part._foreach_supported_types, FakeTensor])
    yield Patch(FakeTensor, "__format__", lambda *_: no_data.SHOWN)
    yield Patch(Tensor, "item", _item)
    yield Patch(FakeTensor, "numpy", _numpy)
    yield Patch(FakeTensor, "tolist", _to_list)
    yield Patch(data, "random_split", _with_data(data.random_split))
    for name, answer in no_data.IS_FINITE.items():
        for owner in (torch, Tensor):
            yield Patch(owner, name, _decided(getattr(owner, name), answer))
    for name, function in no_data.changed_math().items():
        yield Patch(math, name, function)
    yield Patch(FakeTensor, "__deepcopy__", _deep_copy)
    yield Patch(nn.init, "_no_grad_trunc_normal_", _normal)
    yield Patch(torch, "asarray", _with_data(torch.asarray))  # of a file, as safetensors does
    yield Patch(torch, "load", _loaded)
    yield Patch(torch, "save", _do_nothing)
    yield Patch(checkpoint, "save", _do_nothing)


_OWN_ITEM = Tensor.item


def _item(tensor: Tensor) -> Any:
    """The value of a tensor; one without data gives a number without."""
    try:
        return _OWN_ITEM(tensor)
    except torch_known.NEEDS_VALUES:
        return no_data.NoData()


def _numpy(tensor: FakeTensor, *, force: bool = False) -> Any:
    """The values of a small tensor, if they need no data."""
    if tensor.constant is None:
        raise NotImplementedError(no_data.NEEDED)
    numpy = _with_data(torch.Tensor.numpy)
    return numpy(tensor.constant, force=force)


_OWN_LOAD = torch.load


def _loaded(*args: Any, **kwargs: Any) -> Any:
    """What a file has, with tensors that have no data any more."""
    found = _with_data(_OWN_LOAD)(*args, **kwargs)
    return tree_map_only(Tensor, Tensor.detach, found)


_OWN_TO_LIST = FakeTensor.tolist


def _to_list(tensor: FakeTensor) -> Any:
    """The values of a small tensor in one go; torch's own asks for each by itself."""
    if tensor.constant is None:
        return _OWN_TO_LIST(tensor)
    to_list = _with_data(torch.Tensor.tolist)
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


def _do_nothing(*_: Any, **__: Any) -> None:
    """Stand in for a check or a write that needs data."""


def _optimizer_step(
    scaler: Any, optimizer: torch.optim.Optimizer, state: Any, *args: Any, **kwargs: Any
) -> Any:
    """Step as if no gradient was infinite, after the look whether one is."""
    sum(flag.item() for flag in state["found_inf_per_device"].values())
    return optimizer.step(*args, **kwargs)


def _replace(function: Function, other: Function) -> None:
    """Put another function in its place, in each module that has it."""
    name = function.__name__
    for module in list(sys.modules.values()):
        if getattr(module, name, None) is function:
            setattr(module, name, other)


def replace_all(functions: Iterable[tuple[Function, Function]]) -> None:
    """Put others in the places of functions of torch, in each module that has them."""
    for function, other in functions:
        _replace(function, other)


def after_resize(note: Callable[[torch.UntypedStorage], None]) -> None:
    """Have this called with each storage that has got another size."""
    resize = torch.UntypedStorage.resize_

    def resized(storage: torch.UntypedStorage, size: int) -> Any:
        value = resize(storage, size)
        note(storage)
        return value

    put(torch.UntypedStorage, "resize_", resized)


def _as_it_is_written(model: Any = None, **options: Any) -> Any:
    """Return what torch.compile or torch.jit.script is given.

    As a decorator with options, it is given that later.
    """
    if model is None:
        return functools.partial(_as_it_is_written, **options)
    return model


def _deep_copy(tensor: FakeTensor, memo: dict[int, Any]) -> Tensor:
    """Copy a tensor without data.

    Some have a number nevertheless, as an optimizer's `step`, which is copied with its data.
    """
    if tensor.constant is not None:
        copy = _with_data(torch.clone)
        memo[id(tensor.constant)] = copy(tensor.constant)
    return Tensor.__deepcopy__(tensor, memo)


class _Chunks:
    """The parts of a parameter, made when they are asked for.

    FSDP2 takes two of them; torch.chunk makes one for each of ten thousand ranks.
    """

    def __init__(self, tensor: Tensor, number: int, dim: int):
        self._tensor = tensor
        self._dim = dim
        self._size = -(-tensor.shape[dim] // number)

    def __getitem__(self, place: int) -> Tensor:
        length = self._tensor.shape[self._dim]
        begin = place * self._size
        if begin >= length:
            return self._tensor.new_empty(0)
        size = min(self._size, length - begin)
        return self._tensor.narrow(self._dim, begin, size)


def _with_data(function: Function) -> Function:
    """Have a function compute with real numbers, as meshes of ranks and samplers must."""
    return _disable_current_modes()(function)


def _with_backend(new_group: Function, backend: str) -> Function:
    """Have torch's function make each group with this backend."""

    @functools.wraps(new_group)
    def call(size: int, rank: int, members: list[int], _: Any, *args: Any, **kwargs: Any) -> Any:
        return new_group(size, rank, members, backend, *args, **kwargs)

    return call


class _Reducer(dist.Reducer):
    """DDP's, with the buckets of its second step: in the reverse order of the parameters."""

    def __init__(self, parameters: list[Tensor], _: Any, __: Any, *others: Any):
        _, sparse, most_bytes, *_ = others
        limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, most_bytes]
        backwards = parameters[::-1]
        order = list(range(len(parameters)))[::-1]
        buckets, sizes = dist._compute_bucket_assignment_by_size(backwards, limits, sparse, order)
        super().__init__(parameters, buckets, sizes, *others)

    def _rebuild_buckets(self) -> bool:
        return False


def _without_vote(self: Any, stages: list[Any], has_backward: bool, *_: Any) -> None:
    """Have stages ask each other for the shapes of what they send if this rank's need that.

    Since torch 2.13 they vote on it by a product of tensors, which needs data; here a stage that
    needs it knows that the others take part.
    """
    modes = pipeline_stage.InferenceMode
    for one in stages:
        asks = modes.needs_dynamic(one._user_meta, has_backward)
        one._inference_mode = modes.DYNAMIC if asks else modes.STATIC


def after_preparing_stages(note: Callable[[], None]) -> None:
    """Have this called when the stages of a pipeline know the shapes of what they send."""
    schedule = schedules._PipelineSchedule
    if hasattr(schedule, "_initialize_pp_stages"):  # since torch 2.13
        prepare: Any = schedule._initialize_pp_stages

        @functools.wraps(prepare)
        def prepared(*args: Any, **kwargs: Any) -> Any:
            value = prepare(*args, **kwargs)
            note()
            return value

        put(schedule, "_initialize_pp_stages", prepared)


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
    """Attention in a single kernel, which makes no matrix of all scores.

    Context parallelism knows no other one.
    """
    if query.dim() != 4 or not torch.backends.cuda.mem_efficient_sdp_enabled():
        return _ON_CPU(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if attn_mask is None and query.shape[-1] == value.shape[-1]:
        # it takes grouped keys as they are; the other kernel needs them repeated
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
    if enable_gqa:
        heads = query.shape[1]
        key = key.repeat_interleave(heads // key.shape[1], 1)
        value = value.repeat_interleave(heads // value.shape[1], 1)
    bias = None
    if attn_mask is not None:
        bias = attn_mask.to(query.dtype)
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, bias, True, dropout_p, is_causal, scale=scale)[0]


def _sync_batch_norm(self: nn.SyncBatchNorm, values: Tensor) -> Tensor:
    """Call the collectives of torch's own forward, and BatchNorm's kernels: a CPU has no others."""
    if not self.training:
        return _batch_norm(self, values)
    group: Any = self.process_group or dist.group.WORLD
    sums = torch.empty(2 * self.num_features + 1)  # of this rank: two for each feature, and a count
    of_all_ranks = torch.empty(group.size() * sums.numel())
    dist.all_gather_into_tensor(of_all_ranks, sums, group)
    result = _batch_norm(self, values)
    if result.requires_grad:
        result.register_hook(lambda _: dist.all_reduce(sums[1:], group=group))
    return result


def _batch_norm(layer: nn.SyncBatchNorm, values: Tensor) -> Tensor:
    return functional.batch_norm(
        values,
        layer.running_mean,
        layer.running_var,
        layer.weight,
        layer.bias,
        layer.training,
        layer.momentum or 0.0,
        layer.eps,
    )


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
