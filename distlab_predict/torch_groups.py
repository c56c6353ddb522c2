"""Has DDP, FSDP2, DTensor and pipelines call what they call on GPUs.

Called by torch_changed.py and recorder.py. Tried with torch 2.13.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as functional
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining import stage as pipeline_stage
from torch.distributed.tensor import _collective_utils as dtensor
from torch.nn.parallel import DistributedDataParallel

from distlab_predict.torch_patches import Function, Patch, do_nothing, put


def patches() -> Iterator[Patch]:
    """Have DDP, FSDP2, DTensor and pipelines call what they call on GPUs."""
    yield Patch(dist, "_verify_params_across_processes", do_nothing)
    yield Patch(dist, "Reducer", _Reducer)
    # for bfloat16 it would ask for a GPU
    yield Patch(DistributedDataParallel, "_check_comm_hook", do_nothing)
    yield Patch(DistributedDataParallel, "_passing_sync_batchnorm_handle", do_nothing)
    yield Patch(_fsdp_param, "_chunk_with_empty", _Chunks)
    yield Patch(functional, "_maybe_wrap_tensor", _awaited_when_used)
    # or else an all_to_all on a CPU is an all_gather, as gloo has none
    yield Patch(dtensor, "local_tensor_mode", lambda: True)
    if hasattr(schedules._PipelineSchedule, "_warmup_p2p"):  # before torch 2.15
        yield Patch(schedules._PipelineSchedule, "_warmup_p2p", _without_vote)


def _awaited_when_used(result: Tensor) -> Tensor:
    """Stand in for what functional collectives give their results to.

    Without data torch takes a program for one that is compiled, and waits at once. Here as well it
    does where autograd sees the result, which the tensor that waits when it is used hides.
    """
    if result.requires_grad:
        return functional.wait_tensor(result)
    return functional.AsyncCollectiveTensor(result)


def with_micro_pipelines() -> frozenset[str]:
    """The names of groups for which the program that runs here has asked for pipelines.

    See micro_pipelines.py.
    """
    config: Any = sys.modules.get("torch._inductor.config")
    memory: Any = sys.modules.get("torch.distributed._symmetric_memory")
    if config is None or memory is None or not config._micro_pipeline_tp:
        return frozenset()
    return frozenset(memory._group_name_to_store)


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


def with_backend(new_group: Function, backend: str) -> Function:
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
