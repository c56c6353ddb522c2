"""Sequences of which each rank of tensor parallelism has a part, and what gathers them.

Called by dividing.py and float8_gathered.py, on the ranks or in predict's process.
"""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, parallel
from torch.distributed.tensor.placement_types import Placement


def replaced(values: DTensor, placement: Placement) -> DTensor:
    """Gather sequences, or scatter their sums.

    Of one sequence these are rows of a matrix. Only so does torch.compile multiply what it gathers
    part by part (see micro_pipelined.py): of another dimension than the first one, it looks for the
    copy that puts parts of several sequences together, and one sequence needs none.

    Runs on: every rank of the mesh.

    Args:
        values: shape (batch, place, number), on a mesh of one dimension.
        placement: Replicate() to gather, Shard(1) to scatter.
    """
    if len(values) > 1:
        return values.redistribute(placements=[placement])
    of_rows = Shard(0) if placement.is_shard() else placement
    rows = values.flatten(0, 1)
    assert isinstance(rows, DTensor)  # as `values` is
    result = rows.redistribute(placements=[of_rows]).unflatten(0, (1, -1))
    assert isinstance(result, DTensor)
    return result


class Gather(parallel.ParallelStyle):
    """Instead of PrepareModuleInput, for a module that is given parts of sequences."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.register_forward_pre_hook(lambda _, inputs: replaced(inputs[0], Replicate()))
        return module


class Rowwise(parallel.RowwiseParallel):
    """RowwiseParallel that leaves each rank a part of each sequence."""

    def __init__(self) -> None:
        super().__init__(output_layouts=Shard(1))

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.register_forward_hook(lambda _, inputs, sums: replaced(sums, Shard(1)))
        return super()._apply(module, device_mesh)
