"""Tensors that ranks gather in float8: one byte a number instead of two.

Used by float8.py, float8_weights.py and dividing.py, on the ranks or in predict's process. As in
torchao (torchao/float8/float8_tensor_parallel.py in github.com/pytorch/ao), what ranks of tensor
parallelism gather along a sequence is cast before, with one scale of the whole: inputs of attention
and feed-forward layers, and gradients of their results. Each rank casts its part once, and the
linear layers multiply what they are given.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, parallel

from distlab_course.float8_numbers import E4M3, E5M2, scaled
from distlab_course.sequence_parts import Regathered, regathering, replaced


class PutOff:
    """Products that make gradients of weights, which are computed while ranks add up other sums."""

    def __init__(self) -> None:
        self._products: list[Callable[[], None]] = []

    def add(self, product: Callable[[], None]) -> None:
        """Have a product wait for `run`."""
        self._products.append(product)

    def run(self) -> None:
        """Compute all of them."""
        products = self._products
        self._products = []
        for product in products:
            product()


class Gathered(Tensor):
    """A tensor in float8, which autograd takes for one in the format of its gradient.

    Attributes:
        eight: the numbers, in float8.
        scale: that they were multiplied with.
        by_columns: the same numbers, of which those of a column lie one after another; None if
            nobody has asked for them.
        put_off: where products with it that make gradients of weights wait; None if they do not.
    """

    eight: Tensor
    scale: Tensor
    by_columns: Tensor | None
    put_off: PutOff | None

    @staticmethod
    def __new__(
        cls: type[Any],
        values: Tensor,
        scale: Tensor,
        dtype: torch.dtype,
        by_columns: Tensor | None = None,
        put_off: PutOff | None = None,
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
        put_off: PutOff | None = None,
    ):
        self.eight = values
        self.scale = scale
        self.by_columns = by_columns
        self.put_off = put_off

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
            return Gathered(given.eight, given.scale, given.dtype, given.by_columns, given.put_off)
        if operator is torch.ops.aten.view.default:
            viewed = given.eight.view(args[1])
            return Gathered(viewed, given.scale, given.dtype, put_off=given.put_off)
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
        return of_local(values, local.eight, values.stride()), _scale_of_local(values, local)
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
    by_columns = of_local(weight, local.by_columns, (1, weight.shape[0]))
    return by_columns, _scale_of_local(weight, local)


def put_off_of(values: Tensor) -> PutOff | None:
    """Where products with a tensor that make gradients of weights wait; None if they do not.

    Runs on: anywhere.
    """
    local = values._local_tensor if isinstance(values, DTensor) else values
    return local.put_off if isinstance(local, Gathered) else None


def of_local(values: DTensor, part: Tensor, stride: tuple[int, ...]) -> DTensor:
    """A tensor of the numbers that each rank of tensor parallelism has, whole or a part.

    Runs on: every rank of the mesh.

    Args:
        values: with the shape and the placements of the tensor.
        part: what this rank has.
        stride: of the tensor.
    """
    sizes: dict[str, Any] = {"shape": values.shape, "stride": stride}
    return DTensor.from_local(part, values.device_mesh, values.placements, run_check=False, **sizes)


def _scale_of_local(values: DTensor, local: Gathered) -> DTensor:
    """The scale of such a tensor, which each rank has."""
    mesh = values.device_mesh
    return DTensor.from_local(local.scale, mesh, [Replicate()] * mesh.ndim, run_check=False)


# --- along a sequence, in tensor parallelism ---


def _cast(part: DTensor, dtype: torch.dtype) -> tuple[DTensor, DTensor]:
    """A part in float8 as bytes, and its scale. That of the whole is an all-reduce of one number.

    Gloo does not know float8.
    """
    eight, scale = scaled(part, dtype)
    assert isinstance(eight, DTensor)  # as `part` is
    assert isinstance(scale, DTensor)
    sent = eight.to_local().view(torch.uint8)
    return DTensor.from_local(sent, part.device_mesh, part.placements, run_check=False), scale


def _whole(
    gathered: DTensor,
    scale: DTensor,
    dtype: torch.dtype,
    like: torch.dtype,
    put_off: PutOff | None = None,
) -> DTensor:
    """A tensor in float8, of the bytes that were gathered.

    Args:
        scale: of all parts.
        dtype: of the bytes.
        like: the format in which autograd takes it.
        put_off: where products with it wait that make gradients of weights.
    """
    eight = gathered.to_local().view(dtype)
    whole = Gathered(eight, scale.full_tensor(), like, put_off=put_off)
    return DTensor.from_local(whole, gathered.device_mesh, [Replicate()], run_check=False)


class _Gather(torch.autograd.Function):
    """Parts in, the whole in float8 out; the sum of the gradients goes back in parts."""

    @staticmethod
    def forward(ctx: Any, part: DTensor, sent: DTensor, scale: DTensor, put_off: PutOff) -> DTensor:
        ctx.put_off = put_off
        return _whole(replaced(sent, Replicate()), scale, E4M3, part.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: DTensor) -> tuple[DTensor, None, None, None]:
        parts = replaced(gradients[0], Shard(1), waits=False)
        ctx.put_off.run()
        return parts, None, None, None


def _gathered(part: DTensor) -> tuple[DTensor, Regathered]:
    """The whole in float8, and what gathers it again."""
    with torch.no_grad():
        sent, scale = _cast(part, E4M3)
    put_off = PutOff()
    whole: DTensor = _Gather.apply(part, sent, scale, put_off)
    begin = functools.partial(replaced, sent, Replicate(), waits=False)
    end = functools.partial(_whole, scale=scale, dtype=E4M3, like=part.dtype, put_off=put_off)
    return whole, Regathered(whole, begin, end)


class _Scatter(torch.autograd.Function):
    """The sum of the ranks' results in parts; the gradient goes back whole, in float8."""

    @staticmethod
    def forward(ctx: Any, results: DTensor) -> DTensor:
        return replaced(results, Shard(1))

    @staticmethod
    def backward(ctx: Any, *gradients: DTensor) -> DTensor:
        (gradient,) = gradients
        sent, scale = _cast(gradient, E5M2)
        return _whole(replaced(sent, Replicate()), scale, E5M2, gradient.dtype)


# torch.compile does not take gradients that are tensors of another kind than results, so that a
# graph ends before these, and another begins behind them.


class GatherInFloat8(parallel.ParallelStyle):
    """Instead of PrepareModuleInput, for a module that gives what it is given to Float8Linear.

    What it is given is a DTensor of which each rank has a part.

    Args:
        again: whether it is gathered again for the backward pass.
    """

    def __init__(self, again: bool = False):
        super().__init__()
        self._again = again

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if self._again:
            module.forward = regathering(module.forward, _gathered)
        else:
            gather = torch.compiler.disable(lambda _, inputs: _gathered(*inputs)[0])
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
