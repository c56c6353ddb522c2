"""Sequences of which each rank of tensor parallelism has a part, and what gathers them.

Called by dividing.py and float8_gathered.py, on the ranks or in predict's process.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, parallel
from torch.distributed.tensor.placement_types import Placement
from torch.multiprocessing.reductions import StorageWeakRef


def replaced(values: DTensor, placement: Placement, waits: bool = True) -> DTensor:
    """Gather sequences, or scatter their sums.

    Of one sequence these are rows of a matrix. Only so does torch.compile multiply what it gathers
    part by part (see micro_pipelined.py): of another dimension than the first one, it looks for the
    copy that puts parts of several sequences together, and one sequence needs none.

    Runs on: every rank of the mesh.

    Args:
        values: shape (batch, place, number), on a mesh of one dimension.
        placement: Replicate() to gather, Shard(1) to scatter.
        waits: whether the device waits for it now, or when the result is used.
    """
    if len(values) > 1:
        return values.redistribute(placements=[placement], async_op=not waits)
    of_rows = Shard(0) if placement.is_shard() else placement
    rows = values.flatten(0, 1)
    assert isinstance(rows, DTensor)  # as `values` is
    moved = rows.redistribute(placements=[of_rows], async_op=not waits)
    result = moved.unflatten(0, (1, -1))
    assert isinstance(result, DTensor)
    return result


class Regathered:
    """What ranks gathered for a module, of which each keeps its own part until the backward pass.

    Gathering begins again with the module's backward pass, while the device computes the gradients
    of its last layer, as in "Reducing Activation Recomputation in Large Transformer Models" (2022),
    section 4.2.2. Hooks of torch.autograd call `pack` and `unpack`.

    Args:
        whole: what was gathered.
        begin: gathers it again, and need not wait for it.
        end: what layers are given, of what `begin` returned.
    """

    def __init__(
        self, whole: DTensor, begin: Callable[[], DTensor], end: Callable[[DTensor], DTensor]
    ):
        self._storage = StorageWeakRef(_storage_of(whole))
        self._begin = begin
        self._end = end
        self._uses = 0  # by layers, in the forward pass
        self._left = 0  # of them, in the backward pass
        self._is_over = False
        self._begun: DTensor | None = None

    def pack(self, saved: Tensor) -> Tensor | torch.Size:
        """What autograd keeps instead of a tensor: of what was gathered, the shape alone."""
        if StorageWeakRef(_storage_of(saved)) != self._storage:
            return saved
        self._uses += 1
        return saved.shape

    def unpack(self, packed: Tensor | torch.Size) -> Tensor:
        """The tensor that was saved."""
        is_saved = isinstance(packed, Tensor)
        if self._begun is None and not (is_saved and self._is_over):
            self._begun = self._begin()
            self._left = self._uses
        if isinstance(packed, Tensor):
            return packed
        assert self._begun is not None  # since it is not a tensor
        whole = self._end(self._begun)
        self._left -= 1
        if self._left == 0:
            self._begun = None
            self._is_over = True
        return whole.view(packed)


def _storage_of(tensor: Tensor) -> torch.UntypedStorage:
    """Where a tensor's numbers are, or those of what it wraps."""
    inner: Any = tensor
    while hasattr(inner, "__tensor_flatten__"):
        names, _ = inner.__tensor_flatten__()
        inner = getattr(inner, names[0])
    storage: torch.UntypedStorage = inner.untyped_storage()
    return storage


def regathering(
    forward: Callable[[DTensor], Tensor], gather: Callable[[DTensor], tuple[DTensor, Regathered]]
) -> Callable[[DTensor], Tensor]:
    """A module's forward pass that is given a part, and keeps no more of it.

    Args:
        gather: what the module works on, of a part.
    """

    def run(part: DTensor) -> Tensor:
        whole, again = gather(part)
        with torch.autograd.graph.saved_tensors_hooks(again.pack, again.unpack):
            return forward(whole)

    return run


class Gather(parallel.ParallelStyle):
    """Instead of PrepareModuleInput, for a module that is given parts of sequences.

    Args:
        again: whether they are gathered again for the backward pass.
    """

    def __init__(self, again: bool = False):
        super().__init__()
        self._again = again

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if self._again:
            module.forward = regathering(module.forward, _gathered)
        else:
            module.register_forward_pre_hook(lambda _, inputs: replaced(inputs[0], Replicate()))
        return module


def _gathered(part: DTensor) -> tuple[DTensor, Regathered]:
    """The whole, and what gathers it again."""
    whole = replaced(part, Replicate())
    kept = part.detach()
    assert isinstance(kept, DTensor)  # as `part` is
    begin = functools.partial(replaced, kept, Replicate(), waits=False)
    return whole, Regathered(whole, begin, lambda begun: begun)


class Rowwise(parallel.RowwiseParallel):
    """RowwiseParallel that leaves each rank a part of each sequence."""

    def __init__(self) -> None:
        super().__init__(output_layouts=Shard(1))

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.register_forward_hook(lambda _, inputs, sums: replaced(sums, Shard(1)))
        return super()._apply(module, device_mesh)
