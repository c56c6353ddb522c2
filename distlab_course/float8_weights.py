"""Weights that `fully_shard` gathers in float8: one byte a number instead of two.

Used by float8.py, on the ranks or in predict's process. `fully_shard` calls the two methods
`fsdp_pre_all_gather` and `fsdp_post_all_gather` of a tensor's class, if it has them. A rank's part
needs the scale of the whole weight before it is cast: as torchao does (torchao/float8/fsdp_utils.py
in github.com/pytorch/ao), `share_scales` finds those of all weights together.
"""

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from distlab_course.float8_gathered import Gathered
from distlab_course.float8_numbers import E4M3, cast, scale_of

aten = torch.ops.aten
# operators that make a weight, or a part of one, of the numbers of another
SAME = {
    aten.detach.default,
    aten.alias.default,
    aten.slice.Tensor,
    aten.split.Tensor,
    aten.view.default,
    aten.as_strided.default,
}
# operators that make a weight with numbers of its own
NEW = {
    aten.empty_like.default,
    aten.new_zeros.default,
    aten._to_copy.default,
    aten.clone.default,
}


class SentWeight(Tensor):
    """A weight, or this rank's part of one, which `fully_shard` gathers in float8.

    Attributes:
        part: the numbers.
        scale: that of the whole weight, from `share_scales`, in a list that all tensors with these
            numbers share; an empty list before.
    """

    part: Tensor
    scale: list[Tensor]

    @staticmethod
    def __new__(cls: type[Any], part: Tensor, scale: list[Tensor] | None = None) -> Any:
        return Tensor._make_wrapper_subclass(
            cls,
            part.shape,
            strides=part.stride(),
            storage_offset=part.storage_offset(),
            dtype=part.dtype,
            device=part.device,
        )

    def __init__(self, part: Tensor, scale: list[Tensor] | None = None):
        self.part = part
        self.scale = [] if scale is None else scale

    def __tensor_flatten__(self) -> tuple[list[str], list[Tensor]]:
        return ["part"], self.scale

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], scale: list[Tensor], *_: Any) -> Tensor:
        return SentWeight(inner["part"], scale)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares it without `cls`
        cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = pytree.tree_map_only(SentWeight, _part_of, (args, kwargs or {}))
        value = operator(*given[0], **given[1])
        if operator is aten.copy_.default:
            return args[0]
        if operator in SAME:
            again = functools.partial(SentWeight, scale=args[0].scale)
            return pytree.tree_map_only(Tensor, again, value)
        if operator in NEW:
            return SentWeight(value)
        return value

    def fsdp_pre_all_gather(
        self,
        mesh: DeviceMesh,
        outer_size: torch.Size,
        outer_stride: tuple[int, ...],
        module: Any,
        mp_policy: MixedPrecisionPolicy,
    ) -> tuple[tuple[Tensor], tuple[Tensor, bool]]:
        """What `fully_shard` sends, and what it keeps for `fsdp_post_all_gather`.

        Args:
            module: the layer, a Float8Linear.
        """
        if self.scale:
            (scale,) = self.scale
        else:  # in the first step
            largest = self.part.abs().max()
            dist.all_reduce(largest, dist.ReduceOp.MAX, mesh.get_group())
            scale = scale_of(largest, E4M3)
        values = cast(self.part, scale, E4M3)
        return (values.view(torch.uint8),), (scale, module.transposes)  # gloo does not know float8

    def fsdp_post_all_gather(
        self,
        outputs: tuple[Tensor],
        metadata: tuple[Tensor, bool],
        dtype: torch.dtype,
        *,
        out: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]] | None:
        """The gathered weight; when there is one already, only its scale is new.

        If it is transposed as well, `fully_shard` also lets that go, and gives it memory again.
        """
        (sent,) = outputs
        scale, transposes = metadata
        if out is None:
            eight = sent.view(E4M3)
            if not transposes:
                return Gathered(eight, scale, dtype), (sent,)
            columns = eight.t().contiguous()
            return Gathered(eight, scale, dtype, columns.t()), (sent, columns)
        # to_local() would give another one with the same numbers
        weight: Any = out._local_tensor if isinstance(out, DTensor) else out
        weight.scale = scale  # of a Gathered, made above
        if transposes:
            weight.by_columns.t().copy_(weight.eight.t())
        return None


@torch.no_grad()
def share_scales(model: nn.Module) -> None:
    """Find the scales of all weights that are gathered in float8, with one all-reduce.

    Call it after each step of the optimizer; otherwise each gather begins with an all-reduce.

    Runs on: every rank (a rank that skips it hangs the rest).

    Args:
        model: whose layers `in_float8(..., gathered=True)` has changed, and fully_shard sharded.
    """
    weights = []
    largest = []
    meshes = []
    for parameter in model.parameters():
        weight = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if isinstance(parameter, DTensor) and isinstance(weight, SentWeight):
            weights.append(weight)
            largest.append(weight.part.abs().max())
            meshes.append(parameter.device_mesh)
    if not weights:
        return
    of_all = torch.stack(largest)
    for dimension in range(meshes[0].ndim):
        dist.all_reduce(of_all, dist.ReduceOp.MAX, meshes[0].get_group(dimension))
    for weight, scale in zip(weights, scale_of(of_all, E4M3).unbind(), strict=True):
        weight.scale[:] = [scale]


def _part_of(weight: SentWeight) -> Tensor:
    return weight.part
