"""The private parts of torch that watching a training program needs, one function for each.

Runs on every rank.
"""

import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

# what F.dropout and its kin, and recurrent layers, call; a name that a program has imported from
# torch.nn.functional comes here as well
DROPS_OUT: Any = torch._VF


# gives what compiles the frames that Python evaluates, or None, and takes another; it has no frame
set_compiler: Any = torch._C._dynamo.eval_frame.set_eval_frame
# what DDP's __init__ calls when it has its module; __init__ itself warns of the line that called it
MAKES_DDP = (nn.parallel.DistributedDataParallel, "_ddp_init_helper")
REHEARSALS = ("_forward_metadata_inference", "_backward_metadata_inference")

# what F.cross_entropy and F.nll_loss call with (input, target, weight, reduction, ignored, ...)
LOSSES: Any = torch._C._nn
LOSSES_OF_TARGETS = ("cross_entropy_loss", "nll_loss_nd")


def skip_when_compiling(code: CodeType) -> None:
    """Have torch.compile leave this code as it is, but where code that it compiles calls it.

    What it calls is compiled as before. Private: the strategy of a code object.
    """
    dynamo = torch._C._dynamo.eval_frame
    strategy = dynamo._FrameExecStrategy(dynamo._FrameAction.SKIP, dynamo._FrameAction.DEFAULT)
    dynamo.set_code_exec_strategy(code, strategy)


def _dtensor_module() -> Any:
    """The module of DTensor if the program has imported it; it takes long to import."""
    return sys.modules.get("torch.distributed.tensor")


def is_dtensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is spread over ranks."""
    module = _dtensor_module()
    return module is not None and isinstance(tensor, module.DTensor)


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a tensor, without communication, and without autograd.

    Private: where a DTensor keeps it. A result that is still on its way is waited for.
    """
    if not is_dtensor(tensor):
        return tensor.detach()
    own = tensor._local_tensor  # type: ignore[attr-defined]
    if hasattr(own, "wait"):
        own = own.wait()
    return own.detach()


def is_partial(tensor: torch.Tensor) -> bool:
    """Whether this rank has a summand of a DTensor."""
    if not is_dtensor(tensor):
        return False
    return any(placement.is_partial() for placement in tensor.placements)  # type: ignore[attr-defined]


def own_indices(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """For each dimension of a DTensor, the indices that this rank has.

    Private: how a placement splits a tensor; so the indices are split in the same way.
    """
    along = [torch.arange(size, device="cpu") for size in tensor.shape]
    mesh = tensor.device_mesh  # type: ignore[attr-defined]
    coordinate = mesh.get_coordinate()
    placements = tensor.placements  # type: ignore[attr-defined]
    for dimension, placement in enumerate(placements):
        split = getattr(placement, "dim", None)  # also of a strided shard
        if split is None:
            continue
        if coordinate is None:  # this rank is not in the mesh
            along[split] = along[split][:0]
            continue
        along[split] = _part(placement, along[split], mesh.size(dimension), coordinate[dimension])
    return tuple(along)


def _part(placement: Any, indices: torch.Tensor, parts: int, part: int) -> torch.Tensor:
    """One part of the indices along the dimension that a placement splits."""
    shape = [1] * (placement.dim + 1)
    shape[placement.dim] = len(indices)
    pieces, _ = placement._split_tensor(indices.view(shape), parts, with_padding=False)
    return pieces[part].reshape(-1)


def is_transforming() -> bool:
    """Whether torch.func transforms what is called. Private: the stack of its transformations."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def has_storage(tensor: torch.Tensor) -> bool:
    """Whether the elements that this rank has of a tensor can be read.

    FSDP takes the storage of whole parameters away while it does not need them; to read one then
    would end the process.
    """
    own = own_part(tensor)
    if own.device.type == "meta":
        return False
    if own.layout != torch.strided or own.numel() == 0:
        return True
    last = own.storage_offset()
    for size, stride in zip(own.shape, own.stride(), strict=True):
        last += (size - 1) * stride
    return own.untyped_storage().size() >= (last + 1) * own.element_size()


# --- sharded modules ---


def fully_sharded(module: nn.Module) -> tuple[set[int], bool]:
    """Which parameters fully_shard has sharded, and whether some were spread over ranks before.

    Private: what fully_shard keeps of a module's parameters.

    Returns:
        ids: of the sharded parameters.
        were_spread: whether another of them was a DTensor already, as for tensor parallelism.
    """
    ids = set()
    were_spread = False
    for parameter in _fsdp_parameters(module):
        ids.add(id(parameter.sharded_param))
        were_spread = were_spread or parameter.is_dtensor
    return ids, were_spread


def _fsdp_parameters(module: nn.Module) -> Iterator[Any]:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return
    for inner in module.modules():
        if isinstance(inner, fsdp.FSDPModule):
            for group in inner._get_fsdp_state()._fsdp_param_groups:
                yield from group.fsdp_params


def fsdp_types(module: nn.Module) -> Iterator[torch.dtype]:
    """The types in which fully_shard computes and communicates; none where it changes nothing.

    Private: where it keeps its policy of mixed precision.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return
    for inner in module.modules():
        if isinstance(inner, fsdp.FSDPModule):
            policy = inner._get_fsdp_state()._mp_policy
            for dtype in (policy.param_dtype, policy.reduce_dtype):
                if dtype is not None:
                    yield dtype


def is_spread(tensor: torch.Tensor) -> bool:
    """Whether each rank has another part of a DTensor."""
    if not is_dtensor(tensor):
        return False
    return any(hasattr(placement, "dim") for placement in tensor.placements)  # type: ignore[attr-defined]


def is_rehearsing_pipeline() -> bool:
    """Whether a pipeline's stage runs only to find out the shapes of what it will send.

    Private: the names of its methods.
    """
    if "torch.distributed.pipelining" not in sys.modules:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in REHEARSALS:
            return True
        frame = frame.f_back
    return False


def flat_parts(module: nn.Module) -> Iterator[tuple[nn.Module, str, torch.Tensor, Any, Any]]:
    """What this rank has of the parameters that the first FSDP has put into flat ones.

    Private: what it keeps of its flat parameters.

    Returns:
        For each parameter: the unit of FSDP; its name there; the parameter that optimizers have;
        its whole shape; and its place, with the attributes in_shard, offset_in_shard,
        numel_in_shard and intra_param_start_idx.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return
    for unit in module.modules():
        handle = getattr(unit, "_handle", None)
        if not isinstance(unit, fsdp.FullyShardedDataParallel) or handle is None:
            continue
        flat = handle.flat_param
        given = flat._params
        if given is not None and not handle.uses_sharded_strategy:
            continue  # they are as they were
        for number, place in enumerate(flat._shard_param_infos):
            parameter = flat if given is None else given[number]
            yield unit, flat._fqns[number], parameter, flat._shapes[number], place
