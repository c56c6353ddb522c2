"""Tensors that ranks gather in float8: one byte a number instead of two.

Used by float8.py, float8_weights.py and dividing.py, on the ranks or in predict's process. As in
torchao (torchao/float8/float8_tensor_parallel.py in github.com/pytorch/ao), what ranks of tensor
parallelism gather along a sequence is cast before, with one scale of the whole: inputs of attention
and feed-forward layers, and gradients of their results. Each rank casts its part once, and the
linear layers multiply what they are given.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, parallel

from distlab_course.float8_numbers import E4M3, E5M2, scaled
from distlab_course.sequence_parts import replaced


class Gathered(Tensor):
    """A tensor in float8, which autograd takes for one in the format of its gradient.

    Attributes:
        eight: the numbers, in float8.
        scale: that they were multiplied with.
        by_columns: the same numbers, of which those of a column lie one after another; None if
            nobody has asked for them.
    """

    eight: Tensor
    scale: Tensor
    by_columns: Tensor | None

    @staticmethod
    def __new__(
        cls: type[Any],
        values: Tensor,
        scale: Tensor,
        dtype: torch.dtype,
        by_columns: Tensor | None = None,
    ) -> Any:
        return Tensor._make_wrapper_subclass(
            cls, values.shape, strides=values.stride(), dtype=dtype, device=values.device
        )

    def __init__(
        self,
        values: Tensor,
        scale: Tensor,
        dtype: torch.dtype,
        by_columns: Tensor | None = None,
    ):
        self.eight = values
        self.scale = scale
        self.by_columns = by_columns

    def __tensor_flatten__(self) -> tuple[list[str], torch.dtype]:
        names = ["eight", "scale"]
        if self.by_columns is not None:
            names.append("by_columns")
        return names, self.dtype

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], dtype: torch.dtype, *_: Any) -> Tensor:
        return Gathered(inner["eight"], inner["scale"], dtype, inner.get("by_columns"))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares it without `cls`
        cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = args[0]
        same = {torch.ops.aten.detach.default, torch.ops.aten.alias.default}
        is_same = operator in same
        if operator is torch.ops.aten.as_strided.default:  # fully_shard asks for its own shape
            is_same = tuple(args[1]) == tuple(given.shape)
        if is_same:
            return Gathered(given.eight, given.scale, given.dtype, given.by_columns)
        if operator is torch.ops.aten.view.default:
            return Gathered(given.eight.view(args[1]), given.scale, given.dtype)
        raise NotImplementedError(f"{operator} of a tensor that was gathered in float8")


def in_eight(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A tensor in float8 with its scale, as it was gathered, or cast here.

    Runs on: anywhere.

    Args:
        dtype: E4M3 or E5M2, if it is cast here.
    """
    if isinstance(values, Gathered):
        return values.eight, values.scale
    if isinstance(values, DTensor) and isinstance(values._local_tensor, Gathered):
        local = values._local_tensor
        return _of_local(values, local.eight, values.stride()), _scale_of_local(values, local)
    return scaled(values, dtype)


def in_columns(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A matrix in float8 with its scale, by columns if it is there like that.

    Runs on: anywhere.

    Args:
        dtype: as of `in_eight`.
    """
    local = weight._local_tensor if isinstance(weight, DTensor) else weight
    if not isinstance(local, Gathered) or local.by_columns is None:
        return in_eight(weight, dtype)
    if not isinstance(weight, DTensor):
        return local.by_columns, local.scale
    by_columns = _of_local(weight, local.by_columns, (1, weight.shape[0]))
    return by_columns, _scale_of_local(weight, local)


def _of_local(values: DTensor, part: Tensor, stride: tuple[int, ...]) -> DTensor:
    """The numbers of a tensor that each rank of tensor parallelism has, whole or a part."""
    sizes: dict[str, Any] = {"shape": values.shape, "stride": stride}
    return DTensor.from_local(part, values.device_mesh, values.placements, run_check=False, **sizes)


def _scale_of_local(values: DTensor, local: Gathered) -> DTensor:
    """The scale of such a tensor, which each rank has."""
    mesh = values.device_mesh
    return DTensor.from_local(local.scale, mesh, [Replicate()] * mesh.ndim, run_check=False)


# --- along a sequence, in tensor parallelism ---


def _whole(part: DTensor, dtype: torch.dtype) -> DTensor:
    """Gather a tensor in float8. One scale of the whole needs an all-reduce of one number."""
    eight, scale = scaled(part, dtype)
    assert isinstance(eight, DTensor)  # as `part` is
    assert isinstance(scale, DTensor)
    mesh = part.device_mesh
    sent = eight.to_local().view(torch.uint8)  # gloo does not know float8
    parts = DTensor.from_local(sent, mesh, part.placements, run_check=False)
    whole = replaced(parts, Replicate()).to_local().view(dtype)
    gathered = Gathered(whole, scale.full_tensor(), part.dtype)
    return DTensor.from_local(gathered, mesh, [Replicate()], run_check=False)


class _Gather(torch.autograd.Function):
    """Parts in, the whole in float8 out; the sum of the gradients goes back in parts."""

    @staticmethod
    def forward(ctx: Any, part: DTensor) -> DTensor:
        return _whole(part, E4M3)

    @staticmethod
    def backward(ctx: Any, *gradients: DTensor) -> DTensor:
        return replaced(gradients[0], Shard(1))


class _Scatter(torch.autograd.Function):
    """The sum of the ranks' results in parts; the gradient goes back whole, in float8."""

    @staticmethod
    def forward(ctx: Any, results: DTensor) -> DTensor:
        return replaced(results, Shard(1))

    @staticmethod
    def backward(ctx: Any, *gradients: DTensor) -> DTensor:
        return _whole(gradients[0], E5M2)


# torch.compile does not take gradients that are tensors of another kind than results, so that a
# graph ends before these, and another begins behind them.


class GatherInFloat8(parallel.ParallelStyle):
    """Instead of PrepareModuleInput, for a module that gives what it is given to Float8Linear.

    What it is given is a DTensor of which each rank has a part.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        gather = torch.compiler.disable(lambda _, inputs: _Gather.apply(*inputs))
        module.register_forward_pre_hook(gather)
        return module


class RowwiseInFloat8(parallel.RowwiseParallel):
    """Instead of RowwiseParallel with parts of a sequence as results, for a Float8Linear."""

    def __init__(self) -> None:
        super().__init__(output_layouts=Shard(1))

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        scatter = torch.compiler.disable(lambda _, inputs, results: _Scatter.apply(results))
        module.register_forward_hook(scatter)
        return super()._apply(module, device_mesh)
